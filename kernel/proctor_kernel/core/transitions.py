"""Every legal move of an execution, a step and a dispatch, as tables.

`evolve` looks each move up here; a missing row is an illegal move. Source: protocol 4.1.
A key of None is "does not exist yet". Statuses that no row reaches belong to approvals and
sessions: their rows are added with the events that make those moves.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from proctor.wire.words import DispatchStatus, ExecutionStatus, StepStatus
from proctor_kernel.core import events

EXECUTION: Final[Mapping[ExecutionStatus | None, Mapping[type[events.Event], ExecutionStatus]]] = (
    MappingProxyType(
        {
            None: {events.ExecutionCreated: ExecutionStatus.PENDING},
            ExecutionStatus.PENDING: {
                events.ExecutionStarted: ExecutionStatus.RUNNING,
                events.ExecutionCancelled: ExecutionStatus.CANCELLED,
            },
            ExecutionStatus.RUNNING: {
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
        },
        StepStatus.ALLOWED: {events.StepExecuting: StepStatus.EXECUTING},
        StepStatus.EXECUTING: {
            events.StepExecuting: StepStatus.EXECUTING,
            events.StepSucceeded: StepStatus.SUCCEEDED,
            events.StepFailed: StepStatus.FAILED,
            events.StepCancelled: StepStatus.CANCELLED,
        },
    }
)

# Whatever ends the run retires its dispatch.
_RETIRED: Final[Mapping[type[events.Event], DispatchStatus]] = {
    events.ExecutionCompleted: DispatchStatus.EXHAUSTED,
    events.ExecutionFailed: DispatchStatus.EXHAUSTED,
    events.ExecutionCancelled: DispatchStatus.EXHAUSTED,
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
                **_RETIRED,
            },
        }
    )
)

_ENDED: Final = frozenset(status for status in ExecutionStatus if status.is_terminal)
_RUNNING: Final = frozenset({ExecutionStatus.RUNNING})

EXECUTION_MUST_BE: Final[Mapping[type[events.Event], frozenset[ExecutionStatus]]] = (
    MappingProxyType(
        {
            events.DispatchQueued: _RUNNING,
            events.DispatchClaimed: _RUNNING,
            events.StepProposed: _RUNNING,
            events.StepAllowed: _RUNNING,
            events.StepDenied: _RUNNING,
            # No step: it moves nothing, and is in no other table.
            events.StepRateLimited: _RUNNING,
            events.StepExecuting: _RUNNING,
            events.StepSucceeded: _RUNNING,
            events.StepFailed: _RUNNING,
            # What was under way when the run ended is closed after it (protocol 4.3).
            events.StepCancelled: _ENDED,
        }
    )
)
"""In which states of its run an event of a step or a dispatch may happen."""
