"""Everything that can happen to a run: a closed union of frozen dataclasses.

An event's name is `TYPES`' key (protocol 4.2). Ours beside the protocol's: `dispatch.claimed`
numbers the attempts, `step.spawned` names the subagent of a step, `approval.voted` is one of
several people who must agree. `event_json` writes and reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from proctor.wire.words import Decision, Idempotency, Reason, StepKind
from proctor_kernel.core.identity import Json


@dataclass(frozen=True, slots=True)
class ExecutionCreated:
    """A client asked for a run."""

    agent_id: str
    input: Json
    session: str | None = None
    """Runs of one session take turns, and what one has read taints the next (protocol 4.5)."""
    parent_execution_id: str | None = None
    idempotency_key: str | None = None
    spawned_by_execution: str | None = None
    spawned_by_step: str | None = None
    created_by: str | None = None
    """The authenticated principal that asked."""
    on_behalf_of: str | None = None
    deadline_at: int | None = None
    bundle: str | None = None
    """Rules that came with the run and must allow its calls too; their text."""


@dataclass(frozen=True, slots=True)
class ExecutionForked:
    """The run begins as a copy of another up to one of its events (protocol 4.6)."""

    source_execution_id: str
    fork_seq: int
    policy_override: bool
    restoration: Json | None = None


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    """The run may be delivered to its agent.

    `carried`: what earlier runs of its session had done, as `Tally` is written.
    """

    parent_execution_id: str | None = None
    carried: Json | None = None


@dataclass(frozen=True, slots=True)
class ExecutionBlocked:
    """A step waits for somebody and nothing else is under way."""

    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class ExecutionResumed:
    """No step waits any more."""


@dataclass(frozen=True, slots=True)
class ExecutionCompleted:
    """The handler returned `output`. `passed_over`: recorded steps that it did not propose."""

    output: Json
    passed_over: tuple[str, ...] = ()
    state: Json | None = None
    """What the agent leaves for the run that follows (protocol 1.2, `previous`)."""


@dataclass(frozen=True, slots=True)
class ExecutionFailed:
    """The handler raised, or could not be reached (protocol 10.3)."""

    reason: str
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutionCancelled:
    """Somebody or something ended the run."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class DispatchQueued:
    """A delivery to the agent is due; at once, or at a later time."""

    dispatch_id: str
    due_at: int | None = None


@dataclass(frozen=True, slots=True)
class DispatchClaimed:
    """An attempt to deliver began; every earlier attempt of the run has lost its lease."""

    dispatch_id: str
    attempt: int
    lease_micros: int = 0
    """How long the attempt may be silent before another takes over; 0: it never is."""


@dataclass(frozen=True, slots=True)
class DispatchAcked:
    """The agent took the delivery."""

    dispatch_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class DispatchFailed:
    """The agent did not take the delivery; the next attempt is due at `retry_at`."""

    dispatch_id: str
    attempt: int
    error: str
    retry_at: int


@dataclass(frozen=True, slots=True)
class DispatchDiscarded:
    """Nobody acts under this dispatch any more."""

    dispatch_id: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class StepProposed:
    """An agent asked whether a call may run."""

    step_id: str
    kind: StepKind
    target: str
    args: Json
    args_hash: str
    occurrence: int
    idempotency: Idempotency
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class StepAllowed:
    """The policies allow the call."""

    step_id: str
    decision: Decision
    reason: str
    rule_ids: tuple[str, ...]
    ruleset: str
    policy_micros: int
    errors: tuple[str, ...] = ()
    shadow: tuple[str, ...] = ()
    """Rules on trial that would have forbidden it."""


@dataclass(frozen=True, slots=True)
class StepDenied:
    """The call may not run. `ruleset` is empty when no rule was asked."""

    step_id: str
    decision: Decision
    reason: str
    rule_ids: tuple[str, ...]
    ruleset: str
    policy_micros: int
    errors: tuple[str, ...] = ()
    shadow: tuple[str, ...] = ()
    """Rules on trial that would have forbidden it."""


@dataclass(frozen=True, slots=True)
class StepAwaitingApproval:
    """The call may run only when people agree to it."""

    step_id: str
    decision: Decision
    reason: str
    rule_ids: tuple[str, ...]
    ruleset: str
    policy_micros: int
    errors: tuple[str, ...] = ()
    shadow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRateLimited:
    """A limit was used up, so the call became no step: proposed again, it is asked again."""

    kind: StepKind
    target: str
    args: Json
    args_hash: str
    reason: str
    rule_ids: tuple[str, ...]
    ruleset: str
    policy_micros: int
    errors: tuple[str, ...] = ()
    shadow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepExecuting:
    """The body was told to run; again, when an earlier attempt left it without an outcome.

    `labels` go on the session from this moment.
    """

    step_id: str
    labels: tuple[str, ...] = ()
    request_id: str | None = None
    resources: tuple[str, ...] = ()
    """Resources that the call names: they count its steps."""
    generations: Json | None = None
    """Object: each resource that the call may change -> its generation from here on."""


