"""Events in, spans out: a run as a trace. Pure.

    invoke_agent <agent>                 the run, once it has ended
    ├─ run of <agent> created            a mark, so that a run is seen before it ends
    ├─ attempt <n>                       from a delivery to the agent until the attempt is over
    ├─ execute_tool <tool>               a step, from its proposal to its outcome
    │  ├─ approval of <tool> requested   a mark, while it waits
    │  └─ approval of <tool>             from the request to the decision
    ├─ chat <model>
    └─ step <name>

Every id is a hash of what the span is about, so a repeat is the same span. A refused call is a span
with an error status that says why. `attributes` has the names.
"""

from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

from immutables import Map

from proctor.wire.words import ExecutionStatus, Reason
from proctor_kernel.audit import attributes as names
from proctor_kernel.audit import calls
from proctor_kernel.audit.calls import OpenStep
from proctor_kernel.audit.span import MOMENTS_MAX, Moment, Span, Value, given, span_in
from proctor_kernel.core import events, identity
from proctor_kernel.core.chain import Record
from proctor_kernel.core.evolve import evolve
from proctor_kernel.core.state import State


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An attempt that is under way."""

    dispatch_id: str
    number: int
    began_at: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What is known of a run by one of its events."""

    state: State
    steps: Map[str, OpenStep] = field(default_factory=Map)
    attempt: _Attempt | None = None
    moments: tuple[Moment, ...] = ()

    @classmethod
    def of(cls, execution_id: str) -> "Trace":
        """Return the trace of a run of which nothing has happened yet."""
        return cls(State(execution_id))


def follow(trace: Trace, record: Record) -> tuple[Trace, tuple[Span, ...]]:
    """Return the trace once `record` has happened, and the spans that it ends.

    Raises `IllegalTransition` as `evolve` does, for a log that nobody can have written.
    """
    after = Trace(evolve(trace.state, record), trace.steps, trace.attempt, trace.moments)
    event, at = record.event, record.at
    match event:
        case events.ExecutionCreated():
            return after, (_created(after.state, record),)
        case events.ExecutionForked() | events.ExecutionStarted():
            return after, ()
        case events.ExecutionBlocked() | events.ExecutionResumed():
            return _with_moment(after, Moment(_word(event), at)), ()
        case events.ExecutionCompleted() | events.ExecutionFailed() | events.ExecutionCancelled():
            ended = _attempt_ended(after, at, str(after.state.status), None)
            return replace(after, attempt=None), (*ended, _run(after, at))
        case events.StepRateLimited():
            return after, (calls.of_limited(after.state, event, record),)
        case events.ResourceRegistered() | events.ResourceInitialized() | events.ResourceBound():
            return after, ()
        case events.ResourceCheckpointed() | events.ResourceCheckpointFailed():
            return after, ()
        case (
            events.DispatchQueued()
            | events.DispatchClaimed()
            | events.DispatchAcked()
            | events.DispatchFailed()
            | events.DispatchDiscarded()
        ):
            return _delivered(after, event, at)
        case (
            events.ApprovalRequested()
            | events.ApprovalVoted()
            | events.ApprovalGranted()
            | events.ApprovalDenied()
            | events.ApprovalExpired()
        ):
            return after, calls.of_approval(after.state, event, record)
        case _:
            return _stepped(after, event, at)


def _created(state: State, record: Record) -> Span:
    return span_in(
        state,
        f"run of {state.agent_id} created",
        of=f"{state.execution_id}:{record.seq}",
        start=record.at,
        end=record.at,
        attributes=given(
            {names.EXECUTION_INPUT: state.input, names.CREATED_BY: state.created_by or ""}
        ),
    )


def _run(trace: Trace, at: int) -> Span:
    state = trace.state
    assert state.status is not None, "it has just ended"
    used = [step for step in state.steps.values() if step.input_tokens or step.output_tokens]
    span = span_in(
        state,
        f"invoke_agent {state.agent_id}",
        of=state.execution_id,
        start=state.created_at,
        end=at,
        attributes={
            names.GEN_AI_OPERATION: "invoke_agent",
            names.EXECUTION_STATUS: str(state.status),
            names.EXECUTION_INPUT: state.input,
            names.ATTEMPTS: state.attempts,
            names.STEPS: len(state.steps),
            names.DENIALS: state.tally.denials,
            **given(
                {
                    names.EXECUTION_OUTPUT: state.output or "",
                    names.FAILURE_REASON: state.failure_reason,
                    names.CREATED_BY: state.created_by or "",
                    names.ON_BEHALF_OF: state.on_behalf_of or "",
                    names.PASSED_OVER: state.passed_over,
                    names.GEN_AI_INPUT_TOKENS: sum(step.input_tokens or 0 for step in used),
                    names.GEN_AI_OUTPUT_TOKENS: sum(step.output_tokens or 0 for step in used),
                }
            ),
        },
        failure=None if state.status is ExecutionStatus.COMPLETED else state.failure_reason,
        error_type=None if state.status is ExecutionStatus.COMPLETED else str(state.status),
    )
    links = []
    if state.spawned_by is not None:
        execution_id, step_id = state.spawned_by
        links.append((identity.trace_id(execution_id), identity.span_id(step_id)))
    links += [
        (identity.trace_id(other), identity.span_id(other))
        for other in (state.forked_from, state.parent_execution_id)
        if other is not None
    ]
    return replace(span, parent_id=None, moments=trace.moments, links=tuple(links))


