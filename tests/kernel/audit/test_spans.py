"""Runs as traces: the tree that a person reads, and the laws that hold for every log."""

import asyncio
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from tests.kernel.core.driving import DENY, EXECUTION, Run, answered, step_of, submit, succeed
from tests.kernel.core.test_laws import play, scripts
from tests.kernel.store.test_log import recorded

from proctor.wire.words import Decision, StepKind
from proctor_kernel.audit import attributes as names
from proctor_kernel.audit.follow import read_batch
from proctor_kernel.audit.leaving import Leaving, Place, Projector
from proctor_kernel.audit.redact import Redactor
from proctor_kernel.audit.span import Span
from proctor_kernel.audit.spans import Trace, follow
from proctor_kernel.core import identity
from proctor_kernel.core.approvals import Gate
from proctor_kernel.core.commands import (
    DecideApproval,
    FinishExecution,
    Grant,
    Returned,
    Ruling,
)
from proctor_kernel.core.identity import Json
from proctor_kernel.store.sqlite import IN_MEMORY, SQLite
from proctor_policy.masks import Masks


def spans_of(run: Run) -> list[Span]:
    trace, spans = Trace.of(EXECUTION), []
    for record in run.log:
        trace, ended = follow(trace, record)
        spans += ended
    return spans


def titled(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


def test_a_run_is_one_trace_with_its_steps_below_it() -> None:
    run = Run().created()
    lease = run.claim()
    step = step_of(run.apply(submit(lease, args='{"q":1}')))
    run.apply(succeed(lease, step, '["hit"]'))
    run.apply(FinishExecution(lease, Returned(Json('{"n":1}'))))
    spans = spans_of(run)
    root = titled(spans, "invoke_agent researcher")
    tool = titled(spans, "execute_tool search")

    assert {span.trace_id for span in spans} == {identity.trace_id(EXECUTION)}
    assert root.parent_id is None
    assert {span.parent_id for span in spans if span is not root} == {root.span_id}
    assert root.attributes[names.EXECUTION_OUTPUT] == '{"n":1}'
    assert root.attributes[names.GEN_AI_OPERATION] == "invoke_agent"
    assert tool.attributes[names.GEN_AI_TOOL_ARGUMENTS] == '{"q":1}'
    assert tool.attributes[names.GEN_AI_TOOL_RESULT] == '["hit"]'
    assert tool.attributes[names.RULES] == ("all",)
    assert tool.attributes[names.DECISION] == "allow"
    assert [moment.name for moment in tool.moments] == ["decision", "executing"]
    assert root.start <= tool.start <= tool.end <= root.end
    assert root.failure is tool.failure is None
    assert titled(spans, "attempt 1").attributes[names.ATTEMPT_OUTCOME] == "completed"


def test_a_denied_call_is_a_span_with_an_error_and_the_reason() -> None:
    run = Run(DENY).created()
    run.apply(submit(run.claim(), kind=StepKind.LLM_CALL, target="gpt"))
    denied = titled(spans_of(run), "chat gpt")

    assert denied.failure == "not here"
    assert denied.is_client
    assert denied.attributes[names.ERROR_TYPE] == "policy_denied"
    assert denied.attributes[names.RULES] == ("no", "no-too")
    assert names.STEP_RESULT not in denied.attributes


def test_a_run_is_seen_before_it_ends_and_so_is_what_it_waits_for() -> None:
    gate = Gate("ask", "money", ("finance",), 1, 60_000_000, "")
    run = Run(Ruling(Decision.REQUIRE_APPROVAL, "money", ("ask",), "h", gates=(gate,))).created()
    answer = answered(run.apply(submit(run.claim(), target="pay")))
    waiting = spans_of(run)
    assert answer.approval_id is not None
    run.apply(DecideApproval(answer.approval_id, Grant("ann", ("finance",), "fine")))
    mark = titled(waiting, "approval of pay requested")
    approval = titled(spans_of(run), "approval of pay")

    assert waiting[0].name == "run of researcher created"
    assert mark.attributes[names.APPROVERS] == ("finance",)
    assert mark.parent_id == approval.parent_id == identity.span_id(answer.step_id or "")
    assert approval.attributes[names.DECIDED_BY] == "ann"
    assert approval.start == mark.start < approval.end


def test_a_takeover_ends_the_attempt_before_it_with_an_error() -> None:
    run = Run().created()
    lease = run.claim()
    run.apply(succeed(lease, step_of(run.apply(submit(lease)))))
    second = run.claim()
    run.apply(FinishExecution(second, Returned(Json("1"))))
    spans = spans_of(run)
    lost, won = titled(spans, "attempt 1"), titled(spans, "attempt 2")

    assert lost.attributes[names.ERROR_TYPE] == "lease_expired"
    assert not lost.attributes[names.REPLAY]
    assert won.attributes[names.REPLAY]
    assert lost.end == won.start


@given(script=scripts)
def test_every_step_that_ended_is_one_span_and_every_parent_is_known(script: list[Any]) -> None:
    run = play(script)
    spans = spans_of(run)
    ids = Counter(span.span_id for span in spans)
    ended = [step for step in run.state.steps.values() if step.status.is_terminal]
    parents = {identity.span_id(EXECUTION), *map(identity.span_id, run.state.steps)}

    assert set(ids.values()) <= {1}
    assert all(ids[identity.span_id(step.step_id)] == 1 for step in ended)
    assert ids[identity.span_id(EXECUTION)] == run.state.is_terminal
    assert all(span.parent_id in parents for span in spans if span.parent_id is not None)
    assert all(span.start <= span.end for span in spans)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(script=scripts)
def test_whoever_takes_an_exporter_over_makes_the_same_spans(script: list[Any]) -> None:
    run = play(script)

    async def left() -> tuple[list[Leaving], list[Leaving]]:
        database = SQLite(IN_MEMORY, "NORMAL")
        await recorded(database, run)
        found = await read_batch(database, Place(0), await database.settled())

        def projector() -> Projector:
            return Projector(database, lambda: Redactor(Masks(), b"k"))

        whole = await projector().project(found)
        parts = [each for row in found for each in await projector().project([row])]
        database.close()
        return whole, parts  # type: ignore[return-value]  # nothing is broken here

    whole, parts = asyncio.run(left())

    assert parts == whole
    assert [each.record.payload for each in whole] == [record.payload for record in run.log]
