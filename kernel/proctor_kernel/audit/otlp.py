"""OTLP sinks: spans and log records over HTTP or gRPC, by OpenTelemetry's own exporters.

Where to, with which headers, certificates, compression and time limit: the standard `OTEL_*`
variables, which those exporters read. What is sent is made from the log, so nothing is sampled.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any, Final, Literal, Protocol

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from proctor_kernel.audit import attributes as names
from proctor_kernel.audit.leaving import Leaving
from proctor_kernel.audit.shipping import SinkDown, SinkRefused
from proctor_kernel.audit.span import Span, Value, given
from proctor_kernel.core import event_json, events

Signal = Literal["traces", "logs"]

REFUSED_STATUS: Final = frozenset({400, 405, 411, 413, 414, 415, 422, 431})
"""HTTP answers that stay the same, however often the same is sent."""

_REFUSED_CODES: Final = frozenset(
    {"INVALID_ARGUMENT", "OUT_OF_RANGE", "UNIMPLEMENTED", "DATA_LOSS", "FAILED_PRECONDITION"}
)
_NANOS_PER_MICRO: Final = 1000
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)

_scope: Final = InstrumentationScope("proctor", version("proctor"))


class _Exporter(Protocol):
    def export(self, batch: Sequence[Any]) -> Any: ...

    def shutdown(self) -> None: ...


class OtlpSink:
    """Sends spans, or one log record for each event, to an OTLP receiver."""

    def __init__(self, signal: Signal, protocol: str | None = None) -> None:
        """`protocol`: `grpc` or `http/protobuf`; None: as the standard variables say.

        Raises ValueError for another one, and for what the variables hold that is not right.
        """
        protocol = protocol or protocol_of(signal)
        self._answers = _Answers()
        self._exporter = _exporter(signal, protocol, self._answers)
        self._records = _spans if signal == "traces" else _log_records
        self._resource = resource()
        # A thread of its own: what the exporter logs there is told by whoever ships.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"otlp-{signal}")

    async def ship(self, batch: Sequence[Leaving]) -> int:
        """Send what there is to send of a batch; returns how many records."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._send, batch)

    async def aclose(self) -> None:
        """Close the connection."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._exporter.shutdown)
        self._thread.shutdown(wait=False)

    def _send(self, batch: Sequence[Leaving]) -> int:
        records = self._records(batch, self._resource)
        if not records:
            return 0
        with self._answers.heard():
            result = self._exporter.export(records)
        if result.name != "SUCCESS":
            raise self._answers.error()
        if self._answers.rejected:
            # Which ones is not said: they are found by sending fewer.
            raise SinkRefused(self._answers.rejected)
        return len(records)


def resource() -> Resource:
    """Return what spans, records and metrics are of; the standard variables may say more."""
    mine = {"service.version": version("proctor")}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        mine["service.name"] = "proctor"
    return Resource.create(mine)


def protocol_of(signal: Signal) -> str:
    """Return the protocol that the standard variables name; HTTP when they name none."""
    return (
        os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )


def _exporter(signal: Signal, protocol: str, answers: "_Answers") -> _Exporter:
    match protocol, signal:
        case "http/protobuf", "traces":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            return OTLPSpanExporter(session=answers.session())
        case "http/protobuf", "logs":
            from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter

            return OTLPLogExporter(session=answers.session())
        case "grpc", "traces":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
                OTLPSpanExporter as GrpcSpanExporter,
            )

            return GrpcSpanExporter()
        case "grpc", "logs":
            from opentelemetry.exporter.otlp.proto.grpc._log_exporter import (
                OTLPLogExporter as GrpcLogExporter,
            )

            return GrpcLogExporter()
        case _:
            raise ValueError(
                f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; write 'http/protobuf' or 'grpc'"
            )


class _Answers:
    """What a receiver answered to the last request: exporters only tell whether all went well."""

    def __init__(self) -> None:
        self.rejected = ""
        """Why records of an accepted request were not taken."""
        self._status: int | None = None
        self._body = ""
        self._said: list[logging.LogRecord] = []

    def session(self) -> Any:
        """Return a session for an HTTP exporter that tells what it is answered."""
        import requests

        session = requests.Session()
        session.hooks["response"].append(self._answered)
        return session

    def heard(self) -> "_Heard":
        """Listen to what this thread's exporter logs, for a block."""
        self.rejected, self._status, self._body = "", None, ""
        self._said = []
        return _Heard(self._said.append)

    def error(self) -> SinkDown | SinkRefused:
        """Return what a failed request means."""
        if self._status is not None:
            if self._status in REFUSED_STATUS:
                return SinkRefused(f"HTTP {self._status} {self._body}".strip())
            return SinkDown(f"it answers HTTP {self._status}")
        message = _cause(self._said)
        given = [each for record in self._said for each in record.args or ()]
        codes = {str(getattr(each, "name", "")) for each in given}
        is_too_large = "max_request_size" in message
        refused = is_too_large or not codes.isdisjoint(_REFUSED_CODES)
        return (SinkRefused if refused else SinkDown)(message)

    def _answered(self, response: Any, *_: Any, **__: Any) -> None:
        self._status = response.status_code
        if not response.ok:
            self._body = " ".join(response.text.split())[:200]
            return
        self.rejected = _rejected(response.content, response.headers.get("Content-Type", ""))


