"""Laws of the core, whatever is asked in whatever order."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernel.core.driving import DISPATCH, EXECUTION, Run, fail, submit, succeed
from tests.kernel.core.test_events import any_of

from proctor.wire.calls import Lease, StepReply
from proctor.wire.words import Answer, Decision, Idempotency, Reason, StepKind
from proctor_kernel.core import chain, event_json, events, transitions
from proctor_kernel.core.approvals import Gate
from proctor_kernel.core.chain import Row
from proctor_kernel.core.commands import (
    AcknowledgeDispatch,
    CancelExecution,
    ClaimDispatch,
    CreateExecution,
    DecideApproval,
    Deny,
    Expire,
    FailDispatch,
    FinishExecution,
    GaveUp,
    Grant,
    Returned,
    Ruling,
    SettleStep,
    SettleSubagent,
    SpawnExecution,
    Suspend,
)
from proctor_kernel.core.evolve import IllegalTransition, evolve, fold
from proctor_kernel.core.identity import Json
from proctor_kernel.core.state import State

ANYBODY = Gate("anybody", "look", (), 1, timeout_micros=20)
FINANCE = Gate("finance", "look twice", ("group:finance",), 2, timeout_micros=30)

leases = st.builds(Lease, st.sampled_from([DISPATCH, "other"]), st.integers(1, 4))
rulings = st.builds(
    Ruling,
    decision=st.sampled_from([*Decision, Decision.ALLOW, Decision.REQUIRE_APPROVAL]),
    reason=st.sampled_from(["", "because"]),
    rule_ids=st.sampled_from([(), ("a",), ("a", "b")]),
    ruleset=st.just("h"),
    labels=st.sampled_from([(), ("untrusted",)]),
    gates=st.sampled_from([(ANYBODY,), (ANYBODY,), (FINANCE,), (ANYBODY, FINANCE), ()]),
    wait_until=st.sampled_from([None, None, 50]),
)
submits = st.builds(
    submit,
    leases,
    st.sampled_from(["read", "mail"]),
    args=st.sampled_from(["{}", '{"n":1}']),
    kind=st.sampled_from(StepKind),
    idempotency=st.sampled_from(Idempotency),
    request_id=st.sampled_from([None, "r1", "r2", "r3"]),
)
step_numbers = st.integers(0, 5)
people = st.sampled_from(["alice", "bob", "carol"])
resolutions = st.one_of(
    st.builds(Grant, people, st.sampled_from([(), ("finance",)])),
    st.builds(Deny, people, st.just(("finance",)), st.sampled_from(["", "no"])),
    st.just(Expire()),
)
settling = st.tuples(st.sampled_from([succeed, fail]), leases, step_numbers)
delivering = st.one_of(
    st.builds(Suspend, leases),
    st.builds(AcknowledgeDispatch, leases),
    st.builds(FailDispatch, leases, st.just("no"), st.just(60), st.sampled_from([2, 9])),
)
ending = st.one_of(
    st.builds(FinishExecution, leases, st.just(Returned(Json("2")))),
    st.builds(FinishExecution, leases, st.just(GaveUp("no"))),
)


def live(command: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Ask as whoever holds the run."""
    return st.tuples(st.just("live"), command)


# Most of what happens is what happens to a run at work; else few of its states are seen.
WEIGHTS: list[tuple[int, st.SearchStrategy[Any]]] = [
    (8, live(submits)),
    (4, live(settling)),
    (5, st.tuples(st.just("decide"), resolutions, step_numbers)),
    (2, st.tuples(st.just("spawn"), step_numbers)),
    (2, st.tuples(st.just("child ended"), step_numbers)),
    (2, st.builds(ClaimDispatch, st.sampled_from([2, 5, 9]))),
    (1, live(delivering)),
    (1, live(ending)),
    (1, st.one_of(submits, settling, delivering, ending)),
    (1, st.builds(CreateExecution, st.just("agent"), st.just(Json("1")))),
    (1, st.builds(CancelExecution, st.just(Reason.CLIENT_CANCELLED))),
]
moves = st.sampled_from([each for weight, each in WEIGHTS for _ in range(weight)]).flatmap(
    lambda each: each
)
scripts = st.lists(st.tuples(moves, rulings), min_size=4, max_size=30)


