"""The vocabulary of the protocol: every word that both ends must spell the same way.

Plain enums and constants, so that anything may import them, the kernel's core included.
Sources: protocol sections 0.1 (error codes), 4.1 (states), 5 (decisions and reasons).
"""

from enum import StrEnum
from typing import Final


class ExecutionStatus(StrEnum):
    """Where a run stands (protocol 4.1)."""

    PENDING = "pending"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True when nothing can happen to the run any more."""
        return self in _TERMINAL_EXECUTIONS


_TERMINAL_EXECUTIONS: Final = frozenset(
    {ExecutionStatus.COMPLETED, ExecutionStatus.FAILED, ExecutionStatus.CANCELLED}
)


class StepStatus(StrEnum):
    """Where a step stands (protocol 4.1)."""

    PROPOSED = "proposed"
    AWAITING_APPROVAL = "awaiting_approval"
    ALLOWED = "allowed"
    EXECUTING = "executing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DENIED = "denied"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True when the step's outcome is final and is never overwritten."""
        return self in _TERMINAL_STEPS


_TERMINAL_STEPS: Final = frozenset(
    {StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.DENIED, StepStatus.CANCELLED}
)


class StepKind(StrEnum):
    """What a step is: a tool, a model call, or local code that is not deterministic."""

    TOOL_CALL = "tool_call"
    LLM_CALL = "llm_call"
    LOCAL = "local"


class Idempotency(StrEnum):
    """Whether a body whose outcome is unknown may run again."""

    SAFE_TO_RETRY = "safe_to_retry"
    AT_MOST_ONCE = "at_most_once"


class DispatchStatus(StrEnum):
    """Where the delivery of a run to its agent stands (protocol 4.1)."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    FAILED = "failed"
    EXHAUSTED = "exhausted"


class ApprovalStatus(StrEnum):
    """Where an approval stands (protocol 4.1)."""

    PENDING = "pending"
    GRANTED = "granted"
    DENIED = "denied"
    EXPIRED = "expired"


class Decision(StrEnum):
    """What the policies said of a step, as stored beside it."""

    ALLOW = "allow"
    DENY = "deny"
    REQUIRE_APPROVAL = "require_approval"
    RATE_LIMITED = "rate_limited"


class Answer(StrEnum):
    """What the kernel answers to a submit or a settle (protocol 5)."""

    PROCEED = "proceed"
    REPLAY = "replay"
    DENIED = "denied"
    BLOCKED = "blocked"
    EXECUTION_BLOCKED = "execution_blocked"
    RATE_LIMITED = "rate_limited"
    EXECUTION_TERMINAL = "execution_terminal"
    RECORDED = "recorded"


class ErrorCode(StrEnum):
    """The `code` of an error envelope (protocol 0.1)."""

    VALIDATION_ERROR = "validation_error"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    EXECUTION_TERMINAL = "execution_terminal"
    LEASE_SUPERSEDED = "lease_superseded"
    POLICY_DENIED = "policy_denied"
    UNAVAILABLE = "unavailable"
    INTERNAL_ERROR = "internal_error"


class Scope(StrEnum):
    """What a client may do (protocol 2.1). Write does not imply read."""

    EXECUTIONS_READ = "executions:read"
    EXECUTIONS_WRITE = "executions:write"
    APPROVALS_READ = "approvals:read"
    APPROVALS_WRITE = "approvals:write"
    AGENTS_READ = "agents:read"
    AGENTS_WRITE = "agents:write"
    POLICIES_WRITE = "policies:write"
    API_KEYS_MANAGE = "api_keys:manage"


class Reason(StrEnum):
    """Reason tokens that the kernel itself gives (protocol 5.2)."""

    POLICY_DENIED = "policy_denied"
    INDETERMINATE = "indeterminate"
    DISPATCH_EXHAUSTED = "dispatch_exhausted"
    CLIENT_CANCELLED = "client_cancelled"
    EXECUTION_CANCELLED = "execution_cancelled"
    EXECUTION_COMPLETED = "execution_completed"
    EXECUTION_FAILED = "execution_failed"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    PARENT_AGENT_TERMINAL = "parent_agent_terminal"
    AWAITING_STEPS = "awaiting_steps"
    APPROVAL_DENIED = "approval_denied"
    APPROVAL_TIMEOUT = "approval_timeout"
    TIMEOUT = "timeout"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    SUBAGENT_FAILED = "subagent_failed"
    SUBAGENT_CANCELLED = "subagent_cancelled"
    SUSPENDED = "suspended"
    LEASE_EXPIRED = "lease_expired"
    CONTINUED = "continued"


JSON_DEPTH_MAX: Final = 128
"""Arrays and objects inside one another that a JSON document of ours may have.

Past it Python's own JSON code raises at a depth that depends on the caller's stack, so both
ends refuse sooner, and always at the same depth.
"""

JSON_BYTES_MAX: Final = 10 * 1024 * 1024
"""Bytes of one JSON document (arguments, a result, an input): the protocol's body limit."""

SERVER_URL_DEFAULT: Final = "http://127.0.0.1:8080"
"""Where clients look for a server that nobody named: that of `proctor dev`."""

SERVER_URL_VARIABLE: Final = "PROCTOR_URL"
API_KEY_VARIABLE: Final = "PROCTOR_API_KEY"
"""Environment variables that name the server, and who asks it."""

EXECUTIONS_PAGE_MAX: Final = 200
EVENTS_PAGE_MAX: Final = 1000
APPROVALS_PAGE_MAX: Final = 1000
"""Most items of one page (protocol 1.2)."""
