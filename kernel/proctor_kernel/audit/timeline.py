"""A run told as a person would tell it, from the entries of its log. Pure.

Entries come as the API shows them. What belongs together becomes one chapter: a call with its
decision, its approval and its outcome, however many events and attempts that took.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Entry = Mapping[str, Any]
"""One entry of a log: `event_seq`, `type`, `payload`, `occurred_at`."""

_REASONS = {
    "client_cancelled": "a client cancelled it",
    "deadline_exceeded": "its deadline passed",
    "parent_agent_terminal": "the run that waited for it ended",
    "dispatch_exhausted": "no attempt got any further",
    "lease_expired": "the attempt fell silent",
    "suspended": "the attempt stopped to wait",
    "continued": "what it waited for is there",
    "awaiting_steps": "calls wait",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened."""

    at: datetime
    seq: int
    mood: str
    """What it means: `good`, `bad`, `waits`, `ends` or `plain`."""
    text: str
    value: Any = None
    """What was given or returned, where something was."""
    has_value: bool = False
    details: tuple[str, ...] = ()


@dataclass(slots=True)
class Chapter:
    """What happened to one call; or to the run itself, when it has no title."""

    at: datetime
    title: str = ""
    args: Any = None
    step_id: str | None = None
    is_continued: bool = False
    """More of a call that began in an earlier chapter."""
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Story:
    """A run, told."""

    execution_id: str
    agent_id: str
    asked_by: str | None
    on_behalf_of: str | None
    input: Any
    began: datetime
    ended: datetime | None
    status: str
    chapters: tuple[Chapter, ...]
    attempts: int
    counts: Mapping[str, int]
    """`allow`, `deny`, ... -> how many calls."""


def tell(execution_id: str, entries: Iterable[Entry]) -> Story | None:
    """Return the story of a run, or None when its log is empty."""
    teller = _Teller()
    for entry in entries:
        teller.hear(entry)
    if teller.created is None or teller.began is None:
        return None
    created = teller.created
    return Story(
        execution_id=execution_id,
        agent_id=created["agent_id"],
        asked_by=created.get("created_by"),
        on_behalf_of=created.get("on_behalf_of"),
        input=created.get("input"),
        began=teller.began,
        ended=teller.ended,
        status=teller.status,
        chapters=tuple(teller.chapters),
        attempts=teller.attempt,
        counts=teller.counts,
    )


