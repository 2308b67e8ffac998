"""Every legal move of an execution, a step, a dispatch and an approval, as tables.

`evolve` looks each move up here; a missing row is an illegal move. Source: protocol 4.1.
A key of None is "does not exist yet".
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from proctor.wire.words import ApprovalStatus, DispatchStatus, ExecutionStatus, StepStatus
from proctor_kernel.core import events

EXECUTION: Final[Mapping[ExecutionStatus | None, Mapping[type[events.Event], ExecutionStatus]]] = (
    MappingProxyType(
        {
            None: {events.ExecutionCreated: ExecutionStatus.PENDING},
            ExecutionStatus.PENDING: {
                events.ExecutionForked: ExecutionStatus.PENDING,
                events.ExecutionStarted: ExecutionStatus.RUNNING,
                events.ExecutionCancelled: ExecutionStatus.CANCELLED,
            },
            ExecutionStatus.RUNNING: {
                events.ExecutionBlocked: ExecutionStatus.BLOCKED,
                events.ExecutionCompleted: ExecutionStatus.COMPLETED,
                events.ExecutionFailed: ExecutionStatus.FAILED,
                events.ExecutionCancelled: ExecutionStatus.CANCELLED,
            },
            # A handler that goes on while a step of it waits may still come to its end.
            ExecutionStatus.BLOCKED: {
                events.ExecutionResumed: ExecutionStatus.RUNNING,
                events.ExecutionCompleted: ExecutionStatus.COMPLETED,
                events.ExecutionFailed: ExecutionStatus.FAILED,
                events.ExecutionCancelled: ExecutionStatus.CANCELLED,
            },
        }
    )
)

STEP: Final[Mapping[StepStatus | None, Mapping[type[events.Event], StepStatus]]] = MappingProxyType(
    {
        None: {events.StepProposed: StepStatus.PROPOSED},
        StepStatus.PROPOSED: {
            events.StepAllowed: StepStatus.ALLOWED,
            events.StepDenied: StepStatus.DENIED,
            events.StepAwaitingApproval: StepStatus.AWAITING_APPROVAL,
        },
        StepStatus.AWAITING_APPROVAL: {
            events.StepAllowed: StepStatus.ALLOWED,
            events.StepDenied: StepStatus.DENIED,
        },
        # Granted, and proposed again: the rules of that moment are asked once more.
        StepStatus.ALLOWED: {
            events.StepAllowed: StepStatus.ALLOWED,
            events.StepDenied: StepStatus.DENIED,
            events.StepAwaitingApproval: StepStatus.AWAITING_APPROVAL,
            events.StepExecuting: StepStatus.EXECUTING,
        },
        StepStatus.EXECUTING: {
            events.StepExecuting: StepStatus.EXECUTING,
            events.StepSpawned: StepStatus.EXECUTING,
            events.StepSucceeded: StepStatus.SUCCEEDED,
            events.StepFailed: StepStatus.FAILED,
            events.StepCancelled: StepStatus.CANCELLED,
        },
    }
)

APPROVAL: Final[Mapping[ApprovalStatus | None, Mapping[type[events.Event], ApprovalStatus]]] = (
    MappingProxyType(
        {
            None: {events.ApprovalRequested: ApprovalStatus.PENDING},
            ApprovalStatus.PENDING: {
                events.ApprovalVoted: ApprovalStatus.PENDING,
                events.ApprovalGranted: ApprovalStatus.GRANTED,
                events.ApprovalDenied: ApprovalStatus.DENIED,
                events.ApprovalExpired: ApprovalStatus.EXPIRED,
            },
        }
    )
)

# Whatever ends the run retires its dispatch.
_RETIRED: Final[Mapping[type[events.Event], DispatchStatus]] = {
    events.ExecutionCompleted: DispatchStatus.EXHAUSTED,
    events.ExecutionFailed: DispatchStatus.EXHAUSTED,
    events.ExecutionCancelled: DispatchStatus.EXHAUSTED,
    events.DispatchDiscarded: DispatchStatus.EXHAUSTED,
}

DISPATCH: Final[Mapping[DispatchStatus | None, Mapping[type[events.Event], DispatchStatus]]] = (
    MappingProxyType(
        {
            None: {events.DispatchQueued: DispatchStatus.PENDING},
            DispatchStatus.PENDING: {
                events.DispatchClaimed: DispatchStatus.IN_FLIGHT,
                **_RETIRED,
            },
            DispatchStatus.IN_FLIGHT: {
                # A claim of what is in flight takes the run over from an attempt that died.
                events.DispatchClaimed: DispatchStatus.IN_FLIGHT,
                events.DispatchAcked: DispatchStatus.IN_FLIGHT,
                events.DispatchFailed: DispatchStatus.FAILED,
                **_RETIRED,
            },
            DispatchStatus.FAILED: {
                events.DispatchClaimed: DispatchStatus.IN_FLIGHT,
                **_RETIRED,
            },
            DispatchStatus.EXHAUSTED: {
                events.DispatchQueued: DispatchStatus.PENDING,
                **_RETIRED,
            },
        }
    )
)

_ENDED: Final = frozenset(status for status in ExecutionStatus if status.is_terminal)
_RUNNING: Final = frozenset({ExecutionStatus.RUNNING})
_AT_WORK: Final = frozenset({ExecutionStatus.RUNNING, ExecutionStatus.BLOCKED})
# The steps that a fork copies are recorded before it starts.
_COPIED: Final = _AT_WORK | {ExecutionStatus.PENDING}

EXECUTION_MUST_BE: Final[Mapping[type[events.Event], frozenset[ExecutionStatus]]] = (
    MappingProxyType(
        {
            events.DispatchQueued: _RUNNING,
            events.DispatchClaimed: _RUNNING,
            events.DispatchAcked: _AT_WORK,
            events.DispatchFailed: _AT_WORK,
            events.DispatchDiscarded: _AT_WORK,
            events.StepProposed: _COPIED,
            events.StepAllowed: _COPIED,
            # Also when the run ended while the call waited for somebody.
            events.StepDenied: _COPIED | _ENDED,
            events.StepAwaitingApproval: _AT_WORK,
            # No step: it moves nothing, and is in no other table.
            events.StepRateLimited: _AT_WORK,
            events.StepExecuting: _COPIED,
            events.StepSpawned: _AT_WORK,
            events.StepSucceeded: _COPIED,
            events.StepFailed: _COPIED,
            # What was under way when the run ended is closed after it (protocol 4.3).
            events.StepCancelled: _ENDED,
            events.ApprovalRequested: _AT_WORK,
            events.ApprovalVoted: _AT_WORK,
            events.ApprovalGranted: _AT_WORK,
            events.ApprovalDenied: _AT_WORK,
            events.ApprovalExpired: _AT_WORK | _ENDED,
            events.ResourceRegistered: _COPIED,
            events.ResourceInitialized: _COPIED,
            events.ResourceBound: _COPIED,
            events.ResourceCheckpointed: _AT_WORK,
            events.ResourceCheckpointFailed: _AT_WORK,
        }
    )
)
"""In which states of its run an event of a step, a dispatch, an approval or a resource may be."""
