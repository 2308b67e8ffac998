"""Tools of an MCP server, behind the rules. Nothing of an MCP package is imported here.

A descriptor is what a server lists: an object or a dict with name, description and input
schema. `call(name, arguments)` is the session's own, for example `session.call_tool`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from proctor.tools import Tool, wrap_tool
from proctor.wire.words import Idempotency

Call = Callable[[str, dict[str, Any]], Awaitable[Any]]


def wrap_mcp_tool(
    descriptor: Any,
    *,
    call: Call,
    prefix: str = "",
    idempotency: str = Idempotency.SAFE_TO_RETRY,
    to_result: Callable[[Any], Any] | None = None,
) -> Tool:
    """Put one tool of an MCP server behind the rules, as `<prefix>_<name>` (protocol 10.4).

    Arguments that are null are left out before they are judged and sent: frameworks fill in
    null for what the model did not give. The result is the structured content, else the
    text; a result that the server marks as an error fails the step.

    Pass `idempotency="at_most_once"` for a tool that must not run twice. What the server says
    about itself is not believed.
    """
    name = _field(descriptor, "name")
    if not isinstance(name, str) or not name:
        raise TypeError(f"an MCP tool without a name: {descriptor!r}")

    async def invoke(args: dict[str, Any]) -> Any:
        result = await call(name, args)
        if _field(result, "is_error", "isError"):
            raise McpToolFailed(_text_of(result) or f"{name} failed without saying why")
        return content_of(result) if to_result is None else to_result(result)

    return wrap_tool(
        f"{prefix}_{name}" if prefix else name,
        invoke,
        description=_field(descriptor, "description") or "",
        args_schema=_field(descriptor, "input_schema", "inputSchema"),
        idempotency=idempotency,
        transform_args=_without_nulls,
    )


def wrap_mcp_tools(
    descriptors: Iterable[Any],
    *,
    call: Call,
    prefix: str = "",
    idempotency: str | Mapping[str, str] = Idempotency.SAFE_TO_RETRY,
) -> list[Tool]:
    """Put every tool of an MCP server behind the rules.

    `idempotency` is one word for all, or by the server's name of the tool; a tool that the
    mapping does not name is `safe_to_retry`.

    Raises:
        ValueError: the mapping names a tool that the server does not have.
    """
    listed = list(descriptors)
    if isinstance(idempotency, str):
        chosen: Mapping[str, str] = {_field(each, "name"): idempotency for each in listed}
    else:
        chosen = idempotency
        unknown = sorted(set(chosen) - {_field(each, "name") for each in listed})
        if unknown:
            raise ValueError(f"idempotency names tools that the server does not have: {unknown}")
    return [
        wrap_mcp_tool(
            each,
            call=call,
            prefix=prefix,
            idempotency=chosen.get(_field(each, "name"), Idempotency.SAFE_TO_RETRY),
        )
        for each in listed
    ]


class McpToolFailed(Exception):
    """A server answered a call with an error; the message is its text."""


def content_of(result: Any) -> Any:
    """Return what an MCP result holds: structured content, else its text, else nothing."""
    structured = _field(result, "structured_content", "structuredContent")
    return _text_of(result) if structured is None else structured


def _text_of(result: Any) -> str:
    blocks = _field(result, "content") or ()
    return "\n".join(
        str(_field(block, "text")) for block in blocks if _field(block, "type") == "text"
    )


def _without_nulls(args: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if value is not None}


def _field(of: Any, *names: str) -> Any:
    # The first that is there, even if it is None: of the later, older names some warn.
    for name in names:
        if isinstance(of, Mapping):
            if name in of:
                return of[name]
        elif hasattr(of, name):
            return getattr(of, name)
    return None