class _Teller:
    """What has been told so far."""

    def __init__(self) -> None:
        self.created: Mapping[str, Any] | None = None
        self.began: datetime | None = None
        self.ended: datetime | None = None
        self.status = "pending"
        self.chapters: list[Chapter] = []
        self.attempt = 0
        self.counts: dict[str, int] = {}
        self._calls: dict[str, Chapter] = {}
        self._started: dict[str, datetime] = {}
        self._asked: dict[str, datetime] = {}
        self._settled: set[str] = set()
        self._is_silent = False

    def hear(self, entry: Entry) -> None:
        """Take the next entry."""
        kind, _, what = str(entry["type"]).partition(".")
        at = datetime.fromisoformat(entry["occurred_at"])
        payload = entry.get("payload") or {}
        happened = _Happened(at, entry["event_seq"], what, payload)
        match kind:
            case "execution":
                self._execution(happened)
            case "dispatch":
                self._dispatch(happened)
            case "step":
                self._step(happened)
            case "approval":
                self._approval(happened)
            case "resource":
                self._of_run(happened.line("plain", _resource(happened)))
            case _:
                self._of_run(happened.line("plain", f"{entry['type']}"))

    def _execution(self, it: "_Happened") -> None:
        payload = it.payload
        if "status" in payload:
            self.status = payload["status"]
        match it.what:
            case "created":
                self.created, self.began = payload, it.at
                self._of_run(it.line("plain", _asked(payload)))
            case "forked":
                source = payload["source_execution_id"]
                own_rules = ", under rules of its own" if payload.get("policy_override") else ""
                self._of_run(
                    it.line(
                        "plain", f"a copy of {source} up to event {payload['fork_seq']}{own_rules}"
                    )
                )
            case "started":
                parent = payload.get("parent_execution_id")
                if parent:
                    self._of_run(it.line("plain", f"follows the run {parent}"))
            case "blocked":
                self._of_run(it.line("waits", "waits: nothing else is at work"))
            case "resumed":
                self._of_run(it.line("plain", "goes on"))
            case "completed" | "failed" | "cancelled":
                self.ended = it.at
                self._of_run(_end(it, self.began or it.at))

    def _dispatch(self, it: "_Happened") -> None:
        match it.what:
            case "claimed":
                self.attempt += 1
                if self.attempt > 1:
                    self._of_run(it.line("plain", self._taken_over()))
                self._is_silent = True
            case "failed":
                self._is_silent = False
                text = f"the agent did not take it: {it.payload.get('error', '')}"
                self._of_run(it.line("bad", text))
            case "discarded":
                self._is_silent = False
                if it.payload.get("reason") == "lease_expired":
                    self._of_run(it.line("bad", f"attempt {self.attempt} fell silent"))
            case "queued":
                self._is_silent = False
                due = it.payload.get("due_at")
                if isinstance(due, int):
                    seconds = due / 1e6 - it.at.timestamp()
                    self._of_run(it.line("waits", f"put off for {span(seconds)}"))

    def _taken_over(self) -> str:
        recorded = len(self._settled)
        text = f"attempt {self.attempt} begins"
        if self._is_silent:
            text = f"attempt {self.attempt - 1} fell silent; attempt {self.attempt} takes over"
        if recorded:
            results = "1 recorded call is" if recorded == 1 else f"{recorded} recorded calls are"
            text += f"; {results} answered from the record"
        return text

    def _step(self, it: "_Happened") -> None:
        payload = it.payload
        if it.what == "rate_limited":
            chapter = self._chapter(it.at, _called(payload), payload.get("args"))
            self._count("rate_limited")
            chapter.lines.append(it.ruled("bad", "over the limit"))
            return
        step_id = payload["step_id"]
        if it.what == "proposed":
            self._calls[step_id] = self._chapter(
                it.at, _called(payload), payload.get("args"), step_id
            )
            if payload.get("idempotency") == "at_most_once":
                self._calls[step_id].lines.append(it.line("plain", "must not run twice"))
            return
        chapter = self._chapter_of(step_id, it.at)
        match it.what:
            case "allowed":
                self._count("allow")
                chapter.lines.append(it.ruled("good", "allowed"))
            case "denied":
                self._count("deny")
                self._settled.add(step_id)
                chapter.lines.append(it.ruled("bad", "denied"))
            case "awaiting_approval":
                self._count("require_approval")
                chapter.lines.append(it.ruled("waits", "needs approval"))
            case "executing":
                self._executing(it, chapter, step_id)
            case "spawned":
                chapter.lines.append(
                    it.line("waits", f"waits for the run {payload['execution_id']}")
                )
            case "succeeded":
                self._settle(it, chapter, "good", "returned", payload.get("result"))
            case "failed":
                self._settle(it, chapter, "bad", "failed", payload.get("error"))
            case "cancelled":
                self._settle(it, chapter, "ends", "cut off", payload.get("error"))

    def _executing(self, it: "_Happened", chapter: Chapter, step_id: str) -> None:
        if step_id in self._started:
            chapter.lines.append(
                it.line("plain", f"its body runs again, in attempt {self.attempt}")
            )
        labels = it.payload.get("labels")
        if labels:
            chapter.lines.append(it.line("plain", f"leaves on the run: {', '.join(labels)}"))
        self._started[step_id] = it.at

    def _settle(self, it: "_Happened", chapter: Chapter, mood: str, word: str, value: Any) -> None:
        step_id = it.payload["step_id"]
        self._settled.add(step_id)
        began = self._started.get(step_id)
        took = "" if began is None else f" after {span((it.at - began).total_seconds())}"
        used = [
            f"{it.payload[name]:,} tokens {word}"
            for name, word in (("input_tokens", "in"), ("output_tokens", "out"))
            if it.payload.get(name) is not None
        ]
        line = Line(it.at, it.seq, mood, f"{word}{took}", value, True, tuple(used))
        chapter.lines.append(line)

    def _approval(self, it: "_Happened") -> None:
        payload = it.payload
        chapter = self._chapter_of(payload["step_id"], it.at)
        approval_id = payload["approval_id"]
        if it.what == "requested":
            self._asked[approval_id] = it.at
            chapter.lines += _requested(it)
            return
        waited = span((it.at - self._asked.get(approval_id, it.at)).total_seconds())
        by, rationale = payload.get("by", ""), payload.get("rationale") or ""
        details = (f'"{rationale}"',) if rationale else ()
        match it.what:
            case "voted":
                line = it.line("good", f"{by} agreed after {waited}; more have to", *details)
            case "granted":
                line = it.line("good", f"{by} agreed after {waited}: granted", *details)
            case "denied":
                line = it.line("bad", f"{by} said no after {waited}", *details)
            case _:
                text = f"nobody decided in {waited}"
                if rationale and rationale != "timeout":
                    text = f"not decided any more after {waited}: {_reason(rationale)}"
                line = it.line("bad", text)
        chapter.lines.append(line)

    def _count(self, decision: str) -> None:
        self.counts[decision] = self.counts.get(decision, 0) + 1

    def _chapter(
        self, at: datetime, title: str, args: Any = None, step_id: str | None = None
    ) -> Chapter:
        chapter = Chapter(at, title, args, step_id)
        self.chapters.append(chapter)
        return chapter

    def _chapter_of(self, step_id: str, at: datetime) -> Chapter:
        """Return where a call is told: anew, when something happened to the run meanwhile."""
        chapter = self._calls[step_id]
        for later in reversed(self.chapters):
            if later is chapter:
                return chapter
            if not later.title:
                break
        again = Chapter(at, chapter.title, step_id=step_id, is_continued=True)
        self.chapters.append(again)
        self._calls[step_id] = again
        return again

    def _of_run(self, line: Line) -> None:
        if not self.chapters or self.chapters[-1].title:
            self.chapters.append(Chapter(line.at))
        self.chapters[-1].lines.append(line)


