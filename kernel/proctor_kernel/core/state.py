"""One run, folded from its events. Values only: `evolve` makes the next one.

Times are microseconds since 1970, UTC. Maps are persistent (`immutables.Map`), so that a run
of ten thousand steps costs the same per step as one of ten.
"""

import json
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from immutables import Map

from proctor.wire.words import (
    Decision,
    DispatchStatus,
    ExecutionStatus,
    Idempotency,
    StepKind,
    StepStatus,
)
from proctor_kernel.core.approvals import Approval, Gate
from proctor_kernel.core.identity import NULL, Json
from proctor_kernel.core.resources import Resource

GENESIS: Final = "0" * 64
"""The hash before the first event of a run."""

CallKey = tuple[StepKind, str, str]
"""Kind, target and hash of arguments: what the protocol counts occurrences of."""


class _Changeable:
    """A frozen dataclass of which changed copies are made all the time.

    `dataclasses.replace` calls the constructor, which for a frozen class of forty fields was
    measured to take longer than deciding; this copies what is there.
    """

    def changed(self, **fields: Any) -> Self:
        """Return a copy with some fields changed."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update(fields)
        return copy


@dataclass(frozen=True)
class Step(_Changeable):
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
    approval_id: str | None = None
    """The last approval that it waited for."""
    lifted: tuple[Gate, ...] = ()
    """Gates that people have lifted for it."""
    resources: tuple[str, ...] = ()
    """Resources that it names."""
    child: str | None = None
    """The run that its body started and waits for."""
    input_tokens: int | None = None
    output_tokens: int | None = None

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
    due_at: int | None = None
    """When somebody has to look at it: deliver it, try again, or take it over."""
    lease_micros: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """That an attempt asked for a step, where the answer put no event into the log."""

    step_id: str
    call_key: CallKey
    occurrence: int
    request_id: str | None
    parked: bool
    """The attempt was told to stop and wait."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one delivery attempt has asked so far; it begins empty at the claim.

    A replayed answer writes no event, so the log alone does not tell all of it: the rest are
    notes, in the memory of an embedded kernel or in a table that replicas share. A kernel
    without them does not guess: it answers that the lease is superseded.
    """

    dispatch_id: str
    number: int
    notes: int = 0
    """How many notes are in it."""
    parked: bool = False
    """Some call was told to wait, so the handler is over, whatever else it does."""
    occurrences: Map[CallKey, int] = field(default_factory=Map)
    proposed: Map[str, bool] = field(default_factory=Map)
    """Ids of the steps that this attempt asked for (the values are all True)."""
    requests: Map[str, str] = field(default_factory=Map)
    """Request id -> step id, of the submits that were answered."""

    @property
    def key(self) -> tuple[str, int]:
        """The dispatch and the number that this attempt acts under."""
        return (self.dispatch_id, self.number)

    def asked(self, note: Note) -> "Attempt":
        """Return the memory once the attempt has asked for a step."""
        # `max`: a repeated submit was counted when it came first, unless its recording looked
        # as if it had failed.
        counted = max(self.occurrences.get(note.call_key, 0), note.occurrence + 1)
        requests = self.requests
        if note.request_id is not None:
            requests = requests.set(note.request_id, note.step_id)
        return Attempt(
            self.dispatch_id,
            self.number,
            self.notes,
            self.parked or note.parked,
            occurrences=self.occurrences.set(note.call_key, counted),
            proposed=self.proposed.set(note.step_id, True),
            requests=requests,
        )

    def merged(self, other: "Attempt") -> "Attempt":
        """Return all that either of two memories of the same attempt has."""
        occurrences = self.occurrences
        for call_key, count in other.occurrences.items():
            occurrences = occurrences.set(call_key, max(count, occurrences.get(call_key, 0)))
        return replace(
            self,
            parked=self.parked or other.parked,
            occurrences=occurrences,
            proposed=self.proposed.update(other.proposed),
            requests=self.requests.update(other.requests),
        )

    def noted(self, note: Note) -> "Attempt":
        """Return the memory once a note has been kept."""
        after = self.asked(note)
        return replace(after, notes=self.notes + 1)


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

    def to_json(self) -> Json:
        """Return what the next run of the session is given."""
        return Json(
            json.dumps(
                {
                    "tools": sorted(self.tools),
                    "labels": sorted(self.labels),
                    "steps": self.steps,
                    "tool_calls": self.tool_calls,
                    "llm_calls": self.llm_calls,
                    "denials": self.denials,
                    "tokens": self.tokens,
                    "calls": dict(sorted(self.calls.items())),
                }
            )
        )

    @classmethod
    def from_json(cls, text: str) -> "Tally":
        """Read back what `to_json` wrote."""
        counts = json.loads(text)
        return cls(
            tools=frozenset(counts.pop("tools")),
            labels=frozenset(counts.pop("labels")),
            calls=Map(counts.pop("calls")),
            **counts,
        )


@dataclass(frozen=True)
class State(_Changeable):
    """One run as its log tells it. `status` None: nothing has happened to it."""

    execution_id: str
    seq: int = 0
    head: str = GENESIS
    """Hash of the last event."""
    status: ExecutionStatus | None = None
    agent_id: str = ""
    input: Json = NULL
    session: str | None = None
    parent_execution_id: str | None = None
    idempotency_key: str | None = None
    spawned_by: tuple[str, str] | None = None
    """The run and the step of it that wait for this one."""
    created_by: str | None = None
    on_behalf_of: str | None = None
    forked_from: str | None = None
    fork_seq: int = 0
    restoration: Json | None = None
    bundle: str | None = None
    """Rules that came with the run and must allow its calls too."""
    deadline_at: int | None = None
    output: Json | None = None
    left: Json | None = None
    """What the agent leaves for the run that follows."""
    failure_reason: str = ""
    passed_over: tuple[str, ...] = ()
    created_at: int = 0
    updated_at: int = 0
    """When the run itself (not a step of it) last changed."""
    started_at: int | None = None
    steps: Map[str, Step] = field(default_factory=Map)
    executing: frozenset[str] = frozenset()
    """Ids of the steps whose body is under way."""
    awaiting: frozenset[str] = frozenset()
    """Ids of the steps that wait for people."""
    spawning: frozenset[str] = frozenset()
    """Ids of the steps whose body waits for a run that it started."""
    approvals: Map[str, Approval] = field(default_factory=Map)
    resources: Map[str, Resource] = field(default_factory=Map)
    finished: Map[int, str] = field(default_factory=Map)
    """Ids of the steps that succeeded, numbered from 0 as they did."""
    indeterminate: frozenset[CallKey] = frozenset()
    """Calls that failed because nobody knows whether their body ran; they are not retried."""
    dispatch: Dispatch | None = None
    attempts: int = 0
    """How often an attempt has begun, over all dispatches."""
    fruitless_attempts: int = 0
    """Attempts since a step was last recorded."""
    tally: Tally = field(default_factory=Tally)
    payload_bytes: int = 0
    """Length of all payloads: roughly what the run takes up in memory."""
    attempt: Attempt | None = None
    """None when this kernel does not know all that the current attempt has asked."""

    @property
    def is_terminal(self) -> bool:
        """True when the run has ended."""
        return self.status is not None and self.status.is_terminal

    @property
    def waiting(self) -> frozenset[str]:
        """Ids of the steps that wait for people or for another run (protocol 4.4)."""
        return self.awaiting | self.spawning

    @property
    def under_way(self) -> frozenset[str]:
        """Ids of the steps whose body is at work itself."""
        return self.executing - self.spawning