def command_of(state: State, move: Any) -> Any:
    """Return the command that a move comes to in this state."""
    if not isinstance(move, tuple):
        return move
    steps, approvals = sorted(state.steps), sorted(state.approvals)
    match move:
        case ("live", (settle, _, number)):
            return settle(live_lease(state), chosen(steps, number))
        case ("live", command):
            return replace(command, lease=live_lease(state))
        case ("decide", resolution, number):
            return DecideApproval(chosen(approvals, number), resolution)
        case ("spawn", number):
            step_id = chosen(sorted(state.under_way), number)
            return SpawnExecution(step_id, f"child-{step_id}", None)
        case ("child ended", number):
            step_id = chosen(sorted(state.spawning), number)
            return SettleSubagent(step_id, f"child-{step_id}", Returned(Json("3")))
        case (settle, lease, number):
            return settle(lease, chosen(steps, number))
        case _:
            raise AssertionError(move)


def chosen(ids: list[str], number: int) -> str:
    return ids[number % len(ids)] if ids else "none"


def live_lease(state: State) -> Lease:
    dispatch = state.dispatch
    return Lease("none", 1) if dispatch is None else Lease(dispatch.dispatch_id, dispatch.attempt)


def check(state: State) -> None:
    """Check what holds in every state of a run."""
    by_status: dict[str, set[str]] = {}
    for step_id, step in state.steps.items():
        by_status.setdefault(str(step.status), set()).add(step_id)
    assert state.executing == by_status.get("executing", set())
    assert state.awaiting == by_status.get("awaiting_approval", set())
    assert state.spawning <= state.executing
    pending = {each.step_id for each in state.approvals.values() if each.status == "pending"}
    assert pending == state.awaiting, "whoever waits can be let go on, and nobody else"
    if state.is_terminal:
        assert not state.executing | state.awaiting
        return
    assert state.dispatch is not None
    # No run is stuck: somebody will deliver it, is at work on it, or can let it go on.
    at_work = bool(state.under_way) and state.dispatch.status == "in_flight"
    match str(state.status):
        case "running":
            assert state.dispatch.status in ("pending", "in_flight", "failed")
        case "blocked":
            # A delivery that failed is looked at again, and then the run goes on.
            assert state.waiting or at_work or state.dispatch.status == "failed"
        case other:
            raise AssertionError(other)


def check_nothing_is_cut_off(before: State, after: State) -> None:
    """Check that an attempt goes on as long as a call of it is under way."""
    if before.dispatch is None or before.dispatch.status != "in_flight":
        return
    if after.under_way and not after.is_terminal:
        assert after.dispatch == before.dispatch


def play(script: list[tuple[Any, Ruling]]) -> Run:
    """Create and claim a run, then ask what `script` says; check each reply against the state."""
    run = Run().created()
    run.claim()
    for move, ruling in script:
        run.ruling = ruling
        command = command_of(run.state, move)
        before = run.state
        reply = run.apply(command)
        if before.is_terminal:
            assert replace(run.state, attempt=None) == replace(before, attempt=None)
        check(run.state)
        if str(before.status) == "blocked" and str(run.state.status) == "running":
            assert not run.state.waiting, "it went on while a step waits"
        if isinstance(command, DecideApproval | SettleStep | SettleSubagent):
            check_nothing_is_cut_off(before, run.state)
        if isinstance(reply, StepReply) and reply.step_id is not None:
            step = run.state.steps[reply.step_id]
            if reply.decision is Answer.PROCEED:
                assert reply.step_id in run.state.executing
            if reply.decision is Answer.REPLAY:
                assert (reply.result_json, reply.error_json) == (step.result, step.error)
    return run


@settings(max_examples=300, deadline=None)
@given(scripts)
def test_no_order_of_commands_leaves_the_state_machine(script: list[Any]) -> None:
    run = play(script)

    assert [record.seq for record in run.log] == list(range(1, len(run.log) + 1))
    assert run.state.executing == {
        step_id for step_id, step in run.state.steps.items() if step.status == "executing"
    }
    if run.state.is_terminal:
        assert run.state.executing == frozenset()


@settings(max_examples=200, deadline=None)
@given(scripts)
def test_a_run_is_the_fold_of_its_log(script: list[Any]) -> None:
    run = play(script)

    assert replace(fold(EXECUTION, run.log), attempt=None) == replace(run.state, attempt=None)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([("read", "{}"), ("mail", '{"n":1}'), ("mail", "{}")]), max_size=8),
    st.integers(0, 8),
)
def test_a_handler_that_makes_the_same_calls_finds_the_same_steps(
    calls: list[tuple[str, str]], died_after: int
) -> None:
    run = Run().created()
    first = run.claim()
    ids = []
    for target, args in calls[:died_after]:
        reply = run.apply(submit(first, target, args=args))
        assert isinstance(reply, StepReply)
        ids.append(reply.step_id)
        run.apply(succeed(first, str(reply.step_id), f'"{target}"'))
    second = run.claim()
    since = len(run.log)
    replies = [run.apply(submit(second, target, args=args)) for target, args in calls]

    again = [reply for reply in replies[: len(ids)] if isinstance(reply, StepReply)]
    assert [reply.step_id for reply in again] == ids
    assert [reply.decision for reply in again] == [Answer.REPLAY] * len(ids)
    assert run.happened(since).count("step.proposed") == len(calls[len(ids) :])


