"""Errors: one class a code, and the stable reasons of protocol 10.3."""

import pytest

import proctor
from proctor import errors, handshake
from proctor.handshake import (
    Ended,
    Limited,
    Proceed,
    Refused,
    Replayed,
    ReplayedFailure,
    Suspended,
    shake,
)
from proctor.wire.calls import StepReply, WireError
from proctor.wire.words import Answer, ErrorCode


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_code_has_a_class(code: ErrorCode) -> None:
    error = errors.from_wire(WireError(code, "because"))

    assert isinstance(error, proctor.ProctorError)
    assert str(error) == "because"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (proctor.PolicyError("out_of_budget"), "out_of_budget"),
        (proctor.PolicyError("no mail outside"), "policy_denied: no mail outside"),
        (proctor.RateLimited("rate_limit_exceeded"), "rate_limit_exceeded"),
        (proctor.ToolError("gone", tool_id="fetch", step_id="s"), "tool_error: fetch: gone"),
        (ValueError("no"), "agent_error: ValueError: no"),
        (proctor.NotFoundError("no run"), "agent_error: NotFoundError: no run"),
    ],
    ids=["token", "sentence", "limit", "tool", "any", "api"],
)
def test_a_run_fails_under_the_protocols_reason(error: Exception, reason: str) -> None:
    assert proctor.failure_reason(error) == reason


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (StepReply(Answer.PROCEED, "s"), Proceed("s")),
        (StepReply(Answer.REPLAY, "s", result_json='{"a":1}'), Replayed({"a": 1})),
        (StepReply(Answer.REPLAY, "s", result_json="null"), Replayed(None)),
        (StepReply(Answer.REPLAY, "s", error_json='{"message":"m"}'), ReplayedFailure("s", "m")),
        (StepReply(Answer.REPLAY, "s", error_json='{"reason":"r"}'), ReplayedFailure("s", "r")),
        (StepReply(Answer.REPLAY, "s", error_json="[1]"), ReplayedFailure("s", "[1]")),
        (StepReply(Answer.DENIED, "s", reason="no", rule_id="r"), Refused("no", "r")),
        (StepReply(Answer.DENIED, "s"), Refused("policy_denied", "")),
        (StepReply(Answer.RATE_LIMITED), Limited("rate_limit_exceeded")),
        (StepReply(Answer.BLOCKED, "s"), Suspended()),
        (StepReply(Answer.EXECUTION_BLOCKED), Suspended()),
        (StepReply(Answer.EXECUTION_TERMINAL), Ended()),
    ],
    ids=repr,
)
def test_a_reply_says_what_to_do(reply: StepReply, expected: handshake.Handshake) -> None:
    assert shake(reply) == expected


@pytest.mark.parametrize("reply", [StepReply(Answer.PROCEED), StepReply(Answer.RECORDED, "s")])
def test_nothing_runs_on_a_reply_that_makes_no_sense(reply: StepReply) -> None:
    with pytest.raises(proctor.ProctorError):
        shake(reply)
