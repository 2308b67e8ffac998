"""Prometheus metrics as OTLP has them: cumulative sums, gauges, histograms with their bounds."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

_SCOPE: Final = InstrumentationScope("proctor_kernel")

Labels = tuple[tuple[str, str], ...]


def metrics_data(
    families: Iterable[Family], *, resource: Resource, since_nanos: int, now_nanos: int
) -> MetricsData:
    """Return what is exported. `since_nanos`: when counting began, for all that only grows."""
    metrics = []
    for family in families:
        data = _data(family, since_nanos, now_nanos)
        if data is not None:
            metrics.append(Metric(family.name, family.documentation, _unit(family.name), data))
    scope = ScopeMetrics(_SCOPE, metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _data(family: Family, since: int, now: int) -> Gauge | Histogram | Sum | None:
    if not family.samples:
        return None
    if family.type == "histogram":
        return Histogram(_distributions(family, since, now), AggregationTemporality.CUMULATIVE)
    if family.type == "counter":
        numbers = [_number(sample, since, now) for sample in family.samples]
        return Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    # A gauge is of now and of no time before.
    return Gauge([_number(sample, 0, now) for sample in family.samples])


def _number(sample: Sample, since: int, now: int) -> NumberDataPoint:
    value = float(sample.value)
    return NumberDataPoint(dict(sample.labels), since, now, value)


def _distributions(family: Family, since: int, now: int) -> list[HistogramDataPoint]:
    buckets: defaultdict[Labels, list[tuple[float, float]]] = defaultdict(list)
    sums: dict[Labels, float] = {}
    for sample in family.samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if sample.name.endswith("_bucket"):
            buckets[labels].append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    return [
        _distribution(labels, sorted(found), sums.get(labels, 0.0), since, now)
        for labels, found in buckets.items()
    ]


def _distribution(
    labels: Labels, found: Sequence[tuple[float, float]], total: float, since: int, now: int
) -> HistogramDataPoint:
    """Return one series. Prometheus counts what is at most a bound; OTLP what lies between two."""
    counts = [
        int(upto - before)
        for (_, upto), (_, before) in zip(found, [(0.0, 0.0), *found], strict=False)
    ]
    return HistogramDataPoint(
        attributes=dict(labels),
        start_time_unix_nano=since,
        time_unix_nano=now,
        count=sum(counts),
        sum=total,
        bucket_counts=counts,
        explicit_bounds=[bound for bound, _ in found if not math.isinf(bound)],
        # Not known: NaN would be a value, and these are left out where they are None.
        min=None,  # type: ignore[arg-type]  # its encoder takes None
        max=None,  # type: ignore[arg-type]
    )


def _unit(name: str) -> str:
    if name.endswith("_seconds"):
        return "s"
    return "By" if name.endswith("_bytes") else "1"
