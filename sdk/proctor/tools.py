"""Governed functions: `tool`, `define_tool`, `wrap_tool`, `step`.

A tool is a real `async def` with the name, docstring, parameters and annotations of what it
governs, since that is the one shape that every agent framework takes as it is. A denied tool
returns a sentence that the model can read; a denied `step()` raises. So at run time a tool is
annotated to return `Any`, unless it returns text anyway.

What a tool returns, live or replayed, is what its recorded JSON reads back as. Its type says so:
what the function returns, or `str` for the sentence of a denial.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, ParamSpec, TypeVar, overload

from proctor import signatures
from proctor.context import Body, current
from proctor.errors import PolicyError
from proctor.wire.words import Idempotency, StepKind

P = ParamSpec("P")
R = TypeVar("R")

Tool = Callable[..., Coroutine[Any, Any, Any]]

Governed = Callable[P, Coroutine[Any, Any, R | str]]
"""A tool as type checkers see it; the `str` is what a denial returns."""


@overload
def tool(fn: Callable[P, Awaitable[R]], /) -> Governed[P, R]: ...
@overload
def tool(fn: Callable[P, R], /) -> Governed[P, R]: ...
@overload
def tool(
    tool_id: str | None = None, /, *, idempotency: str = Idempotency.SAFE_TO_RETRY
) -> "Governing": ...


def tool(first: Any = None, /, *, idempotency: str = Idempotency.SAFE_TO_RETRY) -> Any:
    """Put a function behind the rules: `@tool`, `@tool()`, `@tool("id", idempotency=...)`.

    The result is awaitable also for a plain `def`, whose body runs in a worker thread. The
    bound arguments, defaults applied, are what the rules judge and what is recorded.
    `idempotency`: `safe_to_retry`, or `at_most_once` for a body that must not run again when
    nobody knows whether it took effect.

    A denied call returns `<tool> not allowed. reason: <the rule's reason>`. Calling it raises
    `RuntimeError` outside of a run, `TypeError` for arguments that are not JSON, `ToolError`
    when the body raises.
    """
    checked = _idempotency(idempotency)
    if first is None or isinstance(first, str):
        return Governing(first, checked)
    return _governed(first, None, checked)


class Governing:
    """What `@tool(...)` is before it meets its function."""

    def __init__(self, tool_id: str | None, idempotency: Idempotency) -> None:
        if tool_id == "":
            raise ValueError("a tool's id must not be empty")
        self._tool_id = tool_id
        self._idempotency = idempotency

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Governed[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Governed[P, R]: ...

    def __call__(self, fn: Any, /) -> Any:
        """Return the governed form of `fn`."""
        return _governed(fn, self._tool_id, self._idempotency)


def define_tool(
    *,
    name: str,
    description: str = "",
    input_schema: Mapping[str, Any] | None = None,
    idempotency: str = Idempotency.SAFE_TO_RETRY,
    execute: Callable[..., Any],
) -> Tool:
    """Make a tool from a name, a JSON Schema and a function that takes its properties.

    `execute` is called with keyword arguments, and may be `async def` or `def`.
    """
    if not callable(execute):
        raise TypeError(f"execute of tool {name!r} is not callable: {execute!r}")
    run = _awaitable(execute)

    async def invoke(args: dict[str, Any]) -> Any:
        return await run(**args)

    return wrap_tool(
        name,
        invoke,
        description=description,
        args_schema=input_schema,
        idempotency=idempotency,
    )


def wrap_tool(
    name: str,
    invoke: Callable[[dict[str, Any]], Any],
    *,
    description: str = "",
    args_schema: Mapping[str, Any] | type | None = None,
    idempotency: str = Idempotency.SAFE_TO_RETRY,
    to_result: Callable[[Any], Any] | None = None,
    transform_args: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Tool:
    """Put somebody else's tool behind the rules.

    `invoke` gets the arguments as one dict. `args_schema` is a JSON Schema or a pydantic model
    and becomes the signature. `transform_args` changes the arguments before they are judged,
    recorded and invoked; `to_result` turns what `invoke` returned into what is recorded and
    returned, so a replay gives the same.
    """
    if not name:
        raise ValueError("a tool's name must not be empty")
    checked = _idempotency(idempotency)
    schema = signatures.json_schema(args_schema)
    signature = signatures.of_schema(schema)
    run = _awaitable(invoke)

    async def wrapped(**kwargs: Any) -> Any:
        args = kwargs if transform_args is None else transform_args(kwargs)

        async def body() -> Any:
            value = await run(dict(args))
            return value if to_result is None else to_result(value)

        return await _call_tool(name, args, checked, body)

    wrapped.__name__ = wrapped.__qualname__ = name
    wrapped.__doc__ = description
    wrapped.__annotations__ = signatures.annotations(signature)
    vars(wrapped).update(__signature__=signature, __input_schema__=schema, __idempotency__=checked)
    return wrapped


def input_schema(of: Tool) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments: the one it was given, or its signature's.

    What a signature does not say in a way that JSON Schema can is left open.
    """
    given = vars(of).get("__input_schema__")
    return dict(given) if given is not None else signatures.schema_of(of)