def _cause(said: Sequence[logging.LogRecord]) -> str:
    """Return why a request failed: what made it be tried again, or else what ended it."""
    for record in said:
        if str(record.msg).startswith("Transient error") and isinstance(record.args, tuple):
            return str(record.args[0])
    return said[-1].getMessage() if said else "it cannot be reached"


def _rejected(body: bytes, content_type: str) -> str:
    """Return why records of an accepted request were not taken; "" when all were."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

    if not body or "protobuf" not in content_type:
        return ""
    # Both signals answer in the same form: field 1 has a count and a message.
    try:
        partial = ExportLogsServiceResponse.FromString(body).partial_success
    except DecodeError:
        return ""
    if not partial.rejected_log_records:
        return ""
    return partial.error_message or f"{partial.rejected_log_records} records were rejected"


class _Heard:
    """Takes what the exporters log on this thread, and lets pass what others of them log."""

    _LOGGERS: Final = (
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "opentelemetry.exporter.otlp.proto.http._log_exporter",
        "opentelemetry.exporter.otlp.proto.grpc.exporter",
        "opentelemetry.exporter.otlp.common.http",
    )

    def __init__(self, heard: Callable[[logging.LogRecord], None]) -> None:
        self._heard = heard
        self._thread = threading.get_ident()

    def __enter__(self) -> None:
        for name in self._LOGGERS:
            # First of all: the exporters' own filter keeps repeated messages back.
            logging.getLogger(name).filters.insert(0, self._take)

    def __exit__(self, *_: object) -> None:
        for name in self._LOGGERS:
            logging.getLogger(name).removeFilter(self._take)

    def _take(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread:
            return True
        self._heard(record)
        return False


def _spans(batch: Sequence[Leaving], of: Resource) -> list[ReadableSpan]:
    return [_span(span, of) for each in batch for span in each.spans]


def _span(span: Span, of: Resource) -> ReadableSpan:
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=None if span.parent_id is None else _context(span.trace_id, span.parent_id),
        resource=of,
        attributes=dict(span.attributes),
        events=[
            Event(moment.name, dict(moment.attributes), moment.at * _NANOS_PER_MICRO)
            for moment in span.moments
        ],
        links=[Link(_context(*ids)) for ids in span.links],
        kind=SpanKind.CLIENT if span.is_client else SpanKind.INTERNAL,
        status=_OK if span.failure is None else Status(StatusCode.ERROR, span.failure),
        start_time=span.start * _NANOS_PER_MICRO,
        end_time=span.end * _NANOS_PER_MICRO,
        instrumentation_scope=_scope,
    )


_OK: Final = Status(StatusCode.OK)


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_SAMPLED)


def _log_records(batch: Sequence[Leaving], of: Resource) -> list[ReadableLogRecord]:
    return [ReadableLogRecord(_log_record(each), of, _scope) for each in batch]


def _log_record(each: Leaving) -> LogRecord:
    record = each.record
    name = event_json.name(record.event)
    severity = _SEVERITY.get(type(record.event), SeverityNumber.INFO)
    at = record.at * _NANOS_PER_MICRO
    return LogRecord(
        timestamp=at,
        # The same for every export of it, so that a repeat is the same record.
        observed_timestamp=at,
        context=set_span_in_context(
            NonRecordingSpan(_context(each.trace_id, each.span_id)), Context()
        ),
        severity_number=severity,
        severity_text=severity.name,
        body=record.payload,
        event_name=f"proctor.{name}",
        attributes=_attributes(each),
    )


_SEVERITY: Final[dict[type[events.Event], SeverityNumber]] = {
    events.StepDenied: SeverityNumber.WARN,
    events.StepRateLimited: SeverityNumber.WARN,
    events.StepFailed: SeverityNumber.WARN,
    events.ApprovalDenied: SeverityNumber.WARN,
    events.ApprovalExpired: SeverityNumber.WARN,
    events.DispatchFailed: SeverityNumber.WARN,
    events.ExecutionFailed: SeverityNumber.ERROR,
}


def _attributes(each: Leaving) -> dict[str, Value]:
    record, event = each.record, each.record.event
    return given(
        {
            names.EXECUTION: record.execution_id,
            names.EVENT_SEQ: record.seq,
            names.EVENT_HASH: record.hash,
            names.EVENT_IS_MASKED: each.is_masked,
            names.GEN_AI_AGENT: each.agent_id,
            names.GEN_AI_CONVERSATION: each.session or "",
            names.STEP_TARGET: each.target,
            names.STEP: getattr(event, "step_id", ""),
            names.APPROVAL: getattr(event, "approval_id", ""),
            names.DECISION: str(getattr(event, "decision", "")),
            names.REASON: str(getattr(event, "reason", None) or ""),
            names.RULES: getattr(event, "rule_ids", ()),
            names.RULESET: getattr(event, "ruleset", "") or "",
        }
    )
