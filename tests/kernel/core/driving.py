"""A run driven by hand: commands in, events folded, no kernel and no store."""

from dataclasses import replace

from proctor.wire.calls import Lease, StepReply
from proctor.wire.words import Decision, Idempotency, StepKind
from proctor_kernel.core import chain, event_json, identity
from proctor_kernel.core.commands import (
    Answers,
    ClaimDispatch,
    Claimed,
    Command,
    CreateExecution,
    Raised,
    Reply,
    Returned,
    Ruling,
    SettleStep,
    SubmitStep,
)
from proctor_kernel.core.decide import decide, question
from proctor_kernel.core.evolve import evolve
from proctor_kernel.core.identity import Json
from proctor_kernel.core.state import State

EXECUTION = "018f3a2b-4c5d-7e6f-8a9b-0c1d2e3f4a5b"
DISPATCH = "01920000-0000-7000-8000-000000000001"

ALLOW = Ruling(Decision.ALLOW, "", ("all",), "h" * 64, labels=("seen",))
DENY = Ruling(Decision.DENY, "not here", ("no", "no-too"), "h" * 64)


class Run:
    """One run, its log, and what the policies would say of a new call."""

    def __init__(self, ruling: Ruling = ALLOW) -> None:
        self.ruling = ruling
        self.state = State(EXECUTION)
        self.log: list[chain.Record] = []
        self.asked = 0
        self.now = 0

    def apply(self, command: Command) -> Reply:
        """Do what the kernel does with a command, without writing anything down."""
        asked = question(self.state, command)
        self.asked += asked is not None
        self.now += 1
        new_id = f"01920000-0000-7000-8000-{self.now:012}" if self.now > 1 else DISPATCH
        answers = Answers(self.now, new_id, None if asked is None else self.ruling)
        outcome = decide(self.state, command, answers)
        records = chain.link(
            EXECUTION,
            seq=self.state.seq,
            head=self.state.head,
            happened=outcome.events,
            at=self.now,
        )
        state = self.state
        for record in records:
            state = evolve(state, record)
        self.log += records
        if outcome.note is not None and state.attempt is not None:
            state = replace(state, attempt=state.attempt.asked(outcome.note))
        self.state = state
        return outcome.reply

    def created(self) -> "Run":
        self.apply(CreateExecution("researcher", Json('{"q":1}')))
        return self

    def claim(self, fruitless_max: int = 5) -> Lease:
        reply = self.apply(ClaimDispatch(fruitless_max))
        assert isinstance(reply, Claimed), reply
        return reply.lease

    def happened(self, since: int = 0) -> list[str]:
        return [event_json.name(record.event) for record in self.log[since:]]


def submit(
    lease: Lease,
    target: str = "search",
    *,
    args: str = "{}",
    kind: StepKind = StepKind.TOOL_CALL,
    idempotency: Idempotency = Idempotency.SAFE_TO_RETRY,
    request_id: str | None = None,
) -> SubmitStep:
    canonical = identity.canonical(args)
    return SubmitStep(
        lease, kind, target, canonical, identity.args_hash(canonical), idempotency, request_id
    )


def succeed(lease: Lease, step_id: str, result: str = '"done"') -> SettleStep:
    return SettleStep(lease, step_id, Returned(Json(result)))


def fail(lease: Lease, step_id: str, error: str = '{"message":"no"}') -> SettleStep:
    return SettleStep(lease, step_id, Raised(Json(error)))


def answered(reply: Reply) -> StepReply:
    assert isinstance(reply, StepReply), reply
    return reply


def step_of(reply: Reply) -> str:
    step_id = answered(reply).step_id
    assert step_id is not None
    return step_id
