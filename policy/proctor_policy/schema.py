"""The schema that the rules are held to, derived from what is known of tools, and its findings.

Cedar validates a policy against every action that its scope reaches, and has no type for
"anything". So a policy is validated when its scope names tools whose arguments are known and it
touches nothing that was left open; the names that it uses are checked in any case.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, assert_never

import cedarpy

from proctor_policy.lexer import Token, Unreadable, unquoted
from proctor_policy.policy import Policy, tools_named
from proctor_policy.problem import Problem
from proctor_policy.tooltypes import Open, Record, Scalar, SetOf, Tools, Type

_SESSION: Final[Mapping[str, str]] = {
    "tools": "Set<String>",
    "labels": "Set<String>",
    "steps": "Long",
    "tool_calls": "Long",
    "llm_calls": "Long",
    "denials": "Long",
    "tokens": "Long",
    "elapsed_seconds": "Long",
    "calls": "Long",
}
_TIME: Final[Mapping[str, str]] = {"hour": "Long", "weekday": "Long", "now": "datetime"}
_CONTEXT: Final = frozenset({"input", "session", "facts", "origins", "idempotency", "time", "user"})
_CEDAR: Final = {"string": "String", "long": "Long", "decimal": "decimal", "boolean": "Bool"}

_BASE: Final = """\
entity AgentGroup in [AgentGroup];
entity Agent in [AgentGroup];
entity UserGroup in [UserGroup];
entity User in [UserGroup];
entity ToolGroup in [ToolGroup];
entity Tool in [ToolGroup] { "labels": Set<String> };
entity ModelGroup in [ModelGroup];
entity Model in [ModelGroup];
entity Local;
action "tool_call";
"""
BASE_TYPES: Final = frozenset(
    {"AgentGroup", "Agent", "UserGroup", "User", "ToolGroup", "Tool", "ModelGroup", "Model"}
    | {"Local", "Action"}
)

_UNGUARDED: Final = "unable to guarantee safety of access to optional attribute"


def text_of(tools: Tools, more: str = "") -> str:
    """Return the schema in Cedar's own syntax. `more` is what the author adds to it."""
    actions = [_action(name, tools.inputs[name]) for name in sorted(tools.inputs)]
    actions += [
        _applies("llm_call", "", "Model", "{}"),
        _applies("local", "", "Local", "{}"),
    ]
    return "\n".join([_BASE, *actions, more])


def problems_of(policies: Sequence[Policy], tools: Tools, more: str) -> Iterator[Problem]:
    """Yield what the schema finds wrong with policies, by file and line."""
    for policy in policies:
        found = list(_names(policy, tools))
        yield from found
        if not found:
            for message in _types(policy, tools, more):
                if _UNGUARDED not in message:
                    yield Problem(policy.file, policy.line, message)


def warnings_of(policies: Sequence[Policy], tools: Tools, more: str) -> Iterator[Problem]:
    """Yield what the schema finds doubtful: an optional argument that is not asked for first."""
    for policy in policies:
        for message in _types(policy, tools, more):
            if _UNGUARDED in message:
                hint = "ask with `has` first; without the argument the rule fails, and denies"
                yield Problem(policy.file, policy.line, message, hint)


def parse_problem(text: str) -> str | None:
    """Return why Cedar does not take a schema, or None when it does."""
    try:
        cedarpy.Schema.from_str(text)
    except ValueError as error:
        return " ".join(str(error).split())
    return None


def _names(policy: Policy, tools: Tools) -> Iterator[Problem]:
    """Check the names below `context`, with the line and the nearest right one."""
    named = tools_named(policy)
    inputs = [tools.inputs[name] for name in named if name in tools.inputs]
    known = inputs if len(inputs) == len(named) else []
    tokens = policy.conditions
    for at, token in enumerate(tokens):
        if token.text != "context" or (at and tokens[at - 1].text == "."):
            continue
        path = _path(tokens, at + 1)
        if not path:
            continue
        first, *rest = path
        if first[1] not in _CONTEXT:
            yield _misspelt(policy, first, "the context", _CONTEXT)
        elif first[1] in ("session", "time") and rest:
            fields = _SESSION if first[1] == "session" else _TIME
            if rest[0][1] not in fields:
                yield _misspelt(policy, rest[0], f"context.{first[1]}", fields)
        elif first[1] in ("input", "origins") and known and rest:
            yield from _argument(policy, rest, known, ", ".join(map(repr, named)))


def _argument(
    policy: Policy, path: list[tuple[Token, str]], inputs: list[Record], tool: str
) -> Iterator[Problem]:
    (token, name), *rest = path
    if any(not each.closed for each in inputs):
        return
    types = [each.fields[name] for each in inputs if name in each.fields]
    if not types:
        names = {each for record in inputs for each in record.fields}
        yield _misspelt(policy, (token, name), f"{tool}", names)
    elif rest and all(isinstance(each, Record) for each in types):
        below = [each for each in types if isinstance(each, Record)]
        yield from _argument(policy, rest, below, f"{tool}.{name}")