@dataclass(frozen=True, slots=True)
class _Happened:
    at: datetime
    seq: int
    what: str
    payload: Mapping[str, Any]

    def line(self, mood: str, text: str, *details: str) -> Line:
        return Line(self.at, self.seq, mood, text, details=details)

    def ruled(self, mood: str, word: str) -> Line:
        """Tell a decision with its rules, its reason and the rule set."""
        payload = self.payload
        rules = ", ".join(payload.get("rule_ids") or [])
        reason = payload.get("reason") or ""
        details = []
        if reason:
            details.append(reason)
        if payload.get("shadow"):
            details.append(f"on trial, would refuse: {', '.join(payload['shadow'])}")
        details += [f"error: {error}" for error in payload.get("errors") or []]
        text = f"{word} by {rules}" if rules else word
        ruleset = payload.get("ruleset")
        if ruleset:
            text += f" (rules {ruleset[:12]}, {payload.get('policy_micros', 0):,} µs)"
        return Line(self.at, self.seq, mood, text, details=tuple(details))


def _asked(payload: Mapping[str, Any]) -> str:
    if payload.get("spawned_by_execution"):
        return f"started by a call of the run {payload['spawned_by_execution']}"
    by = payload.get("created_by") or "somebody who gave no name"
    text = f"{by} asked for it"
    if payload.get("on_behalf_of"):
        text += f" on behalf of {payload['on_behalf_of']}"
    if payload.get("session"):
        text += f", in the session {payload['session']}"
    return text


def _end(it: _Happened, began: datetime) -> Line:
    took = f"after {span((it.at - began).total_seconds())}"
    passed = tuple(
        f"recorded and not asked for again: {step_id}"
        for step_id in it.payload.get("passed_over") or []
    )
    match it.what:
        case "completed":
            output = it.payload.get("output")
            return Line(it.at, it.seq, "good", f"completed {took}", output, True, passed)
        case "failed":
            text = f"failed {took}: {_reason(it.payload.get('reason', ''))}"
            return Line(it.at, it.seq, "bad", text, details=passed)
        case _:
            text = f"cancelled {took}: {_reason(it.payload.get('reason', ''))}"
            return Line(it.at, it.seq, "ends", text)


def _requested(it: _Happened) -> Iterator[Line]:
    message = it.payload.get("message")
    gates = it.payload.get("gates") or []
    if isinstance(gates, str):
        gates = json.loads(gates)
    for gate in gates:
        who = ", ".join(gate.get("approvers") or []) or "whoever may approve"
        quorum = gate.get("quorum", 1)
        people = "1 person has" if quorum == 1 else f"{quorum} people have"
        seconds = gate.get("timeout_micros", 0) / 1e6
        text = f"asked {who}: {people} to agree within {span(seconds)}"
        yield it.line("waits", text, *([message] if message else []))


def _resource(it: _Happened) -> str:
    ref = it.payload.get("checkpoint_ref")
    more = f" ({ref})" if ref else ""
    return f"resource {it.payload.get('key', '')} {it.what}{more}"


def _called(payload: Mapping[str, Any]) -> str:
    kind = payload.get("step_type") or payload.get("kind")
    target = str(payload.get("target"))
    return {"llm_call": f"model {target}", "local": f"local {target}"}.get(str(kind), target)


def _reason(reason: str) -> str:
    return _REASONS.get(reason, reason)


def span(seconds: float) -> str:
    """Return a duration as short as it can be said."""
    if seconds < 0.0995:
        return (
            f"{max(seconds, 0) * 1000:.1f} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"
        )
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    if whole < 86400:
        minutes = whole % 3600 // 60
        return f"{whole // 3600} h {minutes} min" if minutes else f"{whole // 3600} h"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
