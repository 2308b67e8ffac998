"""The door: what comes over the wire is checked here and becomes a command, or is refused.

Behind it, every text is JSON where it says so, within limits, and fit to be stored.
"""

import re
from typing import Final

from proctor.wire.calls import (
    Capture,
    CaptureFailure,
    Lease,
    StepReply,
    StepSubmission,
    WireError,
)
from proctor.wire.words import ErrorCode
from proctor_kernel.core import identity
from proctor_kernel.core.commands import (
    BindResource,
    Done,
    FinishExecution,
    GaveUp,
    Raised,
    RegisterResource,
    Rejected,
    Reply,
    Returned,
    SettleStep,
    SubmitStep,
)
from proctor_kernel.core.identity import Json, JsonRefused

NAME_BYTES_MAX: Final = 8192
"""Bytes of a target, a request id or an agent id."""

LABEL_BYTES_MAX: Final = 256
"""Bytes of a session or an idempotency key (protocol 1.2)."""

_RESOURCE_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_EVERY_STEPS_MAX: Final = 2**31 - 1

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
        resources=call.resources,
    )


def completion(
    lease: Lease,
    step_id: str,
    result_json: str,
    captures: tuple[Capture, ...] = (),
    capture_failures: tuple[CaptureFailure, ...] = (),
) -> SettleStep:
    """Turn a body's result into a command; raises `validation_error`."""
    returned = Returned(document("result", result_json))
    return SettleStep(lease, step_id, returned, captures, capture_failures)


def failure(
    lease: Lease,
    step_id: str,
    error_json: str,
    captures: tuple[Capture, ...] = (),
    capture_failures: tuple[CaptureFailure, ...] = (),
) -> SettleStep:
    """Turn a body's error into a command; raises `validation_error`."""
    raised = Raised(document("error", error_json))
    return SettleStep(lease, step_id, raised, captures, capture_failures)


def output(lease: Lease, output_json: str, state_json: str | None = None) -> FinishExecution:
    """Turn a handler's return value into a command; raises `validation_error`.

    `state_json`: what it leaves for the run that follows; null is nothing (protocol 1.3).
    """
    state = None if state_json is None else document("state", state_json)
    if state == identity.NULL:
        state = None
    return FinishExecution(lease, Returned(document("output", output_json), state))


def resource(
    lease: Lease,
    key: str,
    *,
    driver_id: str,
    configuration_json: str,
    coverage_reuse: bool,
    every_steps: int,
    on_completion: bool | None,
) -> RegisterResource:
    """Turn a registration into a command; raises `validation_error` (protocol 1.3)."""
    if _RESOURCE_KEY.fullmatch(key) is None:
        raise WireError(
            ErrorCode.VALIDATION_ERROR,
            f"key: {key!r} is not 1 to 128 letters, digits, '_', '.' and '-'",
        )
    if not driver_id:
        raise WireError(ErrorCode.VALIDATION_ERROR, "driver_id: must not be empty")
    if not 0 <= every_steps <= _EVERY_STEPS_MAX:
        raise WireError(
            ErrorCode.VALIDATION_ERROR, f"every_steps: must be from 0 to {_EVERY_STEPS_MAX}"
        )
    return RegisterResource(
        lease,
        key,
        name("driver_id", driver_id),
        document("configuration", configuration_json),
        coverage_reuse,
        every_steps,
        on_completion is not False,
    )


def binding(lease: Lease, key: str, binding_json: str) -> BindResource:
    """Turn a binding into a command; raises `validation_error`."""
    bound = document("binding", binding_json)
    if bound == identity.NULL:
        raise WireError(ErrorCode.VALIDATION_ERROR, "binding: must not be null")
    return BindResource(lease, key, bound)


def label(field: str, text: str | None) -> str | None:
    """Accept a session or an idempotency key; empty is none (protocol 1.2, label rule)."""
    if not text:
        return None
    if "\x00" in text or not text.strip() or len(text.encode(errors="replace")) > LABEL_BYTES_MAX:
        raise WireError(
            ErrorCode.VALIDATION_ERROR,
            f"{field}: must be text of at most {LABEL_BYTES_MAX} bytes, not only white space",
        )
    return name(field, text)


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


def rejection(reply: Reply) -> WireError:
    """Return the error envelope of a rejected command."""
    assert isinstance(reply, Rejected), reply
    return WireError(reply.code, reply.message)
