"""The service's metrics, pushed by OTLP where OpenTelemetry's variables name an endpoint.

Not counted a second time: each push reads what `/metrics` shows (`exposition`), so both agree. Of
several workers one pushes for all, since their numbers are one: whoever holds a lock in the folder
that they count in; when it dies, another takes over under the same identity.
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from proctor_kernel import otlp_points, world
from proctor_kernel.exposition import SHARED, Exposition

INTERVAL_SECONDS: Final = 60.0
"""Between two pushes, unless OTEL_METRIC_EXPORT_INTERVAL (milliseconds) says."""

TIMEOUT_SECONDS: Final = 10.0
"""What one push may take, unless OTEL_METRIC_EXPORT_TIMEOUT (milliseconds) says."""

_LAST_PUSH_SECONDS_MAX: Final = 2.0
_PROTOCOLS: Final = ("http/protobuf", "grpc")
_NANOS_PER_MICRO: Final = 1000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Destination:
    """How metrics are pushed. Where to, and with which headers, its exporter reads itself."""

    protocol: str
    interval_seconds: float = INTERVAL_SECONDS
    timeout_seconds: float = TIMEOUT_SECONDS


def destination(environment: Mapping[str, str]) -> Destination | None:
    """Return where metrics are pushed to, or None when they are not.

    Raises:
        ValueError: a variable has a value that cannot be followed; the message names it.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporters = [each.strip() for each in environment.get("OTEL_METRICS_EXPORTER", "").split(",")]
    # Unknown ones are other programs' business: the variables are set for whole machines.
    if any(exporters) and "otlp" not in exporters:
        return None
    if not _either(environment, "ENDPOINT"):
        return None
    protocol = _either(environment, "PROTOCOL") or _PROTOCOLS[0]
    if protocol not in _PROTOCOLS:
        raise ValueError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; metrics are pushed by "
            f"{' or '.join(_PROTOCOLS)}, or not at all with OTEL_METRICS_EXPORTER=none"
        )
    return Destination(
        protocol,
        _seconds(environment, "OTEL_METRIC_EXPORT_INTERVAL", INTERVAL_SECONDS),
        _seconds(environment, "OTEL_METRIC_EXPORT_TIMEOUT", TIMEOUT_SECONDS),
    )


@asynccontextmanager
async def pushing(exposition: Exposition) -> AsyncIterator[None]:
    """Push the metrics for the time of a block, and once more at its end, if anybody wants them."""
    wanted = destination(os.environ)
    if wanted is None:
        yield
        return
    pusher = Pusher(exposition, wanted)
    task = asyncio.create_task(pusher.run(), name="push metrics")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pusher.close()


class Pusher:
    """Pushes what an exposition shows, again and again, and never fails for its receiver."""

    def __init__(self, exposition: Exposition, wanted: Destination) -> None:
        self._exposition = exposition
        self._wanted = wanted
        self._exporter = _exporter(wanted)
        shared = os.environ.get(SHARED)
        self._lock = None if shared is None else FileLock(Path(shared) / "push.lock")
        self._identity: _Identity | None = None
        self._failing = False

    async def run(self) -> None:
        """Push until cancelled; the first push is soon, so that a wrong address shows."""
        delay = min(1.0, self._wanted.interval_seconds)
        while True:
            await asyncio.sleep(delay)
            delay = self._wanted.interval_seconds
            try:
                await self._push(self._wanted.timeout_seconds)
            except Exception:
                # The outermost loop: metrics that stop are a reason to look, not to stop.
                _logger.exception("pushing metrics failed")

    async def close(self) -> None:
        """Push the last numbers, if pushing works, and let go of the connection."""
        try:
            if self._identity is not None and not self._failing:
                await self._push(_LAST_PUSH_SECONDS_MAX)
        finally:
            # Interrupts a push that still waits to try again, whose thread would hold the end up.
            await asyncio.to_thread(self._exporter.shutdown)
            if self._lock is not None:
                self._lock.release()

    async def _push(self, timeout_seconds: float) -> None:
        identity = self._own_identity()
        if identity is None:
            return
        await self._exposition.look()
        worked = False
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                worked = await asyncio.to_thread(self._export, identity, timeout_seconds)
        self._tell(worked)

    def _export(self, identity: "_Identity", timeout_seconds: float) -> bool:
        sent = otlp_points.metrics_data(
            self._exposition.collect(),
            resource=identity.resource(),
            since_nanos=identity.since_nanos,
            now_nanos=world.now_micros() * _NANOS_PER_MICRO,
        )
        result = self._exporter.export(sent, timeout_millis=timeout_seconds * 1000)
        return result is MetricExportResult.SUCCESS

    def _own_identity(self) -> "_Identity | None":
        """Return under which identity this process pushes; None: another worker does."""
        if self._identity is not None:
            return self._identity
        if self._lock is None:
            self._identity = _Identity.new()
        else:
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                return None
            self._identity = _Identity.of_service(Path(os.environ[SHARED]) / "pushed.json")
        return self._identity

    def _tell(self, worked: bool) -> None:
        if not worked and not self._failing:
            _logger.warning(
                "metrics are not taken by their OTLP endpoint (%s); this is tried again every "
                "%g seconds, and /metrics has them",
                self._wanted.protocol,
                self._wanted.interval_seconds,
            )
        elif worked and self._failing:
            _logger.warning("metrics are taken by their OTLP endpoint again")
        self._failing = not worked


@dataclass(frozen=True, slots=True)
class _Identity:
    """Which instance pushes, and since when its counters count."""

    instance_id: str
    since_nanos: int

    @classmethod
    def new(cls) -> "_Identity":
        return cls(world.new_id(), world.now_micros() * _NANOS_PER_MICRO)

    @classmethod
    def of_service(cls, path: Path) -> "_Identity":
        """Return that of all workers: the first to push made it, and others go on under it."""
        try:
            kept = json.loads(path.read_text())
            return cls(kept["instance_id"], kept["since_nanos"])
        except FileNotFoundError:
            made = cls.new()
            path.write_text(
                json.dumps({"instance_id": made.instance_id, "since_nanos": made.since_nanos})
            )
            return made

    def resource(self) -> Resource:
        """Return who sends; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have the last word."""
        own = Resource(
            {
                "service.name": "proctor",
                "service.version": version("proctor"),
                "service.instance.id": self.instance_id,
                "host.name": socket.gethostname(),
            }
        )
        return own.merge(OTELResourceDetector().detect())


def _exporter(wanted: Destination) -> MetricExporter:
    exporter: MetricExporter
    if wanted.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
            OTLPMetricExporter as Grpc,
        )

        exporter = Grpc()
    else:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
            OTLPMetricExporter as Http,
        )

        exporter = Http()
    # What it says of every failed try we say once.
    for name in (type(exporter).__module__, "opentelemetry.exporter.otlp.proto.grpc.exporter"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return exporter


def _either(environment: Mapping[str, str], name: str) -> str:
    own = environment.get(f"OTEL_EXPORTER_OTLP_METRICS_{name}", "").strip()
    return own or environment.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()


def _seconds(environment: Mapping[str, str], name: str, otherwise: float) -> float:
    text = environment.get(name, "").strip()
    if not text:
        return otherwise
    try:
        millis = float(text)
    except ValueError:
        millis = 0.0
    if not 1 <= millis < 1e9:
        raise ValueError(f"{name} is {text!r}; it takes milliseconds, such as 60000")
    return millis / 1000
