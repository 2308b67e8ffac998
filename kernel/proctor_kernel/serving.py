"""`proctor dev` and `proctor serve`: a service in this process, or in several."""

import asyncio
import json
import os
import secrets
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from pydantic import ValidationError

from proctor_kernel.settings import OidcSettings, Settings

_SETTINGS: Final = "PROCTOR_SETTINGS_JSON"
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")

Rules = Annotated[Path, typer.Option(envvar="PROCTOR_RULES", help="Folder of .cedar files.")]
Database = Annotated[
    str,
    typer.Option(envvar="PROCTOR_DATABASE", help="SQLite file, or postgresql://user@host/name."),
]
Config = Annotated[
    Path | None,
    typer.Option(envvar="PROCTOR_CONFIG", help="Manifest of agents; applied when it changes."),
]
Port = Annotated[int, typer.Option(envvar="PROCTOR_PORT", help="Port; 0 picks a free one.")]
Invalid = Annotated[
    str,
    typer.Option(
        envvar="PROCTOR_INVALID_RULES",
        help="What decides when the rules do not load at the start: deny, last_good or refuse.",
    ),
]
RequireTests = Annotated[
    bool,
    typer.Option(
        envvar="PROCTOR_RELOAD_REQUIRES_TESTS",
        help="An edit comes into force only when the tests beside the rules pass.",
    ),
]
LeaseSeconds = Annotated[
    float,
    typer.Option(envvar="PROCTOR_LEASE_SECONDS", help="How long an attempt may be silent."),
]
BackoffSeconds = Annotated[
    float,
    typer.Option(
        envvar="PROCTOR_BACKOFF_SECONDS",
        help="Before the second attempt to deliver; doubled for each after it.",
    ),
]
ApprovalSeconds = Annotated[
    int,
    typer.Option(
        envvar="PROCTOR_APPROVAL_SECONDS", help="How long people have, unless a rule says."
    ),
]
ApprovalsWebhook = Annotated[
    str | None,
    typer.Option(
        envvar="PROCTOR_APPROVALS_WEBHOOK",
        help="Told of approvals; signed with PROCTOR_APPROVALS_WEBHOOK_SECRET.",
    ),
]
DeadlineSeconds = Annotated[
    int | None,
    typer.Option(envvar="PROCTOR_DEADLINE_SECONDS", help="How long a run may take in all."),
]
Export = Annotated[
    list[str] | None,
    typer.Option(
        envvar="PROCTOR_EXPORT",
        help="Where the audit trail goes: otlp-traces, otlp-logs, jsonl:PATH, stdout; repeat for "
        "several. OTLP is set up by the OTEL_EXPORTER_OTLP_... variables.",
    ),
]
ExportFrom = Annotated[
    str,
    typer.Option(
        envvar="PROCTOR_EXPORT_FROM",
        help="Where a sink begins that was not there before: beginning or now.",
    ),
]
SigningKey = Annotated[
    Path | None,
    typer.Option(
        envvar="PROCTOR_SIGNING_KEY",
        help="Signs checkpoints of the log; make one: proctor audit keygen.",
    ),
]
CheckpointSeconds = Annotated[
    int,
    typer.Option(envvar="PROCTOR_CHECKPOINT_SECONDS", help="Between two checkpoints of the log."),
]
LogLevel = Annotated[
    str, typer.Option(envvar="PROCTOR_LOG_LEVEL", help="debug, info, warning or error.")
]
LogFormat = Annotated[str, typer.Option(envvar="PROCTOR_LOG_FORMAT", help="text or json.")]


