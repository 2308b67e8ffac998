"""All metrics of the service as one: what `/metrics` shows and OTLP sends, so that both agree."""

import os
from collections.abc import Iterator
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from proctor_kernel.census import Census
from proctor_kernel.rule_series import RULES

SHARED: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Names the folder in which workers of one service count together."""


class Exposition(Collector):
    """What this process counts, or its service where there are several, and the census."""

    def __init__(self, census: Census) -> None:
        self._census = census

    async def look(self) -> None:
        """Bring what is looked up for it up to date."""
        await self._census.look()

    def collect(self) -> Iterator[Metric]:
        """Give every metric. Reads files where there are several workers, so not on the loop."""
        registry: CollectorRegistry = REGISTRY
        if SHARED in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # its own
        for metric in registry.collect():
            metric.samples = [
                sample
                for sample in metric.samples
                # When a series began is no number that anybody asked for.
                if not sample.name.endswith("_created")
                and RULES.shows(metric.name, sample.labels.get("rule"))
            ]
            yield metric
        yield from self._census.collect()
