"""What a command comes to: the tables of protocol sections 1.3, 5.1 and 5.2."""

import json
from dataclasses import replace

import pytest
from tests.kernel.core.driving import (
    ALLOW,
    DENY,
    EXECUTION,
    Run,
    answered,
    fail,
    step_of,
    submit,
    succeed,
)

from proctor.wire.calls import Lease, StepReply
from proctor.wire.words import Answer, Decision, ErrorCode, Idempotency, Reason, StepStatus
from proctor_kernel.core.commands import (
    CancelExecution,
    ClaimDispatch,
    Claimed,
    Done,
    FinishExecution,
    GaveUp,
    Rejected,
    Returned,
    Ruling,
)
from proctor_kernel.core.evolve import fold
from proctor_kernel.core.identity import Json

SAFE, ONCE = Idempotency.SAFE_TO_RETRY, Idempotency.AT_MOST_ONCE


def test_an_allowed_call_proceeds_and_its_ruling_is_on_record() -> None:
    run = Run().created()
    lease = run.claim()

    reply = answered(run.apply(submit(lease)))

    assert reply.decision is Answer.PROCEED
    assert run.happened(since=4) == ["step.proposed", "step.allowed", "step.executing"]
    step = run.state.steps[step_of(reply)]
    assert (step.decision, step.rule_ids, step.ruleset) == (Decision.ALLOW, ("all",), "h" * 64)


def test_a_call_over_a_limit_becomes_no_step_and_is_asked_about_again() -> None:
    run = Run(Ruling(Decision.RATE_LIMITED, "slow down", ("limit",), "h")).created()
    lease = run.claim()

    limited = answered(run.apply(submit(lease)))
    run.ruling = ALLOW
    allowed = answered(run.apply(submit(lease)))

    assert (limited.decision, limited.reason, limited.step_id) == (
        Answer.RATE_LIMITED,
        "slow down",
        None,
    )
    assert run.happened(since=4)[0] == "step.rate_limited"
    assert allowed.decision is Answer.PROCEED
    assert run.state.steps[step_of(allowed)].occurrence == 0


@pytest.mark.parametrize("decision", [Decision.DENY, Decision.REQUIRE_APPROVAL])
def test_whatever_is_not_an_allow_denies(decision: Decision) -> None:
    run = Run(Ruling(decision, "not here", ("no", "no-too"), "h" * 64)).created()
    lease = run.claim()

    reply = answered(run.apply(submit(lease)))

    assert (reply.decision, reply.reason, reply.rule_id) == (Answer.DENIED, "not here", "no")
    assert run.happened(since=4) == ["step.proposed", "step.denied"]
    assert run.state.steps[step_of(reply)].rule_ids == ("no", "no-too")


EXISTING = [
    pytest.param("succeeded", SAFE, Answer.REPLAY, [], id="succeeded"),
    pytest.param("succeeded", ONCE, Answer.REPLAY, [], id="succeeded at most once"),
    pytest.param("failed", SAFE, Answer.REPLAY, [], id="failed"),
    pytest.param("failed", ONCE, Answer.REPLAY, [], id="failed at most once"),
    pytest.param("denied", SAFE, Answer.DENIED, [], id="denied"),
    pytest.param("denied", ONCE, Answer.DENIED, [], id="denied at most once"),
    pytest.param("executing", SAFE, Answer.PROCEED, ["step.executing"], id="executing"),
    pytest.param("executing", ONCE, Answer.REPLAY, ["step.failed"], id="executing at most once"),
]


