"""What may be asked of a run, and what is needed to answer it.

Commands come from outside, already checked for form. A `Question` is what the core cannot
know by itself; `Answers` is all that it is told: verdict, time, ids.
"""

from dataclasses import dataclass

from immutables import Map

from proctor.wire.calls import Lease, StepReply
from proctor.wire.words import Decision, ErrorCode, Idempotency, Reason, StepKind
from proctor_kernel.core.events import Event
from proctor_kernel.core.identity import Json
from proctor_kernel.core.state import Attempt, Step, Tally


@dataclass(frozen=True, slots=True)
class CreateExecution:
    """Start a run and queue its first delivery."""

    agent_id: str
    input: Json
    dispatch_id: str


@dataclass(frozen=True, slots=True)
class ClaimDispatch:
    """Begin the next attempt; it takes the run over from the attempt before it.

    `fruitless_attempts_max`: attempts in a row that may end without a step being recorded,
    before the run fails as `dispatch_exhausted`.
    """

    fruitless_attempts_max: int


@dataclass(frozen=True, slots=True)
class SubmitStep:
    """May this body run? `args` are canonical, `args_hash` is theirs."""

    lease: Lease
    kind: StepKind
    target: str
    args: Json
    args_hash: str
    idempotency: Idempotency
    request_id: str | None


@dataclass(frozen=True, slots=True)
class Returned:
    """A body or a handler returned this value."""

    value: Json


@dataclass(frozen=True, slots=True)
class Raised:
    """A body raised; `error` is a JSON object with a `message`."""

    error: Json


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A handler raised; `reason` as protocol 10.3 spells it."""

    reason: str


@dataclass(frozen=True, slots=True)
class SettleStep:
    """Record the outcome of a body."""

    lease: Lease
    step_id: str
    outcome: Returned | Raised


@dataclass(frozen=True, slots=True)
class FinishExecution:
    """Record the outcome of the handler and end the run."""

    lease: Lease
    outcome: Returned | GaveUp


@dataclass(frozen=True, slots=True)
class CancelExecution:
    """End the run from outside."""

    reason: Reason


Command = (
    CreateExecution | ClaimDispatch | SubmitStep | SettleStep | FinishExecution | CancelExecution
)


@dataclass(frozen=True, slots=True)
class Question:
    """A call that only the policies can answer."""

    execution_id: str
    step_id: str
    """Whoever reserves something for this call does it under this id, so only once."""
    agent_id: str
    kind: StepKind
    target: str
    args: Json
    idempotency: Idempotency
    input: Json
    steps: Map[str, Step]
    finished: Map[int, str]
    """As `State` has them: what the run has read before this call."""
    tally: Tally
    started_at: int


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the policies said. `labels` go on the session when the call starts."""

    decision: Decision
    reason: str
    rule_ids: tuple[str, ...]
    ruleset: str
    policy_micros: int = 0
    errors: tuple[str, ...] = ()
    shadow: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answers:
    """All that the core is told about the world: the time, and a ruling where it asked."""

    now: int
    ruling: Ruling | None = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """An attempt has begun under this lease."""

    lease: Lease
    agent_id: str
    input: Json


@dataclass(frozen=True, slots=True)
class Done:
    """The command took effect and has no more to say."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The command does not fit the run; nothing changed."""

    code: ErrorCode
    message: str


Reply = StepReply | Claimed | Done | Rejected


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command comes to: events to record, and the answer once they are durable."""

    events: tuple[Event, ...]
    reply: Reply
    attempt: Attempt | None
    """Memory of the attempt after this command."""
