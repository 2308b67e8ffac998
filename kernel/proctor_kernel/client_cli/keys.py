"""`proctor keys ...`: API keys, made and withdrawn over HTTP."""

import asyncio
from typing import Annotated, Final

import typer
from rich.text import Text

from proctor.wire.calls import WireError
from proctor.wire.words import SERVER_URL_DEFAULT
from proctor_kernel.client_cli import show
from proctor_kernel.client_cli.connection import (
    ApiKey,
    AsJson,
    Server,
    Url,
    connected,
    fail,
    path,
    resolve,
)
from proctor_kernel.client_cli.show import Json
from proctor_kernel.keys import ApiKeys
from proctor_kernel.store.database import StoreError
from proctor_kernel.store.postgres import open_postgres
from proctor_kernel.world import now_micros

keys_app = typer.Typer(no_args_is_help=True, help="Make API keys, renew and revoke them.")

SCOPES: Final = (
    "executions:read",
    "executions:write",
    "approvals:read",
    "approvals:write",
    "agents:read",
    "agents:write",
    "policies:write",
    "api_keys:manage",
)
"""What a key may be allowed; the server has the last word."""

KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key; its id may be cut short.")]


def complete_scopes(incomplete: str) -> list[str]:
    """Return the scopes that begin with what was typed, for the shell."""
    return [scope for scope in SCOPES if scope.startswith(incomplete)]


@keys_app.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="Whose key it is; decisions are recorded under it.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help=f"What it may do; repeat for several: {', '.join(SCOPES)}.",
            autocompletion=complete_scopes,
        ),
    ],
    group: Annotated[
        list[str] | None,
        typer.Option(help="A group of approvers that it belongs to; repeat for several."),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help="Make it in this PostgreSQL itself: the first key of a new server."),
    ] = None,
    url: Url = SERVER_URL_DEFAULT,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Make a key, and print its token, this once."""
    if database is not None:
        _print_token(_made(database, name, scope, group or []), as_json)
        return
    with connected(url, api_key) as server:
        body = {"name": name, "scopes": scope, "groups": group or None}
        created = server.post(path("api-keys"), body)
    _print_token(created, as_json)


@keys_app.command("ls")
def list_keys(
    url: Url = SERVER_URL_DEFAULT, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """List the keys, without their tokens."""
    with connected(url, api_key) as server:
        keys = server.get(path("api-keys"))
    if as_json:
        show.print_json(keys)
        return
    if not keys:
        show.hint("no keys")
        return
    table = show.table("ID", ("NAME", 2), ("SCOPES", 3), ("GROUPS", 2), "AGE", "")
    for key in keys:
        table.add_row(
            show.tail(key["id"]),
            Text(show.brief(key["name"])),
            Text(show.brief(" ".join(key["scopes"]))),
            Text(show.brief(" ".join(key.get("groups") or []))),
            show.ago(key["created_at"]),
            Text("revoked", style="magenta") if key.get("revoked_at") else "",
        )
    show.out.print(table)


@keys_app.command("rotate")
def rotate_key(
    key: KeyId, url: Url = SERVER_URL_DEFAULT, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Give a key a new token, and print it, this once; the old one is worth nothing any more."""
    with connected(url, api_key) as server:
        rotated = server.post(path("api-keys", _found(server, key), "rotate"))
    _print_token(rotated, as_json)


@keys_app.command("revoke")
def revoke_key(
    key: KeyId, url: Url = SERVER_URL_DEFAULT, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Make a key worth nothing, for good."""
    with connected(url, api_key) as server:
        found = _found(server, key)
        server.delete(path("api-keys", found))
    if as_json:
        show.print_json({"id": found, "revoked": True})
        return
    show.say(f"revoked {found}")


def _made(database: str, name: str, scopes: list[str], groups: list[str]) -> Json:
    """Make a key without a server; whoever can write to the database may."""

    async def make() -> Json:
        opened = await open_postgres(database)
        try:
            keys = ApiKeys(opened, now_micros=now_micros)
            return await keys.create(name, scopes, groups)
        finally:
            await opened.aclose()

    try:
        return asyncio.run(make())
    except WireError as error:
        fail(error.message)
    except StoreError as error:
        fail(str(error))


def _found(server: Server, given: str) -> str:
    keys = server.get(path("api-keys"))
    return resolve(given, "key", (each["id"] for each in keys if not each.get("revoked_at")))


def _print_token(key: Json, as_json: bool) -> None:
    if as_json:
        show.print_json(key)
        return
    show.fields(
        [
            ("id", key["id"]),
            ("name", key.get("name")),
            ("scopes", " ".join(key.get("scopes") or []) or None),
            ("groups", " ".join(key.get("groups") or []) or None),
        ]
    )
    show.say(key["token"])
    show.hint("this is the token; it is not shown again")