@overload
async def step(
    name: str,
    fn: Callable[..., Awaitable[R]],
    args: Mapping[str, Any] | None = None,
    idempotency: str = Idempotency.SAFE_TO_RETRY,
) -> R: ...
@overload
async def step(
    name: str,
    fn: Callable[..., R],
    args: Mapping[str, Any] | None = None,
    idempotency: str = Idempotency.SAFE_TO_RETRY,
) -> R: ...


async def step(
    name: str,
    fn: Callable[..., Any],
    args: Mapping[str, Any] | None = None,
    idempotency: str = Idempotency.SAFE_TO_RETRY,
) -> Any:
    """Run local code that may come out differently each time, and record what it gave.

    `fn` is called as `fn(**args)`, a plain `def` in a worker thread. Returns what was
    recorded, live or replayed.

    Raises:
        PolicyError: a rule denies it; `rule_id` says which.
        ToolError: `fn` raised. RuntimeError: called outside of a run.
    """
    if not name:
        raise ValueError("a step's name must not be empty")
    given = dict(args or {})
    run = _awaitable(fn)

    async def body() -> Any:
        return await run(**given)

    here = current(f"step {name!r}")
    return await here.call(StepKind.LOCAL, name, given, _idempotency(idempotency), body)


def _governed(fn: Any, tool_id: str | None, idempotency: Idempotency) -> Tool:
    name = _name_of(fn, tool_id)
    signature = inspect.signature(fn)
    run = _awaitable(fn)

    @functools.wraps(fn)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()

        async def body() -> Any:
            return await run(*bound.args, **bound.kwargs)

        return await _call_tool(name, signatures.named(bound), idempotency, body)

    wrapped.__name__ = name
    vars(wrapped).update(__idempotency__=idempotency)
    if not signatures.returns_text(fn):
        # Frameworks hold a result to its annotation; what comes back is JSON, or a refusal.
        wrapped.__annotations__ = {**getattr(fn, "__annotations__", {}), "return": Any}
        vars(wrapped).update(__signature__=signature.replace(return_annotation=Any))
    return wrapped


async def _call_tool(
    name: str, args: Mapping[str, Any], idempotency: Idempotency, body: Body
) -> Any:
    here = current(f"tool {name!r}")
    try:
        return await here.call(StepKind.TOOL_CALL, name, args, idempotency, body)
    except PolicyError as denied:
        # Only the refusal of this very call is an answer; one from inside its body is not.
        if denied.call is not body:
            raise
        return f"{name} not allowed. reason: {denied}"


def _name_of(fn: Any, tool_id: str | None) -> str:
    if inspect.isclass(fn) or not callable(fn):
        raise TypeError(f"@tool governs functions, not {fn!r}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(
            f"{fn.__qualname__} is a generator; a step records one value, so return a list"
        )
    parameters = list(inspect.signature(fn).parameters)
    if parameters[:1] in (["self"], ["cls"]):
        raise TypeError(
            f"{fn.__qualname__} is a method, and its {parameters[0]!r} is not an argument that "
            "can be judged; govern the bound one: tool(instance.method)"
        )
    name = tool_id or getattr(fn, "__name__", "")
    if not name or name == "<lambda>":
        raise TypeError(f'{fn!r} has no name; give the tool an id: tool("id")(...)')
    return str(name)


def _awaitable(fn: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Return `fn` as something to await; what may block runs in a worker thread."""
    if inspect.iscoroutinefunction(fn):
        return fn

    async def in_thread(*args: Any, **kwargs: Any) -> Any:
        value = await asyncio.to_thread(fn, *args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    return in_thread


def _idempotency(word: str) -> Idempotency:
    try:
        return Idempotency(word)
    except ValueError:
        known = " or ".join(repr(str(each)) for each in Idempotency)
        raise ValueError(f"idempotency must be {known}, not {word!r}") from None