def dev(
    host: Annotated[str, typer.Option(help="A loopback address.")] = "127.0.0.1",
    port: Port = 8080,
    rules: Rules = Path("rules"),
    database: Database = "proctor.db",
    config: Config = None,
    invalid_rules: Invalid = "deny",
    reload_requires_tests: RequireTests = False,
    lease_seconds: LeaseSeconds = 120,
    backoff_seconds: BackoffSeconds = 1.0,
    approval_seconds: ApprovalSeconds = 900,
    approvals_webhook: ApprovalsWebhook = None,
    deadline_seconds: DeadlineSeconds = None,
    export: Export = None,
    export_from: ExportFrom = "beginning",
    signing_key: SigningKey = None,
    checkpoint_seconds: CheckpointSeconds = 60,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Run a server for yourself: loopback only, no tokens, SQLite by default."""
    if host not in _LOOPBACK:
        _stop(
            f"dev asks for no tokens, so it listens on loopback only, not on {host}; "
            "use proctor serve"
        )
    _run(
        database=database,
        rules=str(rules),
        config=_path(config),
        host=host,
        port=port,
        is_dev=True,
        bootstrap_token=None,
        secret_key=os.environ.get("PROCTOR_SECRET_KEY") or _own_key(database),
        invalid_rules=invalid_rules,
        reload_requires_tests=reload_requires_tests,
        lease_seconds=lease_seconds,
        backoff_seconds=backoff_seconds,
        approval_seconds=approval_seconds,
        approvals_webhook=approvals_webhook,
        approvals_webhook_secret=os.environ.get("PROCTOR_APPROVALS_WEBHOOK_SECRET"),
        deadline_seconds=deadline_seconds,
        export=tuple(export or ()),
        export_from=export_from,
        mask_key=os.environ.get("PROCTOR_MASK_KEY") or None,
        signing_key=_path(signing_key or _own_signing_key(database)),
        checkpoint_seconds=checkpoint_seconds,
        log_level=log_level,
        log_format=log_format,
    )


def serve(
    database: Database,
    host: Annotated[
        str, typer.Option(envvar="PROCTOR_HOST", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Port = 8080,
    rules: Rules = Path("rules"),
    config: Config = None,
    workers: Annotated[
        int, typer.Option(envvar="PROCTOR_WORKERS", help="Processes; more than 1: PostgreSQL.")
    ] = 1,
    invalid_rules: Invalid = "deny",
    reload_requires_tests: RequireTests = False,
    lease_seconds: LeaseSeconds = 120,
    backoff_seconds: BackoffSeconds = 1.0,
    attempts_max: Annotated[
        int,
        typer.Option(
            envvar="PROCTOR_ATTEMPTS_MAX",
            help="Attempts in a row without a recorded step before a run fails.",
        ),
    ] = 5,
    approval_seconds: ApprovalSeconds = 900,
    approvals_webhook: ApprovalsWebhook = None,
    deadline_seconds: DeadlineSeconds = None,
    retention_seconds: Annotated[
        int | None,
        typer.Option(
            envvar="PROCTOR_RETENTION_SECONDS",
            help="How long runs that ended are kept; for ever by default.",
        ),
    ] = None,
    signing_key: SigningKey = None,
    checkpoint_seconds: CheckpointSeconds = 60,
    webhook_host: Annotated[
        list[str] | None,
        typer.Option(
            envvar="PROCTOR_WEBHOOK_HOSTS",
            help="Hosts that agents may be at, as *.example.com; repeat for several.",
        ),
    ] = None,
    allow_private_webhooks: Annotated[
        bool,
        typer.Option(
            envvar="PROCTOR_ALLOW_PRIVATE_WEBHOOKS",
            help="Agents may be at loopback and private addresses.",
        ),
    ] = False,
    oidc_issuer: Annotated[
        str | None,
        typer.Option(envvar="PROCTOR_OIDC_ISSUER", help="Issuer whose tokens are believed."),
    ] = None,
    oidc_audience: Annotated[
        str | None, typer.Option(envvar="PROCTOR_OIDC_AUDIENCE", help="Whom they must be for.")
    ] = None,
    oidc_name_claim: Annotated[str, typer.Option(envvar="PROCTOR_OIDC_NAME_CLAIM")] = "sub",
    oidc_scopes_claim: Annotated[str, typer.Option(envvar="PROCTOR_OIDC_SCOPES_CLAIM")] = "scope",
    oidc_groups_claim: Annotated[str, typer.Option(envvar="PROCTOR_OIDC_GROUPS_CLAIM")] = "groups",
    database_connections: Annotated[
        int,
        typer.Option(
            envvar="PROCTOR_DATABASE_CONNECTIONS", help="Connections of each process at most."
        ),
    ] = 10,
    drain_seconds: Annotated[
        int,
        typer.Option(
            envvar="PROCTOR_DRAIN_SECONDS", help="Time for requests under way when it stops."
        ),
    ] = 10,
    export: Export = None,
    export_from: ExportFrom = "beginning",
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Run a server for others: every caller proves who it is.

    PROCTOR_SECRET_KEY encrypts the secrets of agents; PROCTOR_BOOTSTRAP_TOKEN, where it is set, is
    a bearer token with every scope; PROCTOR_MASK_KEY keys the hashes of masked values.
    """
    secret_key = os.environ.get("PROCTOR_SECRET_KEY")
    if not secret_key:
        _stop(
            "PROCTOR_SECRET_KEY is not set; it encrypts the secrets of agents. "
            "Make one, and keep it: openssl rand -base64 32"
        )
    if (oidc_issuer is None) != (oidc_audience is None):
        _stop("--oidc-issuer and --oidc-audience go together")
    oidc = None
    if oidc_issuer is not None and oidc_audience is not None:
        oidc = OidcSettings(
            issuer=oidc_issuer,
            audience=oidc_audience,
            name_claim=oidc_name_claim,
            scopes_claim=oidc_scopes_claim,
            groups_claim=oidc_groups_claim,
        )
    _run(
        database=database,
        rules=str(rules),
        config=_path(config),
        host=host,
        port=port,
        workers=workers,
        bootstrap_token=os.environ.get("PROCTOR_BOOTSTRAP_TOKEN") or None,
        secret_key=secret_key,
        oidc=oidc,
        invalid_rules=invalid_rules,
        reload_requires_tests=reload_requires_tests,
        lease_seconds=lease_seconds,
        backoff_seconds=backoff_seconds,
        attempts_max=attempts_max,
        approval_seconds=approval_seconds,
        approvals_webhook=approvals_webhook,
        approvals_webhook_secret=os.environ.get("PROCTOR_APPROVALS_WEBHOOK_SECRET"),
        deadline_seconds=deadline_seconds,
        retention_seconds=retention_seconds,
        signing_key=_path(signing_key),
        checkpoint_seconds=checkpoint_seconds,
        webhook_hosts=tuple(webhook_host or ()),
        allow_private_webhooks=allow_private_webhooks,
        database_connections_max=database_connections,
        drain_seconds=drain_seconds,
        export=tuple(export or ()),
        export_from=export_from,
        mask_key=os.environ.get("PROCTOR_MASK_KEY") or None,
        log_level=log_level,
        log_format=log_format,
    )


def application() -> Any:
    """Return the application of a worker, from the settings that its parent left for it."""
    from proctor_kernel.api.app import application as made
    from proctor_kernel.log_lines import log_to_stderr

    settings = Settings.model_validate_json(os.environ[_SETTINGS])
    log_to_stderr(settings.log_level, settings.log_format)
    return made(settings)


def _run(**given: Any) -> None:
    try:
        settings = Settings(**given)
    except ValidationError as error:
        _stop(
            "; ".join(
                f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}"
                for each in error.errors(include_url=False, include_input=False)
            )
        )
    if settings.approvals_webhook and settings.approvals_webhook_secret is None:
        _stop("--approvals-webhook needs PROCTOR_APPROVALS_WEBHOOK_SECRET to sign with")
    if settings.workers > 1 and not settings.is_postgres:
        _stop("several workers share a database, which a SQLite file cannot be; use PostgreSQL")
    if not Path(settings.rules).is_dir():
        _stop(f"the rules folder {settings.rules!r} does not exist; make one: proctor init")
    _check(settings)
    _listen(settings)


