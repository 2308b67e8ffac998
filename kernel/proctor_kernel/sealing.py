"""Secrets of agents at rest: encrypted with a key from the environment."""

import base64
import hashlib
from typing import Final

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

KEY_CHARACTERS_MIN: Final = 16


class SealBroken(Exception):
    """A secret that this key does not open."""


class Seal:
    """Encrypts and opens secrets. Several keys, separated by commas: the first encrypts."""

    def __init__(self, keys: str) -> None:
        """Raises ValueError for a key that is too short to be one."""
        given = [key.strip() for key in keys.split(",") if key.strip()]
        if not given or any(len(key) < KEY_CHARACTERS_MIN for key in given):
            raise ValueError(
                f"a secret key has at least {KEY_CHARACTERS_MIN} characters; "
                "make one: openssl rand -base64 32"
            )
        self._fernet = MultiFernet([Fernet(_derived(key)) for key in given])

    def close(self, secret: str) -> str:
        """Encrypt a secret."""
        return self._fernet.encrypt(secret.encode()).decode()

    def open(self, sealed: str) -> str:
        """Decrypt a secret; raises `SealBroken`."""
        try:
            return self._fernet.decrypt(sealed.encode()).decode()
        except InvalidToken:
            raise SealBroken("the secret was encrypted with another key") from None


def _derived(key: str) -> bytes:
    return base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest())
