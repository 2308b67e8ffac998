"""One policy as the engine needs it: its id, its reason, its scope, and what it compares.

Read from the policy's own tokens: cedarpy gives annotations and scopes only through JSON, which
policies with many terms cannot take. Whether a policy is valid Cedar stays cedarpy's to say.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from proctor_policy.gates import Gate
from proctor_policy.lexer import Fragment, Token, Unreadable, unquoted

Uid = tuple[str, str]
"""Entity type and id."""

Effect = Literal["permit", "forbid"]


@dataclass(frozen=True, slots=True)
class Anything:
    """`principal`"""


@dataclass(frozen=True, slots=True)
class Exactly:
    """`principal == Agent::"a"`"""

    uid: Uid


@dataclass(frozen=True, slots=True)
class Within:
    """`action in [Action::"a", Action::"b"]`: one of these, or below one of them."""

    uids: tuple[Uid, ...]


@dataclass(frozen=True, slots=True)
class OfType:
    """`resource is Tool` and `resource is Tool in ToolGroup::"g"`"""

    type_name: str
    within: Uid | None


Constraint = Anything | Exactly | Within | OfType


@dataclass(frozen=True, slots=True)
class Scope:
    """Which calls a policy is about, before its conditions."""

    principal: Constraint
    action: Constraint
    resource: Constraint


@dataclass(frozen=True, slots=True)
class Comparison:
    """An equality of an argument with a literal: `context.input.path == "/etc/passwd"`.

    Cedar calls values of different types unequal without an error, so whoever picks the
    arguments could step around such a rule by sending a list where a string is meant.
    """

    path: tuple[str, ...]
    type_name: Literal["string", "long", "boolean", "decimal"]


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """One policy of a file. Compared by identity: two texts alike are still two policies."""

    path: str
    """Where its file is below the rules folder."""
    file: str
    """The same, as shown to people."""
    line: int
    text: str
    effect: Effect
    annotations: Mapping[str, str]
    scope: Scope
    comparisons: tuple[Comparison, ...]
    tokens: tuple[Token, ...]
    conditions: tuple[Token, ...]
    """The tokens after the scope. Both are for checking, and gone once the rules are in force."""
    has_conditions: bool
    """False when the scope says all."""
    asks_origins: bool = False
    """Its conditions mention `context.origins`."""
    gate: Gate | None = None
    """What lifts it; None: nothing does."""

    @property
    def id(self) -> str:
        """What decisions call this policy."""
        return self.annotations["id"]

    @property
    def reason(self) -> str:
        """What the model and the operator are told when this policy forbids."""
        return self.annotations.get("reason") or f"forbidden by rule {self.id}"


def read(path: str, file: str, fragment: Fragment) -> Policy:
    """Read one policy that cedarpy has accepted. `path` and `file` as `Policy` has them.

    Raises:
        Unreadable: a duplicate annotation, or a scope that is not understood here.
    """
    reader = _Reader(fragment)
    annotations = reader.annotations()
    effect = reader.effect()
    scope = reader.scope()
    rest = reader.rest()
    return Policy(
        path=path,
        file=file,
        line=fragment.line,
        text=fragment.text,
        effect=effect,
        annotations=annotations,
        scope=scope,
        comparisons=tuple(dict.fromkeys(comparisons(rest))),
        tokens=fragment.tokens,
        conditions=rest,
        has_conditions=bool(rest),
        asks_origins=any(token.text in ("origins", '"origins"') for token in rest),
    )


class _Reader:
    def __init__(self, fragment: Fragment) -> None:
        self._tokens = fragment.tokens
        self._line = fragment.line
        self._at = 0

    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while self._skip("@"):
            key = self._next()
            value = ""
            if self._skip("("):
                value = unquoted(self._next())
                self._expect(")")
            if key.text in found:
                raise Unreadable(key.line, f"annotation {key.text!r} is there twice")
            found[key.text] = value
        return found

    def effect(self) -> Effect:
        token = self._next()
        if token.text == "permit":
            return "permit"
        if token.text == "forbid":
            return "forbid"
        raise Unreadable(token.line, f"expected permit or forbid, found {token.text!r}")

    def scope(self) -> Scope:
        self._expect("(")
        principal = self._constraint("principal")
        self._expect(",")
        action = self._constraint("action")
        self._expect(",")
        resource = self._constraint("resource")
        self._skip(",")
        self._expect(")")
        return Scope(principal, action, resource)

    def rest(self) -> tuple[Token, ...]:
        return self._tokens[self._at :]

    def _constraint(self, variable: str) -> Constraint:
        self._expect(variable)
        if self._skip("=="):
            return Exactly(self._uid())
        if self._skip("in"):
            return Within(self._uids())
        if self._skip("is"):
            type_name = self._next().text
            return OfType(type_name, self._uid() if self._skip("in") else None)
        return Anything()

    def _uids(self) -> tuple[Uid, ...]:
        if not self._skip("["):
            return (self._uid(),)
        found = []
        while not self._skip("]"):
            found.append(self._uid())
            self._skip(",")
        return tuple(found)

    def _uid(self) -> Uid:
        type_name = self._next()
        self._expect("::")
        name = self._next()
        if type_name.kind != "word" or name.kind != "string":
            raise Unreadable(type_name.line, 'expected an entity, as in Agent::"id"')
        return (type_name.text, unquoted(name))

    def _next(self) -> Token:
        if self._at >= len(self._tokens):
            raise Unreadable(self._line, "the policy ends too soon")
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, text: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at].text == text
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        token = self._next()
        if token.text != text:
            raise Unreadable(token.line, f"expected {text!r}, found {token.text!r}")


_FLIPPED: Final = frozenset({"==", "!="})


def comparisons(tokens: tuple[Token, ...]) -> Iterator[Comparison]:
    """Yield the equalities of arguments with literals in a policy's conditions.

    Three forms: `context.input.a == "x"`, `"x" == context.input.a`, and
    `["x", "y"].contains(context.input.a)`; `!=` like `==`.
    """
    for at in range(len(tokens)):
        path, end = _path(tokens, at)
        if not path:
            continue
        after = tokens[end : end + 1]
        if after and after[0].text in _FLIPPED:
            kind = _literal(tokens, end + 1)
            if kind is not None:
                yield Comparison(path, kind)
        if at >= 2 and tokens[at - 1].text in _FLIPPED:
            kind = _literal_before(tokens, at - 1)
            if kind is not None:
                yield Comparison(path, kind)
        if at >= 5 and [t.text for t in tokens[at - 4 : at]] == ["]", ".", "contains", "("]:
            kind = _literal_before(tokens, at - 4)
            if kind is not None:
                yield Comparison(path, kind)


def _path(tokens: tuple[Token, ...], at: int) -> tuple[tuple[str, ...], int]:
    """Return the path below `context.input` that begins at `at`, and where it ends."""
    start = [token.text for token in tokens[at : at + 4]]
    if start[:3] == ["context", ".", "input"]:
        at += 3
    elif start == ["context", "[", '"input"', "]"]:
        at += 4
    else:
        return (), at
    path: list[str] = []
    while True:
        ahead = tokens[at : at + 3]
        texts = [token.text for token in ahead]
        if texts[:1] == ["."] and len(ahead) > 1 and texts[2:3] != ["("]:
            path.append(ahead[1].text)
            at += 2
        elif len(ahead) == 3 and texts[0] == "[" and texts[2] == "]":
            path.append(unquoted(ahead[1]))
            at += 3
        else:
            return tuple(path), at


_Kind = Literal["string", "long", "boolean", "decimal"]


def _literal(tokens: tuple[Token, ...], at: int) -> _Kind | None:
    """Return the type of the literal that begins at `at`, or None when there is none."""
    ahead = tokens[at : at + 2]
    if not ahead:
        return None
    if ahead[0].text == "-" and len(ahead) > 1:
        return _literal(tokens, at + 1)
    match ahead[0].kind:
        case "string":
            return "string"
        case "number":
            return "long"
    if ahead[0].text in ("true", "false"):
        return "boolean"
    if ahead[0].text == "decimal":
        return "decimal"
    return None


def _literal_before(tokens: tuple[Token, ...], at: int) -> _Kind | None:
    """Return the type of the literal that ends before `at`."""
    last = tokens[at - 1]
    if tokens[at - 2].text == "::":  # the id of an entity
        return None
    if last.text == ")" and [t.text for t in tokens[at - 4 : at - 2]] == ["decimal", "("]:
        return "decimal"
    if last.kind in ("string", "number") or last.text in ("true", "false"):
        return _literal(tokens, at - 1)
    return None


def tools_named(policy: Policy) -> list[str]:
    """Return the tools that a policy's scope names one by one; empty: it reaches others."""
    uids: tuple[Uid, ...] = ()
    match policy.scope.action:
        case Exactly(uid):
            uids = (uid,)
        case Within(several):
            uids = several
    if not uids and isinstance(policy.scope.resource, Exactly):
        uids = (policy.scope.resource.uid,)
    names = [name for kind, name in uids if kind in ("Action", "Tool")]
    groups = {"tool_call", "llm_call", "local"}
    return names if len(names) == len(uids) and not groups & set(names) else []
