"""Tokens of an OpenID Connect issuer, checked against its keys; claims are scopes and groups."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import httpx2
import jwt

from proctor_kernel.keys import Holder
from proctor_kernel.settings import OidcSettings

ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "EdDSA",
)
"""Only keys of which the public half is published: a shared secret could forge."""

_LEEWAY_SECONDS: Final = 30
_REFRESH_SECONDS_MIN: Final = 10
_KEEP_SECONDS: Final = 3600

_logger = logging.getLogger(__name__)


class Oidc:
    """Believes the tokens of one issuer for one audience."""

    def __init__(self, settings: OidcSettings, now_micros: Callable[[], int]) -> None:
        self._settings = settings
        self._now_micros = now_micros
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at = 0
        self._fetching = asyncio.Lock()
        self._http = httpx2.AsyncClient(timeout=10, follow_redirects=False)

    async def aclose(self) -> None:
        """Let go of the connection to the issuer."""
        await self._http.aclose()

    async def holder(self, token: str) -> Holder | None:
        """Return who a token speaks for, or None when it is not believed."""
        if token.count(".") != 2:
            return None
        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(str(header.get("kid", "")))
            if key is None:
                return None
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError as error:
            _logger.info("a token was not believed: %s", error)
            return None
        name = claims.get(self._settings.name_claim)
        if not isinstance(name, str) or not name:
            return None
        return Holder(
            name,
            frozenset(_texts(claims.get(self._settings.scopes_claim))),
            tuple(_texts(claims.get(self._settings.groups_claim))),
        )

    async def _key(self, kid: str) -> jwt.PyJWK | None:
        now = self._now_micros() // 1_000_000
        is_old = now - self._fetched_at > _KEEP_SECONDS
        if kid not in self._keys or is_old:
            async with self._fetching:
                # Whoever sends unknown ids must not make us ask the issuer each time.
                if now - self._fetched_at > _REFRESH_SECONDS_MIN:
                    await self._fetch(now)
        return self._keys.get(kid)

    async def _fetch(self, now: int) -> None:
        issuer = self._settings.issuer.rstrip("/")
        try:
            found = await self._http.get(f"{issuer}/.well-known/openid-configuration")
            keys = await self._http.get(found.raise_for_status().json()["jwks_uri"])
            known = keys.raise_for_status().json()
            self._keys = {
                str(each.key_id or ""): each for each in jwt.PyJWKSet.from_dict(known).keys
            }
            self._fetched_at = now
        except (httpx2.HTTPError, OSError, ValueError, KeyError, jwt.PyJWTError) as error:
            _logger.error("the keys of %s could not be fetched: %s", issuer, error)


def _texts(claim: Any) -> list[str]:
    if isinstance(claim, str):
        return claim.split()
    return [each for each in claim if isinstance(each, str)] if isinstance(claim, list) else []
