"""One run, folded from its events. Values only: `evolve` makes the next one.

Times are microseconds since 1970, UTC. Maps are persistent (`immutables.Map`), so that a run
of ten thousand steps costs the same per step as one of ten.
"""

from dataclasses import dataclass, field
from typing import Final

from immutables import Map

from proctor.wire.words import (
    Decision,
    DispatchStatus,
    ExecutionStatus,
    Idempotency,
    StepKind,
    StepStatus,
)
from proctor_kernel.core.identity import NULL, Json

GENESIS: Final = "0" * 64
"""The hash before the first event of a run."""

CallKey = tuple[StepKind, str, str]
"""Kind, target and hash of arguments: what the protocol counts occurrences of."""


@dataclass(frozen=True, slots=True)
class Step:
    """One governed call, with the decision about it and its outcome."""

    step_id: str
    kind: StepKind
    target: str
    args: Json
    args_hash: str
    occurrence: int
    idempotency: Idempotency
    status: StepStatus
    proposed_seq: int
    """Sequence number of its first event: the order of the run."""
    proposed_attempt: int
    decision: Decision | None = None
    reason: str = ""
    rule_ids: tuple[str, ...] = ()
    ruleset: str = ""
    policy_micros: int = 0
    shadow: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """What it left on the session."""
    result: Json | None = None
    error: Json | None = None
    started_at: int | None = None
    completed_at: int | None = None

    @property
    def call_key(self) -> CallKey:
        """What this step has in common with its other occurrences."""
        return (self.kind, self.target, self.args_hash)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The delivery of a run to its agent."""

    dispatch_id: str
    status: DispatchStatus
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one delivery attempt has asked so far; it begins empty at the claim.

    A replayed answer writes nothing to the log, so this is memory of the kernel that saw the
    attempt begin, and is not folded. A kernel without it does not guess: it answers that the
    lease is superseded.
    """

    dispatch_id: str
    number: int
    occurrences: Map[CallKey, int] = field(default_factory=Map)
    proposed: Map[str, bool] = field(default_factory=Map)
    """Ids of the steps that this attempt asked for (the values are all True)."""
    requests: Map[str, str] = field(default_factory=Map)
    """Request id -> step id, of the submits that were answered."""

    @property
    def key(self) -> tuple[str, int]:
        """The dispatch and the number that this attempt acts under."""
        return (self.dispatch_id, self.number)


@dataclass(frozen=True, slots=True)
class Tally:
    """What the run has done so far, as rules see it in `context.session`."""

    tools: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    steps: int = 0
    tool_calls: int = 0
    llm_calls: int = 0
    denials: int = 0
    tokens: int = 0
    calls: Map[str, int] = field(default_factory=Map)
    """How often each target has started."""


@dataclass(frozen=True, slots=True)
class State:
    """One run as its log tells it. `status` None: nothing has happened to it."""

    execution_id: str
    seq: int = 0
    head: str = GENESIS
    """Hash of the last event."""
    status: ExecutionStatus | None = None
    agent_id: str = ""
    input: Json = NULL
    output: Json | None = None
    failure_reason: str = ""
    passed_over: tuple[str, ...] = ()
    created_at: int = 0
    updated_at: int = 0
    """When the run itself (not a step of it) last changed."""
    started_at: int | None = None
    steps: Map[str, Step] = field(default_factory=Map)
    executing: frozenset[str] = frozenset()
    """Ids of the steps whose body is under way."""
    finished: Map[int, str] = field(default_factory=Map)
    """Ids of the steps that succeeded, numbered from 0 as they did."""
    indeterminate: frozenset[CallKey] = frozenset()
    """Calls that failed because nobody knows whether their body ran; they are not retried."""
    requests: Map[str, str] = field(default_factory=Map)
    """Request id -> step id, of the submits of the current attempt that the log has."""
    dispatch: Dispatch | None = None
    fruitless_attempts: int = 0
    """Attempts since a step was last recorded."""
    tally: Tally = field(default_factory=Tally)
    payload_bytes: int = 0
    """Length of all payloads: roughly what the run takes up in memory."""
    attempt: Attempt | None = None
    """None when this kernel did not see the current attempt begin."""

    @property
    def is_terminal(self) -> bool:
        """True when the run has ended."""
        return self.status is not None and self.status.is_terminal
