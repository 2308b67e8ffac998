"""What may be asked of a run, and what is needed to answer it.

Commands come from outside, already checked for form. A `Question` is what the core cannot
know by itself; `Answers` is all that it is told: verdict, time, a new id.
"""

from dataclasses import dataclass

from immutables import Map

from proctor.wire.calls import Capture, CaptureFailure, Lease, StepReply
from proctor.wire.words import Decision, ErrorCode, Idempotency, Reason, StepKind
from proctor_kernel.core.approvals import Gate
from proctor_kernel.core.events import Event
from proctor_kernel.core.identity import Json
from proctor_kernel.core.resources import Resource
from proctor_kernel.core.state import Note, Step, Tally


@dataclass(frozen=True, slots=True)
class CreateExecution:
    """Start a run and queue its first delivery; a run of a session waits for its turn."""

    agent_id: str
    input: Json
    session: str | None = None
    parent_execution_id: str | None = None
    idempotency_key: str | None = None
    spawned_by: tuple[str, str] | None = None
    created_by: str | None = None
    on_behalf_of: str | None = None
    deadline_at: int | None = None
    inherited: tuple[Event, ...] = ()
    """Resources of the parent, as `resources.inherited` tells them."""


@dataclass(frozen=True, slots=True)
class ForkExecution:
    """Start a run as a copy of another up to one of its events: `copied`, by `forks.copied`."""

    created: Event
    forked: Event
    copied: tuple[Event, ...]
    session: str | None


@dataclass(frozen=True, slots=True)
class StartExecution:
    """It is the turn of a run that waited in its session."""

    parent_execution_id: str | None
    carried: Json | None
    inherited: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimDispatch:
    """Begin the next attempt; it takes the run over from the attempt before it.

    `fruitless_attempts_max`: attempts in a row that may end without a step being recorded,
    before the run fails as `dispatch_exhausted`. `expected`: the dispatch and the attempt that
    are due; when another kernel was first, nothing happens. None: whatever there is.
    """

    fruitless_attempts_max: int
    lease_micros: int = 0
    expected: Lease | None = None


@dataclass(frozen=True, slots=True)
class AcknowledgeDispatch:
    """The agent took the delivery."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class FailDispatch:
    """The agent did not take the delivery."""

    lease: Lease
    error: str
    retry_at: int
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
    resources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Returned:
    """A body or a handler returned this value."""

    value: Json
    state: Json | None = None
    """What a handler leaves for the run that follows."""


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
    """Record the outcome of a body, with the checkpoints that its drivers made after it."""

    lease: Lease
    step_id: str
    outcome: Returned | Raised
    captures: tuple[Capture, ...] = ()
    capture_failures: tuple[CaptureFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class SpawnExecution:
    """The body of a step starts a run of another agent; its id, if it does so for the first time.

    `session`: the one that the new run would be in.
    """

    step_id: str
    execution_id: str
    session: str | None


@dataclass(frozen=True, slots=True)
class SettleSubagent:
    """The run that a step waits for has ended."""

    step_id: str
    execution_id: str
    outcome: Returned | Raised


@dataclass(frozen=True, slots=True)
class Suspend:
    """All that the attempt has under way waits: it stops."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Grant:
    """A person agrees. `groups` are theirs, as their credentials say."""

    by: str
    groups: tuple[str, ...] = ()
    rationale: str = ""


@dataclass(frozen=True, slots=True)
class Deny:
    """A person says no."""

    by: str
    groups: tuple[str, ...] = ()
    rationale: str = ""


@dataclass(frozen=True, slots=True)
class Expire:
    """Nobody decided in time."""


@dataclass(frozen=True, slots=True)
class DecideApproval:
    """What becomes of an approval."""

    approval_id: str
    resolution: Grant | Deny | Expire


@dataclass(frozen=True, slots=True)
class RegisterResource:
    """The agent holds a resource; a known one is found again."""

    lease: Lease
    key: str
    driver_id: str
    configuration: Json
    coverage_reuse: bool
    every_steps: int
    on_completion: bool


@dataclass(frozen=True, slots=True)
class BindResource:
    """Where the live resource is found again."""

    lease: Lease
    key: str
    binding: Json


@dataclass(frozen=True, slots=True)
class PublishCheckpoints:
    """Checkpoints that drivers made between calls."""

    lease: Lease
    captures: tuple[Capture, ...]
    capture_failures: tuple[CaptureFailure, ...]


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
    CreateExecution
    | ForkExecution
    | StartExecution
    | ClaimDispatch
    | AcknowledgeDispatch
    | FailDispatch
    | SubmitStep
    | SettleStep
    | SpawnExecution
    | SettleSubagent
    | Suspend
    | DecideApproval
    | RegisterResource
    | BindResource
    | PublishCheckpoints
    | FinishExecution
    | CancelExecution
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
    user: str | None = None
    bundle: str | None = None
    """Rules that came with the run and must allow the call too."""
    lifted: tuple[Gate, ...] = ()
    """Gates that people have lifted for this call."""
    may_wait: bool = False
    """A limit with a wait may put the run off: nothing else of it is under way."""


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
    gates: tuple[Gate, ...] = ()
    """What people must lift, when an approval is required."""
    wait_until: int | None = None
    """When a limit has room again, where its rule lets the run wait for that."""


@dataclass(frozen=True, slots=True)
class Answers:
    """All that the core is told: the time, an id nobody has, a ruling where it asked."""

    now: int
    new_id: str = ""
    ruling: Ruling | None = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """An attempt has begun under this lease."""

    lease: Lease
    agent_id: str
    input: Json


@dataclass(frozen=True, slots=True)
class Spawned:
    """The step waits for this run, now or since it first asked."""

    execution_id: str


@dataclass(frozen=True, slots=True)
class Suspended:
    """Whether the attempt has to stop: False when nothing waits any more."""

    suspended: bool


@dataclass(frozen=True, slots=True)
class Registered:
    """A resource as it stands."""

    resource: Resource


@dataclass(frozen=True, slots=True)
class Done:
    """The command took effect and has no more to say."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The command does not fit the run; nothing changed, unless events say that time did it."""

    code: ErrorCode
    message: str


Reply = StepReply | Claimed | Spawned | Suspended | Registered | Done | Rejected


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command comes to: events to record, and the answer once they are durable."""

    events: tuple[Event, ...]
    reply: Reply
    note: Note | None = None
    """What the attempt asked, where the events do not tell it."""
