"""Sinks as they are named on the command line, and by the standard variables.

    otlp-traces     otlp-logs     jsonl:/var/log/proctor.jsonl     stdout

Where OTLP goes is in the `OTEL_EXPORTER_OTLP_...` variables; where one of them names an endpoint,
its sinks are there without being named.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from proctor_kernel.audit.shipping import Sink

Kind = Literal["otlp-traces", "otlp-logs", "jsonl", "stdout"]

FORMS: Final = "otlp-traces, otlp-logs, jsonl:PATH or stdout"


class SinkUnknown(ValueError):
    """What is named is no sink, or none that can be opened; the message says why."""


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """One sink that was asked for. `name` is that of its cursor."""

    name: str
    kind: Kind
    path: str = ""


def parse(text: str) -> SinkSpec:
    """Read one name of a sink.

    Raises:
        SinkUnknown: it is none.
    """
    kind, _, path = text.strip().partition(":")
    match kind:
        case "otlp-traces" | "otlp-logs" | "stdout" if not path:
            return SinkSpec(kind, kind)
        case "jsonl" if path:
            return SinkSpec(f"jsonl:{path}", "jsonl", path)
        case _:
            raise SinkUnknown(f"{text!r} is no sink; write {FORMS}")


def chosen(given: Sequence[str], variables: Mapping[str, str]) -> tuple[SinkSpec, ...]:
    """Return the sinks that are asked for by name, or else by the standard variables.

    Raises:
        SinkUnknown: one is none, or is named twice.
    """
    specs = [parse(each) for text in given for each in text.split(",") if each.strip()]
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise SinkUnknown(f"{name} is named twice")
    if specs or given:
        return tuple(specs)
    if variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ()
    return tuple(
        parse(name)
        for name, signal in (("otlp-traces", "TRACES"), ("otlp-logs", "LOGS"))
        if _is_asked_for(signal, variables)
    )


def _is_asked_for(signal: str, variables: Mapping[str, str]) -> bool:
    exporter = variables.get(f"OTEL_{signal}_EXPORTER", "")
    if exporter:
        return "otlp" in [each.strip() for each in exporter.split(",")]
    endpoints = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return any(variables.get(name) for name in endpoints)


def opened(spec: SinkSpec) -> Sink:
    """Open a sink.

    Raises:
        SinkUnknown: it cannot be one here: no such folder, or variables that are not right.
    """
    match spec.kind:
        case "otlp-traces" | "otlp-logs":
            # Imported here: a kernel that exports nothing need not load gRPC.
            from proctor_kernel.audit.otlp import OtlpSink

            try:
                return OtlpSink("traces" if spec.kind == "otlp-traces" else "logs")
            except (ValueError, OSError) as error:
                raise SinkUnknown(f"{spec.name}: {error}") from error
        case "jsonl":
            from proctor_kernel.audit.jsonl import JsonLinesFile

            folder = Path(spec.path).resolve().parent
            if not folder.is_dir():
                raise SinkUnknown(f"{spec.name}: the folder {str(folder)!r} does not exist")
            if not os.access(folder, os.W_OK):
                raise SinkUnknown(f"{spec.name}: nothing can be written in {str(folder)!r}")
            return JsonLinesFile(Path(spec.path))
        case "stdout":
            from proctor_kernel.audit.jsonl import JsonLinesStream

            return JsonLinesStream()
