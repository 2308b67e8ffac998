"""What a line of the service's own log looks like, and the ids that belong on it.

INVARIANT: no line has arguments, results, inputs or secrets. So what a run is about is said by
ids, and an exception whose message may quote what it met is named by its type and place alone.
"""

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal

from proctor.wire.calls import Lease
from proctor_kernel.core.identity import span_id, trace_id
from proctor_kernel.store.database import StoreError

LogFormat = Literal["text", "json"]

REQUEST_ID: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""The request under whose handling a line is written."""

VALUE_CHARACTERS_MAX: Final = 200
"""Longer texts are cut: a tool's name is chosen by a model."""

_FIELDS: Final = "proctor_fields"
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/,")

_SAYABLE: Final = (OSError, StoreError)
"""Exceptions whose messages are about the system, and do not quote what was being handled."""

Value = str | int | float | bool | None


def about(
    execution_id: str | None = None,
    *,
    step_id: str | None = None,
    agent_id: str | None = None,
    lease: Lease | None = None,
    **more: Value,
) -> dict[str, Any]:
    """Return what a line is about, as `extra` of a logging call; what is None is left out.

    A run's trace and span ids are the ones that its exported spans have.
    """
    fields: dict[str, Value] = {}
    if execution_id is not None:
        fields["execution_id"] = execution_id
    if step_id is not None:
        fields["step_id"] = step_id
    if agent_id is not None:
        fields["agent_id"] = _cut(agent_id)
    if lease is not None:
        fields["dispatch_id"] = lease.dispatch_id
        fields["attempt"] = lease.attempt
    if execution_id is not None:
        fields["trace_id"] = trace_id(execution_id)
        fields["span_id"] = span_id(step_id or execution_id)
    for name, value in more.items():
        if value is not None:
            fields[name] = _cut(value) if isinstance(value, str) else value
    return {_FIELDS: fields}


class JsonLines(logging.Formatter):
    """One JSON object a line: at, level, logger, message, and the fields beside them."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line: dict[str, Any] = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = told(record.exc_info[1])
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """A line for people: time, level, message, then the fields as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; below it, where an exception came from."""
        # Control characters are written out: a name with a line end in it must not make a line.
        message = "".join(
            each if each.isprintable() else repr(each)[1:-1] for each in _text(record)
        )
        fields = " ".join(f"{name}={_quoted(value)}" for name, value in _fields(record).items())
        line = f"{_at(record)} {record.levelname:<7} {message}{'  ' if fields else ''}{fields}"
        if record.exc_info and record.exc_info[1] is not None:
            line += "\n" + told(record.exc_info[1])
        return line


def told(error: BaseException) -> str:
    """Return where an exception came from and what it is, without what its message may quote."""
    parts: list[str] = []
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        frames = "".join(traceback.format_tb(at.__traceback__))
        name = f"{type(at).__module__}.{type(at).__qualname__}".removeprefix("builtins.")
        said = f": {at}" if isinstance(at, _SAYABLE) else ""
        parts.append(f"{frames}{name}{said}")
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return "\ncaused by\n".join(parts)


def log_to_stderr(level: str, log_format: LogFormat) -> None:
    """Send every line of this process to stderr, in one format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Each request has a line of ours; and what libraries say while debugging quotes bodies.
    for noisy in ("httpx2", "httpcore2", "uvicorn.access", "asyncio", "filelock", "sqlalchemy"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _fields(record: logging.LogRecord) -> Mapping[str, Value]:
    fields: Mapping[str, Value] = getattr(record, _FIELDS, {})
    request_id = REQUEST_ID.get()
    return fields if request_id is None else {**fields, "request_id": request_id}


def _text(record: logging.LogRecord) -> str:
    return record.getMessage()


def _at(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_CHARACTERS_MAX else text[: VALUE_CHARACTERS_MAX - 3] + "..."


def _quoted(value: Value) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if text and _PLAIN.issuperset(text) else json.dumps(text)