@pytest.mark.parametrize(("recorded", "idempotency", "expected", "happened"), EXISTING)
def test_a_call_that_the_next_attempt_makes_again_is_answered_from_the_record(
    recorded: str, idempotency: Idempotency, expected: Answer, happened: list[str]
) -> None:
    run = Run(DENY if recorded == "denied" else ALLOW).created()
    first = run.claim()
    step_id = step_of(run.apply(submit(first)))
    if recorded == "succeeded":
        run.apply(succeed(first, step_id, '{"n":1.0}'))
    elif recorded == "failed":
        run.apply(fail(first, step_id))
    asked = run.asked
    second = run.claim()
    since = len(run.log)

    reply = answered(run.apply(submit(second, idempotency=idempotency)))

    assert (reply.decision, reply.step_id) == (expected, step_id)
    assert run.happened(since) == happened
    assert run.asked == asked
    match recorded:
        case "succeeded":
            assert (reply.result_json, reply.error_json) == ('{"n":1.0}', None)
        case "failed":
            assert (reply.result_json, reply.error_json) == (None, '{"message":"no"}')
        case "denied":
            assert (reply.reason, reply.rule_id) == ("not here", "no")
        case "executing" if idempotency is ONCE:
            assert json.loads(str(reply.error_json))["reason"] == "indeterminate"


def test_a_call_whose_outcome_is_unknown_is_not_tried_again_in_this_run() -> None:
    run = Run().created()
    run.apply(submit(run.claim(), idempotency=ONCE))
    lease = run.claim()
    run.apply(submit(lease, idempotency=ONCE))
    asked = run.asked

    refused = answered(run.apply(submit(lease, idempotency=ONCE)))
    other = answered(run.apply(submit(lease, args='{"other":1}', idempotency=ONCE)))

    assert refused.decision is Answer.DENIED
    assert refused.reason == "prior attempt outcome unknown; retry refused"
    assert refused.rule_id == "__indeterminate_retry"
    assert other.decision is Answer.PROCEED
    assert run.asked == asked + 1


def test_an_agent_that_does_not_know_the_outcome_itself_is_not_tried_again_either() -> None:
    run = Run().created()
    lease = run.claim()
    step_id = step_of(run.apply(submit(lease, idempotency=ONCE)))
    run.apply(fail(lease, step_id, '{"reason":"indeterminate"}'))

    refused = answered(run.apply(submit(lease, idempotency=ONCE)))

    assert refused.rule_id == "__indeterminate_retry"


def test_the_same_call_twice_is_two_steps_and_each_attempt_counts_from_the_start() -> None:
    run = Run().created()
    first = run.claim()
    ids = [step_of(run.apply(submit(first))) for _ in range(3)]
    second = run.claim()
    again = [step_of(run.apply(submit(second))) for _ in range(3)]

    assert len(set(ids)) == 3
    assert again == ids
    assert [run.state.steps[step_id].occurrence for step_id in ids] == [0, 1, 2]


@pytest.mark.parametrize("recorded", ["executing", "succeeded", "failed", "denied", "replayed"])
def test_a_submit_that_is_sent_again_is_the_same_step(recorded: str) -> None:
    run = Run(DENY if recorded == "denied" else ALLOW).created()
    lease = run.claim()
    if recorded == "replayed":
        run.apply(succeed(lease, step_of(run.apply(submit(lease, idempotency=ONCE)))))
        lease = run.claim()
    command = submit(lease, idempotency=ONCE, request_id="r1")
    first = answered(run.apply(command))
    if recorded == "succeeded":
        run.apply(succeed(lease, step_of(first)))
    elif recorded == "failed":
        run.apply(fail(lease, step_of(first)))
    since = len(run.log)

    again = answered(run.apply(command))
    next_call = answered(run.apply(submit(lease, idempotency=ONCE, request_id="r2")))

    assert again.step_id == first.step_id
    assert run.happened(since)[:1] in ([], ["step.proposed"])
    if recorded in ("executing", "denied", "replayed"):
        assert again == first
    assert next_call.step_id != first.step_id
    assert run.state.steps[step_of(next_call)].occurrence == 1


def test_a_request_id_does_not_carry_another_call() -> None:
    run = Run().created()
    lease = run.claim()
    run.apply(submit(lease, request_id="r1"))
    since = len(run.log)

    reply = run.apply(submit(lease, "shell", request_id="r1"))

    assert isinstance(reply, Rejected)
    assert reply.code is ErrorCode.CONFLICT
    assert run.happened(since) == []