def _misspelt(policy: Policy, found: tuple[Token, str], of: str, names: Collection[str]) -> Problem:
    token, name = found
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(sorted(names)) or 'none'}"
    return Problem(policy.file, token.line, f"{of} has no {name!r}", hint)


def _path(tokens: tuple[Token, ...], at: int) -> list[tuple[Token, str]]:
    """Return the attributes that follow a variable, the one after `has` too."""
    path: list[tuple[Token, str]] = []
    while at + 1 < len(tokens):
        word = tokens[at].text
        named = tokens[at + 1]
        if word == "has" and named.kind in ("word", "string"):
            path.append((named, _name(named)))
            at += 2
            while at + 1 < len(tokens) and tokens[at].text == ".":  # `has a.b.c`
                path.append((tokens[at + 1], _name(tokens[at + 1])))
                at += 2
            return path
        if (
            word == "."
            and named.kind == "word"
            and tokens[at + 2 : at + 3]
            and (tokens[at + 2].text == "(")
        ):
            return path
        if word == "." and named.kind == "word":
            path.append((named, named.text))
            at += 2
        elif word == "[" and named.kind == "string":
            path.append((named, _name(named)))
            at += 3
        else:
            return path
    return path


def _name(token: Token) -> str:
    if token.kind != "string":
        return token.text
    try:
        return unquoted(token)
    except Unreadable:
        return token.text


def _types(policy: Policy, tools: Tools, more: str) -> list[str]:
    """Return what Cedar's own validator says of a policy, where it can say anything."""
    named = tools_named(policy)
    if not named or not all(name in tools.inputs for name in named):
        return []
    if not _can_be_typed(policy, [tools.inputs[name] for name in named]):
        return []
    schema = text_of(Tools({name: tools.inputs[name] for name in named}), more)
    result = cedarpy.validate_policies(policy.text, schema, release_gil=True)
    return [_plainly(str(error)) for error in result.errors]


def _can_be_typed(policy: Policy, inputs: list[Record]) -> bool:
    words = [token.text for token in policy.tokens]
    types = {
        words[at - 1] for at in range(1, len(words)) if words[at] == "::" and at + 1 < len(words)
    }
    if types - BASE_TYPES or "origins" in words:
        return False
    paths = [
        [name for _, name in _path(policy.conditions, at + 1)]
        for at, token in enumerate(policy.conditions)
        if token.text == "context"
    ]
    return not any(
        _is_open(record, path[1:]) for record in inputs for path in paths if path[:1] == ["input"]
    )


def _is_open(known: Type, path: list[str]) -> bool:
    match known:
        case Open():
            return True
        case Record(fields, _, closed):
            if not path:
                return False
            return _is_open(fields[path[0]], path[1:]) if path[0] in fields else not closed
        case Scalar() | SetOf():
            return False
        case _:
            assert_never(known)


def _action(name: str, record: Record) -> str:
    return _applies(name, ' in ["tool_call"]', "Tool", _type(record))


def _applies(name: str, groups: str, resource: str, given: str) -> str:
    session = ", ".join(f'"{key}": {kind}' for key, kind in _SESSION.items())
    moment = ", ".join(f'"{key}": {kind}' for key, kind in _TIME.items())
    return (
        f"action {_quoted(name)}{groups} appliesTo {{\n"
        f"  principal: [Agent], resource: [{resource}],\n"
        f'  context: {{ "input": {given},\n'
        f'    "session": {{ {session} }},\n'
        f'    "facts": Set<String>, "idempotency": String, "time": {{ {moment} }},\n'
        f'    "user"?: User }}\n}};'
    )


def _type(known: Type) -> str:
    match known:
        case Scalar(kind):
            return _CEDAR[kind]
        case SetOf(of):
            return f"Set<{_type(of)}>"
        case Record(fields, required):
            members = [
                f"{_quoted(name)}{'' if name in required else '?'}: {_type(each)}"
                for name, each in fields.items()
                if not _leads_to_open(each)
            ]
            return "{ " + ", ".join(members) + " }"
        case Open():
            raise AssertionError("left out by the record around it")
        case _:
            assert_never(known)


def _leads_to_open(known: Type) -> bool:
    return isinstance(known, Open) or (isinstance(known, SetOf) and _leads_to_open(known.of))


def _quoted(name: str) -> str:
    """Return a name as a Cedar string."""
    return '"' + "".join(map(_escaped, name)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\u{{{ord(character):x}}}"


def _plainly(message: str) -> str:
    """Leave out of a validator's message what only it knows: the number of the policy."""
    return message.split("for policy `policy0`, ")[-1].removeprefix("[policy0] ")
