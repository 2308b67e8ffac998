"""A run as a test sees it: what was asked, what was decided, which bodies ran. Frozen."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from proctor.wire.messages import Approval, Event, Execution, Step
from proctor.wire.words import Answer, ExecutionStatus, StepKind, StepStatus

_SHOWN_CHARACTERS: Final = 100


@dataclass(frozen=True, slots=True)
class Call:
    """One call that an attempt made, and what it was answered."""

    attempt: int
    """1 is the first. Each start of the handler is one: after a crash, and after a wait."""
    kind: StepKind
    target: str
    args: Any
    answer: Answer
    step_id: str
    reason: str = ""

    @property
    def body_ran(self) -> bool:
        """True when the answer let the body run; it is not run for a replay or a refusal."""
        return self.answer is Answer.PROCEED


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """A run that has ended, or that waits for people, as it was at that moment.

    `str(run)` is its timeline: `assert run.status == "completed", run`.
    """

    execution: Execution
    recorded: tuple[Step, ...]
    """Every step, in the order in which they were first proposed."""
    events: tuple[Event, ...]
    calls: tuple[Call, ...]
    """What its attempts asked: calls that replayed or were limited are in here too."""
    waits_for: tuple[Approval, ...] = ()
    """The calls that wait for people."""
    crashed: tuple[int, ...] = field(default=())
    """The attempts that were dropped as the test wanted."""

    @property
    def id(self) -> str:
        """The run's id."""
        return self.execution.id

    @property
    def status(self) -> ExecutionStatus:
        """`completed`, `failed`, `cancelled`; `blocked` while people are waited for."""
        return self.execution.status

    @property
    def output(self) -> Any:
        """What the handler returned, as it reads back from JSON."""
        return self.execution.output

    @property
    def failure_reason(self) -> str:
        """Why it failed, e.g. `tool_error: pay: gone`; empty when it did not."""
        return self.execution.failure_reason

    @property
    def bodies(self) -> dict[str, int]:
        """How often the body of each tool or step ran: `{"search": 2, "pay": 1}`."""
        return dict(Counter(call.target for call in self.calls if call.body_ran))

    @property
    def ran_again(self) -> tuple[str, ...]:
        """The targets of steps whose bodies ran more than once, since a crash cut them off."""
        ran = Counter(call.step_id for call in self.calls if call.body_ran)
        return tuple(step.target for step in self.recorded if ran[step.step_id] > 1)

    def steps(self, target: str | None = None) -> tuple[Step, ...]:
        """Return the steps of a tool, in the order in which they were proposed; None: all."""
        return tuple(step for step in self.recorded if target in (None, step.target))

    def step(self, target: str) -> Step:
        """Return the one step of a tool.

        Raises:
            AssertionError: there is none, or more than one; with the timeline.
        """
        __tracebackhide__ = True
        found = self.steps(target)
        if len(found) == 1:
            return found[0]
        many = f"{len(found)} steps" if found else "no step"
        raise AssertionError(f"there is {many} of {target!r}, where one was expected\n{self}")

    @property
    def timeline(self) -> str:
        """What happened, attempt by attempt and call by call, to be read."""
        return "\n".join(_timeline(self))

    def __str__(self) -> str:
        return self.timeline

    def __repr__(self) -> str:
        return f"<run of {self.execution.agent_id}: {self.status}>"


def assert_denied(run: Run, target: str, *, rule: str | None = None) -> None:
    """Check that a tool was called, and that every call of it was denied (by this rule).

    Raises:
        AssertionError: it was not; with the timeline.
    """
    __tracebackhide__ = True
    _check(run, target, rule, is_denied=True)


def assert_allowed(run: Run, target: str, *, rule: str | None = None) -> None:
    """Check that a tool was called, and that every call of it was allowed (by this rule).

    A call that a person granted is allowed; one that still waits is not. Raises AssertionError
    with the timeline.
    """
    __tracebackhide__ = True
    _check(run, target, rule, is_denied=False)


def _check(run: Run, target: str, rule: str | None, *, is_denied: bool) -> None:
    __tracebackhide__ = True
    wanted = "denied" if is_denied else "allowed"
    steps = run.steps(target)
    if not steps:
        raise AssertionError(f"{target!r} was to be {wanted}, and was not called\n{run}")
    for step in steps:
        was = _was(step)
        if was != wanted:
            raise AssertionError(f"{_called(step)} was to be {wanted}, and {was}\n{run}")
        if rule is not None and rule not in step.rule_ids:
            by = ", ".join(step.rule_ids) or "no rule at all"
            raise AssertionError(f"{_called(step)} was {wanted} by {by}, not by {rule}\n{run}")


def _was(step: Step) -> str:
    match step.status:
        case StepStatus.DENIED:
            return "denied"
        case StepStatus.AWAITING_APPROVAL:
            return "waits for people"
        case StepStatus.PROPOSED:
            return "is not decided"
        case _:
            return "allowed"


def _timeline(run: Run) -> Iterator[str]:
    ended = f": {run.failure_reason}" if run.failure_reason else ""
    yield f"run {run.id} of {run.execution.agent_id}: {run.status}{ended}"
    steps = {step.step_id: step for step in run.recorded}
    attempt = 0
    for call in run.calls:
        if call.attempt != attempt:
            if attempt in run.crashed:
                yield "  (crashed here)"
            attempt = call.attempt
            yield f"  attempt {attempt}"
        yield f"    {_called(call)}: {_answered(call, steps.get(call.step_id))}"
    if attempt in run.crashed:
        yield "  (crashed here)"
    for approval in run.waits_for:
        asked = ", ".join(name for gate in approval.gates for name in gate.approvers) or "anybody"
        yield f"  waits for {asked}: {_called(approval)}"
    if run.status is ExecutionStatus.COMPLETED:
        yield f"  output: {_short(run.output)}"


def _answered(call: Call, step: Step | None) -> str:
    rules = f" by {', '.join(step.rule_ids)}" if step is not None and step.rule_ids else ""
    match call.answer:
        case Answer.PROCEED:
            return f"allowed{rules}{_outcome(step)}"
        case Answer.REPLAY:
            return f"replayed{_outcome(step)}"
        case Answer.DENIED:
            return f"denied{rules}: {call.reason}"
        case Answer.BLOCKED:
            return f"put off{rules}" + (f": {call.reason}" if call.reason else "")
        case Answer.RATE_LIMITED:
            return f"limited: {call.reason}"
        case _:
            return str(call.answer)


def _outcome(step: Step | None) -> str:
    match step:
        case Step(status=StepStatus.SUCCEEDED):
            return f" -> {_short(step.result)}"
        case Step(status=StepStatus.FAILED | StepStatus.CANCELLED):
            return f" -> {step.status}: {_short(step.error)}"
        case Step(status=StepStatus.EXECUTING):
            return ", without an outcome"
        case _:
            return ""


def _called(what: Call | Step | Approval) -> str:
    name = what.target if what.kind is StepKind.TOOL_CALL else f"{what.kind} {what.target}"
    if not isinstance(what.args, dict):
        return f"{name}({_short(what.args)})"
    return f"{name}({', '.join(f'{key}={_short(value)}' for key, value in what.args.items())})"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
