"""What an agent and the kernel exchange for each call.

Frozen dataclasses of plain Python, so that the kernel's core may use them. User values are
JSON **text** here: a value is encoded once, where it was made, and its number literals reach
the hash as they were sent (protocol 3).
"""

from dataclasses import dataclass

from proctor.wire.words import Answer, ErrorCode, Idempotency, StepKind


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act for a run: one attempt of one dispatch (protocol 6)."""

    dispatch_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A run handed to its agent (the webhook of protocol 2.4, or its in-process form)."""

    execution_id: str
    agent_id: str
    lease: Lease
    input_json: str


@dataclass(frozen=True, slots=True)
class StepResource:
    """A resource that a call may change, as the agent is told when the call starts."""

    key: str
    generation: int
    due: bool = False
    """The call's outcome should come with a checkpoint of it."""


@dataclass(frozen=True, slots=True)
class Capture:
    """A checkpoint that a driver has made (protocol 1.3)."""

    key: str
    generation: int
    checkpoint_ref: str


@dataclass(frozen=True, slots=True)
class CaptureFailure:
    """A checkpoint that a driver could not make."""

    key: str
    generation: int
    error: str


@dataclass(frozen=True, slots=True)
class StepSubmission:
    """A call that asks whether its body may run (protocol 1.3, POST steps)."""

    kind: StepKind
    target: str
    args_json: str
    idempotency: Idempotency
    request_id: str | None = None
    """Makes a submit that was sent again, because its answer was lost, the same submit.

    None (the published protocol client): every submit is a new call.
    """
    resources: tuple[str, ...] = ()
    """Registered resources that the call changes."""


@dataclass(frozen=True, slots=True)
class StepReply:
    """The kernel's answer to a submit or to a settled step (protocol 5)."""

    decision: Answer
    step_id: str | None = None
    result_json: str | None = None
    error_json: str | None = None
    reason: str = ""
    rule_id: str = ""
    approval_id: str | None = None
    resources: tuple[StepResource, ...] = ()


class WireError(Exception):
    """An error envelope on its way to the caller (protocol 0.1).

    The kernel raises it; the caller's end turns `code` into a class of its own.
    """

    def __init__(self, code: ErrorCode, message: str, details: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details
