"""The way to the server: options, requests, streams, errors as people read them, shortened ids."""

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, Self
from urllib.parse import quote

import httpx2
import typer

from proctor.wire.json_text import parsed
from proctor.wire.words import API_KEY_VARIABLE, SERVER_URL_DEFAULT, SERVER_URL_VARIABLE
from proctor_kernel.client_cli.show import Json, brief, clean, err

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar=SERVER_URL_VARIABLE,
        help="Where the server is.",
        rich_help_panel="Connection",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar=API_KEY_VARIABLE,
        help="Who asks; in the environment other users of the machine do not see it.",
        rich_help_panel="Connection",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="For a program to read.")]

Params = Mapping[str, str | int | None]

IDS_MAX: Final = 1000
"""Things among which a shortened id is looked for."""

_PAGE: Final = 100
_SHORTEST: Final = 4
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_READ_SECONDS: Final = 60.0
_STREAM_FAILURES_MAX: Final = 5
_STEADY_SECONDS: Final = 10.0


class ApiError(Exception):
    """The server refused; `details` is whatever JSON it gave beside the message."""

    def __init__(self, status: int, message: str, details: Any = None) -> None:
        super().__init__(message)
        self.status = status
        self.details = details


class Server:
    """The HTTP API of one server. Methods raise `ApiError` and what httpx2 raises."""

    def __init__(self, url: str, api_key: str | None, *, timeout: float = 30.0) -> None:
        headers = {"Authorization": f"Bearer {api_key.strip()}"} if api_key else {}
        self._client = httpx2.Client(base_url=url, headers=headers, timeout=timeout)

    def __enter__(self) -> Self:
        """Use the connection for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._client.close()

    def get(self, path: str, params: Params | None = None) -> Any:
        """Return what is at `path`; parameters that are None are left out."""
        return _answer(self._client.get(path, params=_given(params)))

    def post(self, path: str, body: Json | None = None, *, raw: Mapping[str, str] = {}) -> Any:
        """Send the members of `body` that are set, and `raw` ones, which are JSON already."""
        given = {name: value for name, value in (body or {}).items() if value is not None}
        members = {name: json.dumps(value) for name, value in given.items()} | dict(raw)
        text = ",".join(f"{json.dumps(name)}:{value}" for name, value in members.items())
        headers = {"Content-Type": "application/json"}
        return _answer(self._client.post(path, content="{" + text + "}", headers=headers))

    def delete(self, path: str) -> None:
        """Remove what is at `path`."""
        _answer(self._client.delete(path))

    def executions(self, params: Params, limit: int) -> tuple[list[Json], bool]:
        """Return up to `limit` runs, the newest first, and whether there are more."""
        found: list[Json] = []
        cursor: str | None = None
        while True:
            size = min(_PAGE, limit - len(found))
            page = self.get(path("executions"), {**params, "cursor": cursor, "limit": size})
            found += page["executions"]
            cursor = page.get("next_cursor")
            if cursor is None or len(found) >= limit:
                return found[:limit], cursor is not None or len(found) > limit

    def frames(
        self, path: str, *, after: str | None = None
    ) -> Iterator[httpx2.ServerSentEvent | None]:
        """Follow a stream; None says that it was opened, the first time or once more.

        A stream that breaks is opened again, with the last id as parameter `after`.
        """
        last, failures, opened = "", 0, False
        while True:
            began = time.monotonic()
            broken: Exception = ApiError(502, "the stream ends at once, whenever it is opened")
            try:
                for frame in self._opened(path, {after: last or None} if after else None):
                    opened = True
                    if frame is not None:
                        last = frame.id or last
                    yield frame
            except (httpx2.TransportError, ApiError) as error:
                # Asked again, a server refuses again, and what is no stream does not become one.
                refused = isinstance(error, ApiError) and error.status < 500
                if not opened or refused or isinstance(error, httpx2.SSEError):
                    raise
                broken = error
            steady = time.monotonic() - began > _STEADY_SECONDS
            failures = 0 if steady else failures + 1
            if failures > _STREAM_FAILURES_MAX:
                raise broken
            time.sleep(2.0 ** min(failures, 4) / 4)

    def _opened(self, path: str, params: Params | None) -> Iterator[httpx2.ServerSentEvent | None]:
        # Comments come much more often: silence means that the connection is lost.
        timeout = httpx2.Timeout(30.0, read=_READ_SECONDS)
        headers = {"Accept": "text/event-stream"}
        with self._client.stream(
            "GET", path, params=_given(params), headers=headers, timeout=timeout
        ) as response:
            if not response.is_success:
                response.read()
                _answer(response)
            yield None
            # An event holds arguments or results, which may be larger than httpx2 lets pass.
            yield from httpx2.EventSource(response, max_event_size=None)


@contextmanager
def connected(url: str, api_key: str | None) -> Iterator[Server]:
    """Talk to the server in a block; what goes wrong is told, and exits with status 1."""
    try:
        with Server(url, api_key) as server:
            yield server
    except ApiError as error:
        more = list(_detail_lines(error.details))
        if error.status == 401:
            more.append("give a key: --api-key, or PROCTOR_API_KEY in the environment")
        fail(str(error), *more)
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        fail(
            f"no server answers at {url} ({error})",
            "start one with `proctor dev`, or name another with --url or PROCTOR_URL",
        )
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        fail(f"{url!r} is not the address of a server: {error}")
    except httpx2.TransportError as error:
        fail(f"the connection to {url} failed: {str(error) or type(error).__name__}")
    except UnicodeEncodeError:
        fail("the request holds a character that cannot be sent; is the API key right?")


def fail(message: str, *more: str) -> NoReturn:
    """Say what is wrong and exit with status 1."""
    err.print("[bold red]error:[/]", end=" ")
    err.print(clean(message), markup=False)
    for line in more:
        err.print("  " + clean(line), markup=False)
    raise typer.Exit(1)


def path(*segments: str) -> str:
    """Return a path of the API."""
    return "/v0/" + "/".join(quote(segment, safe="") for segment in segments)


def text_of(file: str) -> str:
    """Return what a file holds; `-` is the standard input."""
    try:
        read = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return read.decode("utf-8-sig")
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}")
    except UnicodeDecodeError:
        fail(f"{file} is not UTF-8 text")


def resolve(given: str, what: str, ids: Iterable[str]) -> str:
    """Return the one id that `given` is, begins or ends; fails when it is not one."""
    known = list(ids)
    if given in known:
        return given
    # Shorter ones would take the number of a line, say, for the end of some id.
    if len(given) < _SHORTEST:
        fail(f"no {what} {given!r}; an id cut short has at least {_SHORTEST} characters")
    matches = [each for each in known if each.startswith(given) or each.endswith(given)]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        among = f" among the newest {IDS_MAX}: give the whole id" if len(known) >= IDS_MAX else ""
        fail(f"no {what} begins or ends with {given!r}{among}")
    listed = matches[:10] + ([f"and {len(matches) - 10} more"] if len(matches) > 10 else [])
    fail(f"{len(matches)} {what}s begin or end with {given!r}; the last characters tell:", *listed)


def is_whole(given: str) -> bool:
    """Return whether an id is complete, so that nothing has to be looked up."""
    return _UUID.fullmatch(given) is not None


def complete_agents(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the agents whose names begin with what was typed, for the shell."""
    url = ctx.params.get("url") or os.environ.get(SERVER_URL_VARIABLE) or SERVER_URL_DEFAULT
    api_key = ctx.params.get("api_key") or os.environ.get(API_KEY_VARIABLE)
    try:
        with Server(url, api_key, timeout=1.0) as server:
            names = [str(agent["id"]) for agent in server.get(path("agents"))]
    except Exception:
        # Whatever is wrong, a shell that completes is no place to say it.
        return []
    return [name for name in names if name.startswith(incomplete)]


def _given(params: Params | None) -> dict[str, str | int]:
    return {name: value for name, value in (params or {}).items() if value is not None}


def _answer(response: httpx2.Response) -> Any:
    if response.is_success and not response.content:
        return None
    try:
        body = parsed(response.text)
    except ValueError:
        body = None
    if response.is_success and body is not None:
        return body
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        raise ApiError(response.status_code, body["message"], body.get("details"))
    start = " ".join(response.text.split())[:200]
    raise ApiError(
        response.status_code, f"no answer of a Proctor server: HTTP {response.status_code} {start}"
    )


def _detail_lines(details: Any) -> Iterator[str]:
    match details:
        case None:
            return
        case dict():
            for name, value in details.items():
                if isinstance(value, list):
                    yield f"{name}:"
                    yield from ("  " + line for line in _detail_lines(value))
                else:
                    yield f"{name}: {brief(value)}"
        case list():
            yield from map(brief, details)
        case _:
            yield from str(details).splitlines()
