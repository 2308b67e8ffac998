"""The door: what comes over the wire is checked here and becomes a command, or is refused.

Behind it, every text is JSON where it says so, within limits, and fit to be stored.
"""

from typing import Final

from proctor.wire.calls import Lease, StepReply, StepSubmission, WireError
from proctor.wire.words import ErrorCode
from proctor_kernel.core import identity
from proctor_kernel.core.commands import (
    Claimed,
    Done,
    FinishExecution,
    GaveUp,
    Raised,
    Rejected,
    Reply,
    Returned,
    SettleStep,
    SubmitStep,
)
from proctor_kernel.core.identity import Json, JsonRefused

NAME_BYTES_MAX: Final = 8192
"""Bytes of a target, a request id or an agent id."""

REASON_CHARACTERS_MAX: Final = 65_536
"""Characters of a failure reason; the rest of a longer one is cut off."""


def submission(lease: Lease, call: StepSubmission) -> SubmitStep:
    """Turn a submitted call into a command; raises `validation_error`."""
    try:
        args = identity.canonical(call.args_json)
    except JsonRefused as error:
        raise WireError(ErrorCode.VALIDATION_ERROR, f"args of {call.target!r}: {error}") from None
    request_id = call.request_id
    return SubmitStep(
        lease=lease,
        kind=call.kind,
        target=name("target", call.target),
        args=args,
        args_hash=identity.args_hash(args),
        idempotency=call.idempotency,
        request_id=None if request_id is None else name("request_id", request_id),
    )


def completion(lease: Lease, step_id: str, result_json: str) -> SettleStep:
    """Turn a body's result into a command; raises `validation_error`."""
    return SettleStep(lease, step_id, Returned(document("result", result_json)))


def failure(lease: Lease, step_id: str, error_json: str) -> SettleStep:
    """Turn a body's error into a command; raises `validation_error`."""
    return SettleStep(lease, step_id, Raised(document("error", error_json)))


def output(lease: Lease, output_json: str) -> FinishExecution:
    """Turn a handler's return value into a command; raises `validation_error`."""
    return FinishExecution(lease, Returned(document("output", output_json)))


def giving_up(lease: Lease, reason: str) -> FinishExecution:
    """Turn a handler's failure into a command."""
    return FinishExecution(lease, GaveUp(identity.storable(reason[:REASON_CHARACTERS_MAX])))


def document(field: str, text: str) -> Json:
    """Accept one JSON document; raises `validation_error` that names `field`."""
    try:
        return identity.checked(text)
    except JsonRefused as error:
        raise WireError(ErrorCode.VALIDATION_ERROR, f"{field}: {error}") from None


def name(field: str, text: str) -> str:
    """Accept a name in storable form; raises `validation_error` that names `field`."""
    stored = identity.storable(text)
    if len(stored.encode()) > NAME_BYTES_MAX:
        raise WireError(ErrorCode.VALIDATION_ERROR, f"{field}: longer than {NAME_BYTES_MAX} bytes")
    return stored


def step_reply(reply: Reply) -> StepReply:
    """Return the answer to a step command; raises the error that it was rejected with."""
    if isinstance(reply, StepReply):
        return reply
    raise rejection(reply)


def done(reply: Reply) -> None:
    """Accept that a command took effect; raises the error that it was rejected with."""
    if not isinstance(reply, Done):
        raise rejection(reply)


def rejection(reply: Claimed | Done | Rejected | StepReply) -> WireError:
    """Return the error envelope of a rejected command."""
    assert isinstance(reply, Rejected), reply
    return WireError(reply.code, reply.message)