@given(st.sampled_from(list(events.TYPES.values())), st.data())
def test_an_illegal_move_raises_and_changes_nothing(cls: type[events.Event], data: Any) -> None:
    event = data.draw(any_of(cls))
    state = State(EXECUTION)
    (record,) = chain.link(EXECUTION, seq=0, head=state.head, happened=[event], at=1)
    if cls is events.ExecutionCreated:
        assert evolve(state, record).status == "pending"
        return
    with pytest.raises(IllegalTransition):
        evolve(state, record)
    assert state == State(EXECUTION)


def test_a_record_must_follow_the_last_one() -> None:
    (record,) = chain.link(
        EXECUTION, seq=1, head="0" * 64, happened=[events.ExecutionStarted()], at=1
    )

    with pytest.raises(IllegalTransition, match="cannot follow"):
        evolve(State(EXECUTION), record)


def test_what_ends_a_run_retires_its_dispatch() -> None:
    ends = [
        event
        for event, status in transitions.EXECUTION["running"].items()  # type: ignore[index]
        if status.is_terminal
    ]

    for row in (transitions.DISPATCH["pending"], transitions.DISPATCH["in_flight"]):  # type: ignore[index]
        assert [row[event] for event in ends] == ["exhausted"] * 3


def rows_of(run: Run) -> list[Row]:
    return [
        Row(
            each.execution_id,
            each.seq,
            event_json.name(each.event),
            each.payload,
            each.at,
            each.hash,
        )
        for each in run.log
    ]


def a_log() -> list[Row]:
    run = Run().created()
    lease = run.claim()
    for number in range(3):
        reply = run.apply(submit(lease, args=f"[{number}]"))
        assert isinstance(reply, StepReply)
        run.apply(succeed(lease, str(reply.step_id)))
    return rows_of(run)


def test_an_untouched_log_has_no_break() -> None:
    assert chain.first_break(EXECUTION, a_log()) is None


@given(st.integers(0, len(a_log()) - 1), st.data())
def test_any_edit_of_any_field_breaks_the_chain_there(place: int, data: Any) -> None:
    rows = a_log()
    row = rows[place]
    field = data.draw(
        st.sampled_from(["execution_id", "seq", "type_name", "payload", "at", "hash"])
    )
    value = getattr(row, field)
    if isinstance(value, int):
        other: Any = data.draw(st.integers(0, 2**60).filter(lambda each: each != value))
    else:
        at = data.draw(st.integers(0, len(value) - 1))
        changed = data.draw(st.characters(codec="ascii").filter(lambda each: each != value[at]))
        other = value[:at] + changed + value[at + 1 :]
    rows[place] = replace(row, **{field: other})

    broken = chain.first_break(EXECUTION, rows)

    assert broken is not None
    assert broken.seq == place + 1


@given(st.integers(0, len(a_log()) - 2), st.sampled_from(["drop", "swap", "double"]))
def test_a_dropped_doubled_or_reordered_event_breaks_the_chain_there(place: int, how: str) -> None:
    rows = a_log()
    expected = place + 1
    match how:
        case "drop":
            del rows[place]
        case "swap":
            rows[place], rows[place + 1] = rows[place + 1], rows[place]
        case "double":
            rows.insert(place, rows[place])
            expected = place + 2

    broken = chain.first_break(EXECUTION, rows)

    assert broken is not None
    assert broken.seq == expected


def test_an_event_inserted_with_a_hash_of_its_own_breaks_the_chain_after_it() -> None:
    rows = a_log()
    (forged,) = chain.link(
        EXECUTION,
        seq=5,
        head=rows[4].hash,
        happened=[events.StepFailed("s", Json('{"message":"forged"}'))],
        at=1,
    )
    rows[5] = Row(EXECUTION, 6, "step.failed", forged.payload, 1, forged.hash)

    broken = chain.first_break(EXECUTION, rows)

    assert broken is not None
    assert broken.seq == 7
