"""What can be set about a kernel that runs as a service. A bad value stops the start, by name."""

import ipaddress
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr

InvalidRules = Literal["deny", "last_good", "refuse"]


class OidcSettings(BaseModel):
    """Whose tokens are believed, and where in them the name, scopes and groups are."""

    model_config = ConfigDict(frozen=True)

    issuer: str
    audience: str
    name_claim: str = "sub"
    scopes_claim: str = "scope"
    groups_claim: str = "groups"


class Settings(BaseModel):
    """Everything that a service is told at its start. Durations in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database: str
    """A SQLite file, or `postgresql://...`."""
    rules: str
    config: str | None = None
    """Manifest of agents."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    is_dev: bool = False
    """Whoever reaches the port may do everything, unless a token is sent."""
    bootstrap_token: SecretStr | None = None
    """A bearer token with every scope."""
    secret_key: SecretStr | None = None
    """Encrypts the secrets of agents at rest."""
    oidc: OidcSettings | None = None
    invalid_rules: InvalidRules = "deny"
    reload_requires_tests: bool = False
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    lease_seconds: Annotated[float, Field(ge=1)] = 120
    """How long an attempt may be silent; an agent may have a value of its own."""
    attempts_max: Annotated[int, Field(ge=1)] = 5
    """Attempts in a row without a recorded step before a run fails as `dispatch_exhausted`."""
    delivery_seconds: Annotated[float, Field(gt=0)] = 30
    """How long an agent may take to accept a delivery."""
    deliveries_max: Annotated[int, Field(ge=1)] = 64
    """Deliveries under way at once, of one process."""
    backoff_seconds: Annotated[float, Field(gt=0)] = 1.0
    backoff_seconds_max: Annotated[float, Field(gt=0)] = 30.0
    approval_seconds: Annotated[int, Field(ge=1)] = 900
    """How long people have to decide, unless the rule says."""
    approvals_webhook: str | None = None
    """Told of every approval that is requested or decided."""
    approvals_webhook_secret: SecretStr | None = None
    deadline_seconds: Annotated[int, Field(ge=1)] | None = None
    """How long a run may take in all; None: as long as it likes."""
    retention_seconds: Annotated[int, Field(ge=1)] | None = None
    """How long runs that ended are kept; None: for ever."""
    signing_key: str | None = None
    """File with the Ed25519 key that signs checkpoints of the log; None: nothing is signed."""
    checkpoint_seconds: Annotated[int, Field(ge=1)] = 60
    webhook_hosts: tuple[str, ...] = ()
    """Hosts that agents may be at (`*.example.com` is its subdomains); empty: any."""
    allow_private_webhooks: bool = False
    """Agents may be at loopback and private addresses."""
    body_bytes_max: Annotated[int, Field(ge=1024)] = 10 * 1024 * 1024
    body_seconds_max: Annotated[float, Field(gt=0)] = 30
    connections_max: Annotated[int, Field(ge=1)] = 2000
    database_connections_max: Annotated[int, Field(ge=2)] = 10
    drain_seconds: Annotated[int, Field(ge=0)] = 10
    """How long requests under way may take to end when the service stops."""
    export: tuple[str, ...] = ()
    """Sinks that the log is shipped to; empty: those that the standard variables name."""
    export_from: Literal["beginning", "now"] = "beginning"
    """Where a sink begins that was not there before."""
    mask_key: SecretStr | None = None
    """Keys the hashes of masked values; None: derived from `secret_key`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @property
    def is_postgres(self) -> bool:
        """True when the database is a server that replicas share."""
        return self.database.startswith(("postgresql://", "postgres://"))


class TargetRefused(ValueError):
    """A webhook address that deliveries may not go to; the message says why."""


def check_target(url: str, *, hosts: tuple[str, ...], allow_private: bool) -> None:
    """Check where deliveries would go; names are looked up only when one is made.

    Raises:
        TargetRefused: not HTTP, credentials in it, a host that is not listed, or an address that
            needs consent.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise TargetRefused(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise TargetRefused(f"{url!r} is not an http or https URL")
    if parts.username is not None or parts.password is not None:
        raise TargetRefused(f"{url!r} has credentials in it")
    if hosts and not any(_is_host(host, allowed) for allowed in hosts):
        raise TargetRefused(f"the host {host!r} is not one of: {', '.join(hosts)}")
    if not allow_private:
        if host == "localhost" or host.endswith(".localhost"):
            raise TargetRefused(_needs_consent(host))
        check_address(host, host)


def check_address(host: str, address: str) -> None:
    """Raise `TargetRefused` when `address` is not a public one; names pass."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    if not (mapped or parsed).is_global or (mapped or parsed).is_multicast:
        raise TargetRefused(_needs_consent(f"{host} ({address})" if host != address else host))


def _is_host(host: str, allowed: str) -> bool:
    if allowed.startswith("*."):
        return host.endswith(allowed[1:])
    return host == allowed


def _needs_consent(where: str) -> str:
    return f"{where} is not a public address; --allow-private-webhooks consents to such"
