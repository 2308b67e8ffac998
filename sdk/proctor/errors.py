"""What can go wrong for an agent or a client.

    ProctorError
      NetworkError
      APIError(code, message, status_code)
        ValidationError  UnauthorizedError  ForbiddenError  NotFoundError  ConflictError
        UnavailableError  PolicyError(rule_id)  LeaseSuperseded
      ToolError(tool_id, step_id)
      RateLimited(reason)
      Blocked
      Terminated

`Blocked`, `Terminated` and `LeaseSuperseded` are control flow: they end the handler, and
nothing is reported for it. A handler that swallows one changes nothing (protocol 10.1).
"""

import re
from typing import Final

from proctor.wire.calls import WireError
from proctor.wire.words import ErrorCode, Reason


class ProctorError(Exception):
    """Base of everything that this package raises on its own account."""


class NetworkError(ProctorError):
    """The kernel could not be reached."""


class APIError(ProctorError):
    """The kernel answered with an error; `code` is the protocol's, `status_code` HTTP's."""

    def __init__(
        self,
        message: str,
        *,
        code: str = ErrorCode.INTERNAL_ERROR,
        status_code: int = 500,
        details: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status_code = status_code
        self.details = details


class ValidationError(APIError):
    """What was sent is malformed; nothing changed."""


class UnauthorizedError(APIError):
    """The caller is not known."""


class ForbiddenError(APIError):
    """The caller is known and may not do this."""


class NotFoundError(APIError):
    """There is no such agent, run or step."""


class ConflictError(APIError):
    """What was asked does not fit the state; nothing changed."""


class UnavailableError(APIError):
    """The kernel could not record just now; nothing was acknowledged, a retry is safe."""


class LeaseSuperseded(APIError):
    """Another attempt has taken this run over."""


class PolicyError(APIError):
    """A rule denied a local step. The message is the rule's reason."""

    def __init__(self, reason: str, *, rule_id: str = "", call: object = None) -> None:
        super().__init__(reason, code=ErrorCode.POLICY_DENIED, status_code=403)
        self.rule_id = rule_id
        self.call = call
        """Identity of the call that was refused, for whoever made it."""


class ToolError(ProctorError):
    """A tool or step failed: its body raised, or its outcome is unknown."""

    def __init__(
        self, message: str, *, tool_id: str, step_id: str, retryable: bool = False
    ) -> None:
        super().__init__(message)
        self.tool_id = tool_id
        self.step_id = step_id
        self.retryable = retryable


class RateLimited(ProctorError):
    """A rule's limit is used up for now."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Blocked(ProctorError):
    """The run waits for somebody; it will be started again."""


class Terminated(ProctorError):
    """The run has ended, so this handler has nothing to do any more."""


CONTROL_FLOW: Final = (Blocked, Terminated, LeaseSuperseded)
"""What ends a handler without a report."""

_CLASSES: Final[dict[ErrorCode, tuple[type[APIError], int]]] = {
    ErrorCode.VALIDATION_ERROR: (ValidationError, 400),
    ErrorCode.UNAUTHORIZED: (UnauthorizedError, 401),
    ErrorCode.FORBIDDEN: (ForbiddenError, 403),
    ErrorCode.NOT_FOUND: (NotFoundError, 404),
    ErrorCode.CONFLICT: (ConflictError, 409),
    ErrorCode.LEASE_SUPERSEDED: (LeaseSuperseded, 409),
    ErrorCode.UNAVAILABLE: (UnavailableError, 503),
    ErrorCode.INTERNAL_ERROR: (APIError, 500),
}

_TOKEN: Final = re.compile(r"[a-z0-9_]+")


def from_wire(error: WireError) -> ProctorError:
    """Return the class for an error envelope, chosen by its code (protocol 0.1)."""
    if error.code is ErrorCode.EXECUTION_TERMINAL:
        return Terminated(error.message)
    if error.code is ErrorCode.POLICY_DENIED:
        return PolicyError(error.message)
    cls, status_code = _CLASSES[error.code]
    return cls(error.message, code=error.code, status_code=status_code, details=error.details)


def failure_reason(error: BaseException) -> str:
    """Return the stable text under which a run fails (protocol 10.3)."""
    match error:
        case PolicyError() if _TOKEN.fullmatch(error.message):
            return error.message
        case PolicyError():
            return f"{Reason.POLICY_DENIED}: {error.message}"
        case RateLimited():
            return error.reason
        case ToolError():
            return f"tool_error: {error.tool_id}: {error}"
        case _:
            return f"agent_error: {type(error).__name__}: {error}"
