"""A kernel's reply to a submit, as what the caller has to do now. Pure."""

import json
from dataclasses import dataclass
from typing import Any, assert_never

from proctor.errors import ProctorError
from proctor.wire.calls import StepReply
from proctor.wire.words import Answer, Reason


@dataclass(frozen=True, slots=True)
class Proceed:
    """Run the body, then settle this step."""

    step_id: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """The body ran before; this is what it returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class ReplayedFailure:
    """The body failed before, or its outcome is unknown."""

    step_id: str
    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The call may not run."""

    reason: str
    rule_id: str


@dataclass(frozen=True, slots=True)
class Limited:
    """The call may not run now: a limit is used up."""

    reason: str


@dataclass(frozen=True, slots=True)
class Suspended:
    """The run waits for somebody, so the handler stops here."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The run has ended, so the handler stops here."""


Handshake = Proceed | Replayed | ReplayedFailure | Refused | Limited | Suspended | Ended


def shake(reply: StepReply) -> Handshake:
    """Return what `reply` asks of the caller (protocol 5 and 10.4).

    Raises:
        ProctorError: the reply lacks what its decision needs; nothing may run on it.
    """
    match reply.decision:
        case Answer.PROCEED:
            if not reply.step_id:
                raise ProctorError("the kernel said proceed without naming the step")
            return Proceed(reply.step_id)
        case Answer.REPLAY:
            if reply.error_json is not None and reply.error_json != "null":
                return ReplayedFailure(reply.step_id or "", failure_message(reply.error_json))
            return Replayed(json.loads(reply.result_json or "null"))
        case Answer.DENIED:
            return Refused(reply.reason or Reason.POLICY_DENIED, reply.rule_id)
        case Answer.RATE_LIMITED:
            return Limited(reply.reason or "rate_limit_exceeded")
        case Answer.BLOCKED | Answer.EXECUTION_BLOCKED:
            return Suspended()
        case Answer.EXECUTION_TERMINAL:
            return Ended()
        case Answer.RECORDED:
            raise ProctorError("the kernel answered a submit with 'recorded'")
        case _:
            assert_never(reply.decision)


def failure_message(error_json: str) -> str:
    """Return what a recorded error says: its message, else its reason, else all of it."""
    error = json.loads(error_json)
    if isinstance(error, dict):
        for key in ("message", "reason"):
            if isinstance(error.get(key), str) and error[key]:
                return str(error[key])
    return error_json