def _delivered(
    trace: Trace, event: events.DispatchEvent, at: int
) -> tuple[Trace, tuple[Span, ...]]:
    match event:
        case events.DispatchQueued():
            return replace(trace, attempt=None), _attempt_ended(trace, at, "left", None)
        case events.DispatchClaimed():
            # A claim while another attempt is at work takes the run over.
            spans = _attempt_ended(trace, at, str(Reason.LEASE_EXPIRED), "its lease ran out")
            begun = _Attempt(event.dispatch_id, event.attempt, at)
            return replace(trace, attempt=begun), spans
        case events.DispatchAcked():
            return trace, ()
        case events.DispatchFailed():
            spans = _attempt_ended(trace, at, "not_delivered", event.error)
            return replace(trace, attempt=None), spans
        case events.DispatchDiscarded():
            failure = "its lease ran out" if event.reason is Reason.LEASE_EXPIRED else None
            spans = _attempt_ended(trace, at, str(event.reason), failure)
            return replace(trace, attempt=None), spans
        case _:
            assert_never(event)


def _attempt_ended(trace: Trace, at: int, outcome: str, failure: str | None) -> tuple[Span, ...]:
    attempt = trace.attempt
    if attempt is None:
        return ()
    span = span_in(
        trace.state,
        f"attempt {attempt.number}",
        of=f"{attempt.dispatch_id}:{attempt.number}",
        start=attempt.began_at,
        end=at,
        attributes={
            names.DISPATCH: attempt.dispatch_id,
            names.ATTEMPT: attempt.number,
            names.ATTEMPT_OUTCOME: outcome,
            # Whatever was recorded before it is replayed, not run again.
            names.REPLAY: any(
                step.completed_at is not None and step.completed_at < attempt.began_at
                for step in trace.state.steps.values()
            ),
        },
        failure=failure,
        error_type=None if failure is None else outcome,
    )
    return (span,)


def _stepped(trace: Trace, event: events.StepEvent, at: int) -> tuple[Trace, tuple[Span, ...]]:
    step = trace.state.steps[event.step_id]
    if isinstance(event, events.StepProposed):
        return _with_steps(trace, trace.steps.set(step.step_id, OpenStep(at))), ()
    known = trace.steps.get(step.step_id, OpenStep(at))
    match event:
        case events.StepAllowed() | events.StepAwaitingApproval() | events.StepDenied():
            said = {names.DECISION: str(event.decision), names.REASON: event.reason}
            known = _with(
                known, Moment("decision", at, said | given({names.RULES: event.rule_ids}))
            )
        case events.StepExecuting():
            known = OpenStep(known.proposed_at, known.runs + 1, known.moments)
            known = _with(known, Moment("executing", at))
        case events.StepSpawned():
            said = {names.STEP_CHILD: event.execution_id}
            known = _with(known, Moment("subagent", at, said))
        case events.StepSucceeded() | events.StepFailed() | events.StepCancelled():
            pass
        case _:
            assert_never(event)
    if not step.status.is_terminal:
        return _with_steps(trace, trace.steps.set(step.step_id, known)), ()
    left = trace.steps.delete(step.step_id) if step.step_id in trace.steps else trace.steps
    return _with_steps(trace, left), (calls.of_step(trace.state, step, known, at),)


def _said_by(
    event: events.StepAllowed | events.StepAwaitingApproval | events.StepDenied,
) -> dict[str, Value]:
    return {
        names.DECISION: str(event.decision),
        names.REASON: event.reason,
        **given(
            {
                names.RULES: event.rule_ids,
                names.SHADOW: event.shadow,
                names.RULE_ERRORS: event.errors,
            }
        ),
    }


def _with(known: OpenStep, moment: Moment) -> OpenStep:
    return OpenStep(known.proposed_at, known.runs, (*known.moments, moment)[:MOMENTS_MAX])


def _with_steps(trace: Trace, steps: Map[str, OpenStep]) -> Trace:
    return Trace(trace.state, steps, trace.attempt, trace.moments)


def _with_moment(trace: Trace, moment: Moment) -> Trace:
    return replace(trace, moments=(*trace.moments, moment)[:MOMENTS_MAX])


def _word(
    event: events.ExecutionBlocked | events.ExecutionResumed,
) -> Literal["blocked", "resumed"]:
    return "blocked" if isinstance(event, events.ExecutionBlocked) else "resumed"
