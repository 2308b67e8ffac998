"""Ed25519 keys: the private one signs what a kernel says of its log, the public ones check it."""

import base64
import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

Purpose = Literal["checkpoint", "deletion"]
"""What a signature says; one of either is worth nothing as the other."""

_RAW: Final = (serialization.Encoding.Raw, serialization.PublicFormat.Raw)
_PEM: Final = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class KeyUnusable(Exception):
    """A key file that cannot be read or written, or holds no Ed25519 key. Says which and why."""


class Signer:
    """A private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.key_id = key_id_of(key.public_key())
        """SHA-256 of the public key, in hex."""
        self.public_pem = key.public_key().public_bytes(*_PEM).decode()

    def sign(self, purpose: Purpose, text: str) -> str:
        """Return the signature of a text, in base64."""
        return base64.b64encode(self._key.sign(_signed(purpose, text))).decode()

    def has_signed(self, purpose: Purpose, text: str, signature: str) -> bool:
        """True when the signature is this key's own."""
        return _holds(self._key.public_key(), purpose, text, signature)


class PublicKeys:
    """The keys that a verifier believes, by id."""

    def __init__(self, keys: Iterable[Ed25519PublicKey] = ()) -> None:
        self._keys = {key_id_of(key): key for key in keys}

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the keys."""
        return tuple(self._keys)

    def holds(self, key_id: str, purpose: Purpose, text: str, signature: str) -> bool:
        """True when the key of that id is believed and has signed the text for that purpose."""
        key = self._keys.get(key_id)
        return key is not None and _holds(key, purpose, text, signature)


def key_id_of(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of a public key's 32 bytes, in hex."""
    return sha256(key.public_bytes(*_RAW)).hexdigest()


def generate(path: Path) -> Signer:
    """Write a new private key to `path`, for its owner alone.

    Raises:
        KeyUnusable: there is a file already, or it cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise KeyUnusable(
            f"{path}: the file exists; a key that has signed is not overwritten"
        ) from None
    except OSError as error:
        raise KeyUnusable(f"{path}: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
    return Signer(key)


def load(path: Path) -> Signer:
    """Read a private key; raises `KeyUnusable`."""
    try:
        key = serialization.load_pem_private_key(_bytes(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyUnusable(f"{path}: not a private key in PEM: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyUnusable(f"{path}: not an Ed25519 key; make one: proctor audit keygen")
    return Signer(key)


def own(database: str) -> Path | None:
    """Return the key file of an embedded kernel or a development server, made at its first start.

    It is beside the database. None for a database that has no place of its own.

    Raises:
        KeyUnusable: it cannot be written.
    """
    if database == ":memory:" or "://" in database:
        return None
    path = Path(f"{database}.signing.pem")
    if not path.exists():
        generate(path)
    return path


def public_keys(paths: Iterable[Path]) -> PublicKeys:
    """Read public keys; a file with a private key stands for its public one.

    Raises:
        KeyUnusable: one of the files is no Ed25519 key.
    """
    return PublicKeys([_public_key(path) for path in paths])


def _public_key(path: Path) -> Ed25519PublicKey:
    pem = _bytes(path)
    if b"PRIVATE KEY" in pem:
        return load(path)._key.public_key()
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyUnusable(f"{path}: not a public key in PEM: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyUnusable(f"{path}: not an Ed25519 key")
    return key


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KeyUnusable(f"{path}: {error.strerror}") from error


def _signed(purpose: Purpose, text: str) -> bytes:
    return f"proctor {purpose}\n{text}".encode()


def _holds(key: Ed25519PublicKey, purpose: Purpose, text: str, signature: str) -> bool:
    try:
        key.verify(base64.b64decode(signature, validate=True), _signed(purpose, text))
    except (InvalidSignature, ValueError):
        return False
    return True