def _check(settings: Settings) -> None:
    """Open everything once, so that what is wrong is said before anything listens."""
    from proctor_kernel import otlp_metrics
    from proctor_kernel.audit.signing import KeyUnusable
    from proctor_kernel.log_lines import log_to_stderr
    from proctor_kernel.provision import ManifestInvalid
    from proctor_kernel.service import open_service
    from proctor_kernel.store.database import StoreError
    from proctor_policy.problem import RulesInvalid

    async def opened() -> None:
        async with open_service(settings):
            pass

    log_to_stderr(settings.log_level, settings.log_format)
    try:
        otlp_metrics.destination(os.environ)
        asyncio.run(opened())
    except (StoreError, KeyUnusable, RulesInvalid, ManifestInvalid, ValueError) as error:
        _stop(str(error))


def _listen(settings: Settings) -> None:
    import uvicorn

    try:
        listening = _socket(settings)
    except OSError as error:
        _stop(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}")
    host, port = listening.getsockname()[:2]
    os.environ[_SETTINGS] = _with_secrets(settings)
    config = uvicorn.Config(
        "proctor_kernel.serving:application",
        factory=True,
        host=settings.host,
        port=port,
        workers=settings.workers,
        log_config=None,
        access_log=False,
        limit_concurrency=settings.connections_max,
        timeout_graceful_shutdown=settings.drain_seconds,
        timeout_keep_alive=75,
        server_header=False,
        proxy_headers=False,
        date_header=False,
        h11_max_incomplete_event_size=64 * 1024,
    )
    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"proctor listens on http://{shown}:{port} (documentation: /v0/docs)", err=True)
    if settings.is_dev:
        typer.echo("for development: whoever reaches this port may do everything", err=True)
    if settings.workers == 1:
        uvicorn.Server(config).run(sockets=[listening])
        return
    from uvicorn.supervisors import Multiprocess

    folder = tempfile.mkdtemp(prefix="proctor-metrics-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    try:
        Multiprocess(config, sockets=[listening]).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _socket(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((settings.host, settings.port))
    listening.set_inheritable(True)
    return listening


def _with_secrets(settings: Settings) -> str:
    """Return settings for a worker, secrets in the clear: its environment is our own."""
    shown = settings.model_dump(mode="json")
    for name in ("bootstrap_token", "secret_key", "mask_key", "approvals_webhook_secret"):
        value = getattr(settings, name)
        shown[name] = None if value is None else value.get_secret_value()
    return json.dumps(shown)


def _own_key(database: str) -> str:
    """Return the key of a development server: kept beside its database, for its user alone."""
    if database == ":memory:" or "://" in database:
        return secrets.token_urlsafe(32)
    path = Path(f"{database}.key")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    except OSError as error:
        _stop(f"{path}: {error.strerror}")
    with os.fdopen(descriptor, "w") as file:
        key = secrets.token_urlsafe(32)
        file.write(key + "\n")
    return key


def _own_signing_key(database: str) -> Path | None:
    from proctor_kernel.audit import signing

    try:
        return signing.own(database)
    except signing.KeyUnusable as error:
        _stop(str(error))


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _stop(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)