@dataclass(frozen=True, slots=True)
class StepSpawned:
    """The body started a run of another agent and waits for it."""

    step_id: str
    execution_id: str


@dataclass(frozen=True, slots=True)
class StepSucceeded:
    """The body returned `result`; a model call also what it used, where that could be read."""

    step_id: str
    result: Json
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The body raised, or its outcome is unknown and it may not run again."""

    step_id: str
    error: Json


@dataclass(frozen=True, slots=True)
class StepCancelled:
    """The run ended while the body was under way."""

    step_id: str
    error: Json


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """People are asked to lift the gates of a call. `gates` as `approvals` writes them."""

    approval_id: str
    step_id: str
    gates: Json
    expires_at: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalVoted:
    """Somebody agreed, and more people have to."""

    approval_id: str
    step_id: str
    by: str
    groups: tuple[str, ...] = ()
    rationale: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalGranted:
    """As many as have to have agreed; `by` was the last."""

    approval_id: str
    step_id: str
    by: str
    groups: tuple[str, ...] = ()
    rationale: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalDenied:
    """Somebody who was asked said no."""

    approval_id: str
    step_id: str
    by: str
    rationale: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalExpired:
    """Nobody decided in time, or the run ended first."""

    approval_id: str
    step_id: str
    rationale: Reason


@dataclass(frozen=True, slots=True)
class ResourceRegistered:
    """The agent holds something with a state of its own (protocol 4.7)."""

    key: str
    driver_id: str
    configuration: Json
    coverage_reuse: bool
    every_steps: int
    on_completion: bool


@dataclass(frozen=True, slots=True)
class ResourceInitialized:
    """The resource begins anew, from a checkpoint where there is one."""

    key: str
    generation: int
    checkpoint_ref: str | None = None


@dataclass(frozen=True, slots=True)
class ResourceBound:
    """Where the live resource is found again."""

    key: str
    binding: Json


@dataclass(frozen=True, slots=True)
class ResourceCheckpointed:
    """The resource was saved as it stood after `covered_seq`."""

    key: str
    generation: int
    checkpoint_ref: str
    covered_seq: int


@dataclass(frozen=True, slots=True)
class ResourceCheckpointFailed:
    """The resource was not saved, or what was saved is of no use."""

    key: str
    generation: int
    error: str


StepEvent = (
    StepProposed
    | StepAllowed
    | StepDenied
    | StepAwaitingApproval
    | StepExecuting
    | StepSpawned
    | StepSucceeded
    | StepFailed
    | StepCancelled
)
ExecutionEvent = (
    ExecutionCreated
    | ExecutionForked
    | ExecutionStarted
    | ExecutionBlocked
    | ExecutionResumed
    | ExecutionCompleted
    | ExecutionFailed
    | ExecutionCancelled
)
DispatchEvent = (
    DispatchQueued | DispatchClaimed | DispatchAcked | DispatchFailed | DispatchDiscarded
)
ApprovalEvent = (
    ApprovalRequested | ApprovalVoted | ApprovalGranted | ApprovalDenied | ApprovalExpired
)
ResourceEvent = (
    ResourceRegistered
    | ResourceInitialized
    | ResourceBound
    | ResourceCheckpointed
    | ResourceCheckpointFailed
)
Event = ExecutionEvent | DispatchEvent | StepEvent | StepRateLimited | ApprovalEvent | ResourceEvent

TYPES: Final[Mapping[str, type[Event]]] = MappingProxyType(
    {
        "execution.created": ExecutionCreated,
        "execution.forked": ExecutionForked,
        "execution.started": ExecutionStarted,
        "execution.blocked": ExecutionBlocked,
        "execution.resumed": ExecutionResumed,
        "execution.completed": ExecutionCompleted,
        "execution.failed": ExecutionFailed,
        "execution.cancelled": ExecutionCancelled,
        "dispatch.queued": DispatchQueued,
        "dispatch.claimed": DispatchClaimed,
        "dispatch.acked": DispatchAcked,
        "dispatch.failed": DispatchFailed,
        "dispatch.discarded": DispatchDiscarded,
        "step.proposed": StepProposed,
        "step.allowed": StepAllowed,
        "step.denied": StepDenied,
        "step.rate_limited": StepRateLimited,
        "step.awaiting_approval": StepAwaitingApproval,
        "step.executing": StepExecuting,
        "step.spawned": StepSpawned,
        "step.succeeded": StepSucceeded,
        "step.failed": StepFailed,
        "step.cancelled": StepCancelled,
        "approval.requested": ApprovalRequested,
        "approval.voted": ApprovalVoted,
        "approval.granted": ApprovalGranted,
        "approval.denied": ApprovalDenied,
        "approval.expired": ApprovalExpired,
        "resource.registered": ResourceRegistered,
        "resource.initialized": ResourceInitialized,
        "resource.bound": ResourceBound,
        "resource.checkpointed": ResourceCheckpointed,
        "resource.checkpoint_failed": ResourceCheckpointFailed,
    }
)