def test_a_submit_whose_recording_looked_failed_is_found_when_sent_again() -> None:
    run = Run().created()
    lease = run.claim()
    memory = run.state.attempt
    command = submit(lease, idempotency=ONCE, request_id="r1")
    first = answered(run.apply(command))
    forgetful = Run()
    forgetful.log = run.log
    known = fold(EXECUTION, run.log)
    assert known.attempt is not None
    assert memory is not None
    forgetful.state = replace(known, attempt=known.attempt.merged(memory))

    again = answered(forgetful.apply(command))
    next_call = answered(forgetful.apply(submit(lease, idempotency=ONCE, request_id="r2")))

    assert again == first
    assert forgetful.state.steps[step_of(next_call)].occurrence == 1


STALE = Lease("01920000-0000-7000-8000-000000000009", 1)


@pytest.mark.parametrize("stale", [STALE, "earlier attempt", "later attempt"])
def test_only_the_attempt_that_holds_the_run_may_act(stale: Lease | str) -> None:
    run = Run().created()
    first = run.claim()
    step_id = step_of(run.apply(submit(first)))
    second = run.claim()
    match stale:
        case "earlier attempt":
            stale = first
        case "later attempt":
            stale = Lease(second.dispatch_id, second.attempt + 1)
    assert isinstance(stale, Lease)
    before = run.state

    replies = [
        run.apply(submit(stale)),
        run.apply(succeed(stale, step_id)),
        run.apply(fail(stale, step_id)),
        run.apply(FinishExecution(stale, Returned(Json("1")))),
        run.apply(FinishExecution(stale, GaveUp("no"))),
    ]

    assert [getattr(reply, "code", None) for reply in replies] == [ErrorCode.LEASE_SUPERSEDED] * 5
    assert run.state == before


def test_a_kernel_that_did_not_see_the_attempt_begin_does_not_guess_its_counts() -> None:
    run = Run().created()
    lease = run.claim()
    run.apply(submit(lease))
    elsewhere = Run()
    elsewhere.state = replace(fold(EXECUTION, run.log), attempt=None)

    reply = elsewhere.apply(submit(lease))

    assert isinstance(reply, Rejected)
    assert reply.code is ErrorCode.LEASE_SUPERSEDED


def test_settling_checks_in_the_protocols_order() -> None:
    run = Run().created()
    lease = run.claim()
    step_id = step_of(run.apply(submit(lease)))

    unknown = run.apply(succeed(STALE, "0" * 64))
    recorded = answered(run.apply(succeed(lease, step_id, "1")))
    twice = answered(run.apply(fail(STALE, step_id)))
    run.apply(FinishExecution(lease, Returned(Json("null"))))
    late = answered(run.apply(succeed(STALE, step_id, "2")))

    assert isinstance(unknown, Rejected)
    assert unknown.code is ErrorCode.NOT_FOUND
    assert recorded.decision is Answer.RECORDED
    assert (twice.decision, twice.result_json) == (Answer.REPLAY, "1")
    assert late.decision is Answer.EXECUTION_TERMINAL


def test_a_step_that_never_ran_cannot_be_settled() -> None:
    run = Run(DENY).created()
    lease = run.claim()
    step_id = step_of(run.apply(submit(lease)))

    reply = answered(run.apply(succeed(lease, step_id)))

    assert reply.decision is Answer.REPLAY
    assert run.state.steps[step_id].status is StepStatus.DENIED


@pytest.mark.parametrize(
    ("command", "ended", "error"),
    [
        pytest.param(
            lambda lease: FinishExecution(lease, Returned(Json("7"))),
            "execution.completed",
            "execution_completed",
            id="completed",
        ),
        pytest.param(
            lambda lease: FinishExecution(lease, GaveUp("agent_error: X: no")),
            "execution.failed",
            "execution_failed",
            id="failed",
        ),
        pytest.param(
            lambda _: CancelExecution(Reason.CLIENT_CANCELLED),
            "execution.cancelled",
            "execution_cancelled",
            id="cancelled",
        ),
    ],
)
def test_the_end_of_a_run_closes_what_is_under_way(command, ended: str, error: str) -> None:
    run = Run().created()
    lease = run.claim()
    under_way = [step_of(run.apply(submit(lease))) for _ in range(2)]
    done = step_of(run.apply(submit(lease)))
    run.apply(succeed(lease, done))
    since = len(run.log)

    reply = run.apply(command(lease))

    assert reply == Done()
    assert run.happened(since) == [ended, "step.cancelled", "step.cancelled"]
    assert run.state.executing == frozenset()
    for step_id in under_way:
        assert run.state.steps[step_id].error == f'{{"reason":"{error}"}}'
    assert answered(run.apply(submit(lease))).decision is Answer.EXECUTION_TERMINAL
    for late in (
        FinishExecution(lease, Returned(Json("8"))),
        ClaimDispatch(5),
    ):
        rejected = run.apply(late)
        assert isinstance(rejected, Rejected)
        assert rejected.code is ErrorCode.EXECUTION_TERMINAL
    again = run.apply(CancelExecution(Reason.CLIENT_CANCELLED))
    assert isinstance(again, Rejected)
    assert again.code is ErrorCode.CONFLICT


