"""Who asks: a client with a bearer token, or an agent that signs (protocol section 2)."""

import hmac
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from fastapi import Request

from proctor.wire.calls import Lease, WireError
from proctor.wire.words import ErrorCode, Scope
from proctor_kernel import signatures
from proctor_kernel.agents import Agents
from proctor_kernel.keys import ApiKeys, Holder
from proctor_kernel.oidc import Oidc
from proctor_kernel.settings import Settings

EVERYTHING: Final = frozenset(str(scope) for scope in Scope)

_SIGNED: Final = frozenset(
    {
        b"rebuno-agent-id",
        b"rebuno-signature",
        b"rebuno-timestamp",
        b"rebuno-dispatch-id",
        b"rebuno-dispatch-attempt",
    }
)
_REPEAT_SECONDS: Final = 5
"""Within it, the same signature is a call that was made twice at once; later, a replay."""

_SEEN_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class Caller:
    """A client that was recognised."""

    name: str
    scopes: frozenset[str]
    groups: tuple[str, ...] = ()
    is_anonymous: bool = False
    """Nobody in particular: a development server asks for no token."""


class Callers:
    """Recognises who asks. Nobody is recognised without proof."""

    def __init__(
        self,
        *,
        settings: Settings,
        agents: Agents,
        keys: ApiKeys,
        oidc: Oidc | None,
        now_micros: Callable[[], int],
    ) -> None:
        token = settings.bootstrap_token
        self._bootstrap = None if token is None else token.get_secret_value()
        self._is_open = settings.is_dev and token is None
        self._agents = agents
        self._keys = keys
        self._oidc = oidc
        self._now_micros = now_micros
        self._seen = _Seen()

    async def client(self, request: Request, *scopes: Scope) -> Caller:
        """Return the client that asks, which has every one of `scopes`.

        Raises:
            WireError: `unauthorized` without a token that is believed; `forbidden` without a scope.
        """
        caller = await self._bearer(request)
        for scope in scopes:
            if scope not in caller.scopes:
                raise WireError(
                    ErrorCode.FORBIDDEN, f"{caller.name} does not have the scope {scope}"
                )
        return caller

    async def agent(self, request: Request, body: bytes) -> str:
        """Return the id of the agent that signed a request; raises `unauthorized`."""
        headers = _signed_headers(request)
        agent_id, signature = headers.get("rebuno-agent-id"), headers.get("rebuno-signature")
        timestamp = headers.get("rebuno-timestamp", "")
        if not agent_id or not signature:
            raise _unsigned("Rebuno-Agent-Id and Rebuno-Signature are required")
        if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 15:
            raise _unsigned("Rebuno-Timestamp is not a number of seconds")
        now = self._now_micros() // 1_000_000
        if abs(now - int(timestamp)) > signatures.CLOCK_SECONDS_MAX:
            raise _unsigned("Rebuno-Timestamp is too far from the kernel's clock")
        agent = await self._agents.find(agent_id)
        if agent is None:
            raise _unsigned("the signature is not that of a known agent")
        expected = signatures.of_request(
            agent.secret,
            method=request.method,
            target=_target(request),
            timestamp=timestamp,
            dispatch_id=headers.get("rebuno-dispatch-id", ""),
            dispatch_attempt=headers.get("rebuno-dispatch-attempt", ""),
            body=body,
        )
        if not signatures.same(expected, signature):
            raise _unsigned("the signature is not that of a known agent")
        if request.method != "GET" and self._seen.is_replay(signature, now):
            raise _unsigned("the request was sent before")
        return agent_id

    async def either(self, request: Request) -> str | None:
        """Return the agent that signed a read, or None for a client that may read runs."""
        if "rebuno-agent-id" in request.headers or "rebuno-signature" in request.headers:
            return await self.agent(request, b"")
        await self.client(request, Scope.EXECUTIONS_READ)
        return None

    async def _bearer(self, request: Request) -> Caller:
        values = request.headers.getlist("authorization")
        if not values:
            if self._is_open:
                return Caller("dev", EVERYTHING, is_anonymous=True)
            raise WireError(ErrorCode.UNAUTHORIZED, "a bearer token is required")
        kind, _, token = values[0].partition(" ")
        if len(values) > 1 or kind != "Bearer" or not token:
            raise WireError(ErrorCode.UNAUTHORIZED, "the Authorization header is no bearer token")
        if self._bootstrap is not None and hmac.compare_digest(
            token.encode(), self._bootstrap.encode()
        ):
            return Caller("bootstrap", EVERYTHING)
        holder: Holder | None = await self._keys.holder(token)
        if holder is None and self._oidc is not None:
            holder = await self._oidc.holder(token)
        if holder is None:
            raise WireError(ErrorCode.UNAUTHORIZED, "the token is not known, or is revoked")
        return Caller(holder.name, holder.scopes, holder.groups)


def lease_of(request: Request) -> Lease:
    """Return the attempt that a request acts under (protocol 1.3); raises `validation_error`."""
    dispatch_id = request.headers.get("rebuno-dispatch-id", "")
    attempt = request.headers.get("rebuno-dispatch-attempt", "")
    if (
        not attempt.isascii()
        or not attempt.isdecimal()
        or len(attempt) > 9
        or not 0 < int(attempt) < 2**31
    ):
        raise WireError(
            ErrorCode.VALIDATION_ERROR, "Rebuno-Dispatch-Attempt must be a number above 0"
        )
    return Lease(uuid_of("Rebuno-Dispatch-Id", dispatch_id), int(attempt))


def uuid_of(field: str, text: str) -> str:
    """Return an id as it is stored; raises `validation_error`."""
    try:
        return str(UUID(text))
    except ValueError:
        raise WireError(ErrorCode.VALIDATION_ERROR, f"{field}: {text!r} is not a UUID") from None


def _signed_headers(request: Request) -> dict[str, str]:
    """Return the headers that a signature is about; one that is there twice is refused."""
    found: dict[str, str] = {}
    for raw_name, raw_value in request.scope["headers"]:
        if raw_name in _SIGNED:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            if name in found or "\r" in value or "\n" in value:
                raise _unsigned(f"{name} is there more than once")
            found[name] = value
    return found


def _target(request: Request) -> str:
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    query: bytes = request.scope.get("query_string", b"")
    target = raw.partition(b"?")[0] + (b"?" + query if query else b"")
    return target.decode("latin-1")


def _unsigned(why: str) -> WireError:
    return WireError(ErrorCode.UNAUTHORIZED, why)


@dataclass(slots=True)
class _Seen:
    """Signatures that were used, by when they were first."""

    first: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def is_replay(self, signature: str, now: int) -> bool:
        """True when the signature was used some time ago.

        Two calls that are alike and made within a second have one signature, so that its coming
        twice at once is no replay. What comes within those seconds is harmless: a submit that is
        counted twice runs no body, and outcomes are recorded once.
        """
        first = self.first.setdefault(signature, now)
        while self.first:
            oldest, at = next(iter(self.first.items()))
            if len(self.first) <= _SEEN_MAX and now - at <= 2 * signatures.CLOCK_SECONDS_MAX:
                break
            del self.first[oldest]
        return now - first > _REPEAT_SECONDS
