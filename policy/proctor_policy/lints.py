"""What Cedar lets pass, and its author would not: rules that never or always match, and the like.

`problems_of` are refused at load, since the rule cannot mean what it says; `warnings_of` are told
by `proctor policy check`.
"""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from proctor_policy.inspect_value import plain
from proctor_policy.lexer import Token, Unreadable, unquoted
from proctor_policy.policy import Anything, Exactly, Policy, Scope, Uid, tools_named
from proctor_policy.problem import Problem


def problems_of(policies: Sequence[Policy], facts: frozenset[str]) -> Iterator[Problem]:
    """Yield what cannot be meant: `in [...]` on a text, unknown facts, invisible characters."""
    for policy in policies:
        yield from _in_a_list(policy)
        yield from _unknown_members(policy, "facts", facts)
        for token in policy.tokens:
            if token.kind == "string" and not plain(_text(token)):
                shown = ascii(_text(token))
                yield Problem(
                    policy.file, token.line, f"{shown} has invisible or look-alike characters"
                )


def unknown_tools(
    policies: Sequence[Policy], known: frozenset[str], *, complete: bool
) -> Iterator[Problem]:
    """Yield the tools that a scope names and nobody knows.

    `complete`: the known ones are meant to be all there are. Otherwise only a name that is nearly
    one of them is taken for a slip.
    """
    for policy in policies:
        for name in tools_named(policy):
            near = get_close_matches(name, known, n=1, cutoff=0.6 if complete else 0.8)
            if name not in known and (near or complete):
                hint = f"did you mean {near[0]!r}?" if near else "declare it in entities.json"
                yield Problem(policy.file, policy.line, f"unknown tool {name!r}", hint)


def entity_types(uids: Iterable[Uid], known: frozenset[str]) -> Iterator[str]:
    """Yield what is wrong with the types of entities: those that are nearly a type of ours."""
    for kind in sorted({kind for kind, _ in uids}):
        near = get_close_matches(kind, known, n=1, cutoff=0.75)
        if kind not in known and near:
            yield f"unknown entity type {kind!r}; did you mean {near[0]!r}?"


def warnings_of(policies: Sequence[Policy], labels: frozenset[str]) -> Iterator[Problem]:
    """Yield what is doubtful: never or always matching, duplicate and shadowed rules, labels."""
    for policy in policies:
        yield from _constant(policy)
        yield from _impossible(policy)
        if labels:
            yield from _unknown_members(policy, "labels", labels)
    yield from _duplicates(policies)
    yield from _shadowed(policies)


def _in_a_list(policy: Policy) -> Iterator[Problem]:
    tokens = policy.conditions
    for at in range(1, len(tokens) - 1):
        opens_text = tokens[at + 1].text == "[" and tokens[at + 2 : at + 3]
        if tokens[at].text == "in" and opens_text and tokens[at + 2].kind in ("string", "number"):
            yield Problem(
                policy.file,
                tokens[at].line,
                "`in [...]` is about entities, and fails on texts and numbers",
                'write ["a", "b"].contains(context.input.x)',
            )


def _unknown_members(policy: Policy, name: str, known: frozenset[str]) -> Iterator[Problem]:
    tokens = policy.conditions
    for at in range(len(tokens) - 4):
        words = [token.text for token in tokens[at : at + 4]]
        if words == [name, ".", "contains", "("] and tokens[at + 4].kind == "string":
            wanted = _text(tokens[at + 4])
            if wanted not in known:
                near = get_close_matches(wanted, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are: {sorted(known)}"
                singular = name.removesuffix("s")
                yield Problem(
                    policy.file, tokens[at + 4].line, f"unknown {singular} {wanted!r}", hint
                )


def _constant(policy: Policy) -> Iterator[Problem]:
    words = [token.text for token in policy.conditions]
    for at, word in enumerate(words):
        if word in ("when", "unless") and words[at + 1 : at + 4 : 2] == ["{", "}"]:
            value = words[at + 2]
            if value in ("true", "false"):
                always = (value == "true") is (word == "when")
                yield Problem(
                    policy.file,
                    policy.conditions[at].line,
                    f"rule {policy.id} {'always' if always else 'never'} matches: "
                    f"{word} {{ {value} }}",
                )


def _impossible(policy: Policy) -> Iterator[Problem]:
    action, resource = policy.scope.action, policy.scope.resource
    if not isinstance(action, Exactly) or not isinstance(resource, Exactly):
        return
    (_, verb), (kind, name) = action.uid, resource.uid
    own = {"llm_call": "Model", "local": "Local"}.get(verb, "Tool")
    if verb != "tool_call" and (kind != own or (own == "Tool" and name != verb)):
        yield Problem(
            policy.file,
            policy.line,
            f"rule {policy.id} never matches: {verb!r} is not done to {kind}::{name!r}",
        )


def _duplicates(policies: Sequence[Policy]) -> Iterator[Problem]:
    first: dict[tuple[object, ...], Policy] = {}
    for policy in policies:
        key = (
            policy.effect,
            policy.scope,
            tuple(token.text for token in policy.conditions),
            policy.annotations.get("gate"),
        )
        other = first.setdefault(key, policy)
        if other is not policy:
            yield Problem(
                policy.file,
                policy.line,
                f"rule {policy.id} says the same as {other.id}",
                f"that is {other.file}:{other.line}",
            )


def _shadowed(policies: Sequence[Policy]) -> Iterator[Problem]:
    """A permit that a forbid without conditions always overrules."""
    walls: dict[Scope, Policy] = {}
    for policy in policies:
        if policy.effect == "forbid" and policy.gate is None and not policy.has_conditions:
            walls.setdefault(policy.scope, policy)
    for policy in policies:
        if policy.effect != "permit":
            continue
        wall = next((walls[scope] for scope in _wider(policy.scope) if scope in walls), None)
        if wall is not None:
            yield Problem(
                policy.file,
                policy.line,
                f"rule {policy.id} never permits anything: {wall.id} forbids all of it",
                f"that is {wall.file}:{wall.line}",
            )


def _wider(scope: Scope) -> Iterator[Scope]:
    """Yield a scope, and every one that it becomes when a part of it says nothing."""
    anything = Anything()
    for principal in {scope.principal, anything}:
        for action in {scope.action, anything}:
            for resource in {scope.resource, anything}:
                yield Scope(principal, action, resource)


def _text(token: Token) -> str:
    try:
        return unquoted(token)
    except Unreadable:  # a pattern of `like` may escape its wildcard
        return token.text[1:-1]