def test_a_run_that_no_attempt_gets_anywhere_with_fails_as_exhausted() -> None:
    run = Run().created()
    for _ in range(3):
        run.claim(fruitless_max=3)

    reply = run.apply(ClaimDispatch(3))

    assert isinstance(reply, Rejected)
    assert run.state.failure_reason == "dispatch_exhausted"
    assert run.happened()[-1] == "execution.failed"


def test_attempts_that_record_something_do_not_exhaust_a_run() -> None:
    run = Run().created()
    for number in range(20):
        run.apply(submit(run.claim(fruitless_max=2), args=f"[{number}]"))

    assert not run.state.is_terminal


def test_a_body_that_kills_its_process_each_time_uses_the_attempts_up() -> None:
    run = Run().created()
    attempts = 0
    while not run.state.is_terminal:
        reply = run.apply(ClaimDispatch(3))
        if isinstance(reply, Claimed):
            attempts += 1
            run.apply(submit(reply.lease))

    assert attempts == 4  # the first of them recorded the step
    assert run.state.failure_reason == "dispatch_exhausted"


def test_recorded_steps_that_the_last_attempt_did_not_propose_are_named_in_order() -> None:
    run = Run().created()
    first = run.claim()
    ids = [step_of(run.apply(submit(first, args=f"[{number}]"))) for number in range(4)]
    for step_id in ids:
        run.apply(succeed(first, step_id))
    second = run.claim()
    run.apply(submit(second, args="[2]"))
    run.apply(submit(second, args="[9]"))

    run.apply(FinishExecution(second, Returned(Json("null"))))

    assert run.state.passed_over == (ids[0], ids[1], ids[3])


def test_rules_see_what_ran_before_and_labels_from_the_moment_a_tool_starts() -> None:
    from proctor_kernel.core.decide import question

    run = Run().created()
    lease = run.claim()
    run.apply(submit(lease, "read"))
    run.ruling = DENY
    run.apply(submit(lease, "mail"))

    asked = question(run.state, submit(lease, "read", args="[1]"))

    assert asked is not None
    assert asked.tally.tools == {"read"}
    assert asked.tally.labels == {"seen"}
    assert (asked.tally.steps, asked.tally.tool_calls, asked.tally.denials) == (1, 1, 1)
    assert dict(asked.tally.calls) == {"read": 1}


def test_nothing_can_be_asked_of_a_run_that_does_not_exist() -> None:
    lease = Lease("d", 1)
    for command in (
        submit(lease),
        ClaimDispatch(5),
        FinishExecution(lease, Returned(Json("1"))),
        CancelExecution(Reason.CLIENT_CANCELLED),
        succeed(lease, "s"),
    ):
        run = Run()
        reply = run.apply(command)
        assert isinstance(reply, Rejected)
        assert reply.code is ErrorCode.NOT_FOUND
        assert run.log == []


def test_a_run_is_created_once() -> None:
    run = Run().created()
    since = len(run.log)

    run.created()

    assert run.happened(since) == []


def test_the_published_client_needs_no_request_id() -> None:
    run = Run().created()
    lease = run.claim()

    replies = [run.apply(submit(lease)), run.apply(submit(lease))]

    assert all(isinstance(reply, StepReply) for reply in replies)
    assert len({step_of(reply) for reply in replies}) == 2
