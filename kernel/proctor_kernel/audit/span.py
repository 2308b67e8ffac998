"""A span as plain values, and what every span of a run has in common. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from proctor_kernel.audit import attributes as names
from proctor_kernel.core import identity
from proctor_kernel.core.state import State

Value = str | int | bool | tuple[str, ...]
Attributes = Mapping[str, Value]

MOMENTS_MAX: Final = 128
"""Events of one span: what SDKs and backends keep by default."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened within a span. `at` in microseconds since 1970, UTC."""

    name: str
    at: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """One span, whole. Times in microseconds since 1970, UTC; ids in hex."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    start: int
    end: int
    attributes: Attributes
    is_client: bool = False
    """It is a request to something else, as a model is."""
    moments: tuple[Moment, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    """Trace and span of what it has to do with in other traces."""
    failure: str | None = None
    """Why it did not end well; None: it did."""


def span_in(
    state: State,
    name: str,
    *,
    of: str,
    start: int,
    end: int,
    attributes: Attributes,
    parent: str | None = None,
    failure: str | None = None,
    error_type: str | None = None,
) -> Span:
    """Return a span of a run: `of` gives its id, `parent` that of the span above (the run's)."""
    said: dict[str, Value] = {
        names.EXECUTION: state.execution_id,
        names.GEN_AI_AGENT: state.agent_id,
        **attributes,
    }
    if state.session is not None:
        said[names.GEN_AI_CONVERSATION] = state.session
    if error_type is not None:
        said[names.ERROR_TYPE] = error_type
    return Span(
        trace_id=identity.trace_id(state.execution_id),
        span_id=identity.span_id(of),
        parent_id=identity.span_id(parent or state.execution_id),
        name=name,
        start=start,
        # A replica's clock may be behind that of the one before it; no backend takes that.
        end=max(start, end),
        attributes=said,
        failure=failure,
    )


def given(values: Mapping[str, Any]) -> dict[str, Value]:
    """Leave out what there is nothing to say of."""
    return {name: value for name, value in values.items() if value}
