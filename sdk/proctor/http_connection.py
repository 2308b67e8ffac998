"""Requests to one server over HTTP: sent again where that is safe, streams opened again.

A request is repeated only when sending it twice is the same as sending it once. A server that
has never answered is no outage but a wrong address, and that is told at once.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

import httpx2

from proctor.errors import NetworkError
from proctor.wire.calls import WireError
from proctor.wire.json_text import parsed
from proctor.wire.words import API_KEY_VARIABLE, SERVER_URL_VARIABLE, ErrorCode

Params = Mapping[str, str | int]

_Failure = httpx2.TransportError | WireError | NetworkError
_FAILURES: Final = (httpx2.TransportError, WireError, NetworkError)

_SILENCE_SECONDS: Final = 60.0
"""A stream that is silent for so long is lost: servers send comments much more often."""

_STEADY_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 2.0
_PROXY_STATUSES: Final = (502, 504)
_SHOWN_CHARACTERS: Final = 200


class HttpConnection:
    """One server, and who asks it.

    Methods raise `WireError` for what the server refuses, and `NetworkError`, which says what to
    do, when it cannot be reached for `retry_seconds` (or once, if it is not safe to ask again).
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        timeout_seconds: float,
        retry_seconds: float,
    ) -> None:
        """Check the address; nothing is sent yet. Raises ValueError."""
        self._url = _checked(base_url)
        self._retry_seconds = retry_seconds
        self._timeout_seconds = timeout_seconds
        self._was_reached = False
        self._http = httpx2.AsyncClient(
            base_url=self._url,
            headers=_authorization(api_key),
            timeout=timeout_seconds,
            # Each watcher holds a connection for as long as its run takes.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def get(self, path: str, params: Params | None = None) -> Any:
        """Return what is at `path`."""
        return await self._answer("GET", path, params=params, is_repeatable=True)

    async def post(self, path: str, body_json: str | None = None, *, is_repeatable: bool) -> Any:
        """Send a JSON document and return the answer; None when there is none.

        `is_repeatable`: sent twice, it is the same as sent once.
        """
        return await self._answer("POST", path, body_json=body_json, is_repeatable=is_repeatable)

    async def frames(
        self, path: str, *, resume_parameter: str | None = None, resume_from: str | None = None
    ) -> AsyncGenerator[httpx2.ServerSentEvent | None, None]:
        """Follow a stream until it is closed here; None says that it was opened (once more).

        It is opened with `resume_from` as its `resume_parameter`, and again, when it breaks, with
        the id of the last frame.
        """
        patience = _Patience(self._retry_seconds)
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            problem: Exception = NetworkError(f"{self._url}{path} ends at once, again and again")
            params = {resume_parameter: resume_from} if resume_parameter and resume_from else None
            try:
                async with aclosing(self._opened(path, params)) as opened:
                    async for frame in opened:
                        if frame is not None:
                            patience.renew()
                            resume_from = frame.id or resume_from
                        yield frame
            except _FAILURES as error:
                problem = self._problem(error, is_repeatable=True)
            if clock() - began > _STEADY_SECONDS:
                patience.renew()
            await patience.pause(problem)

    async def _opened(
        self, path: str, params: Params | None
    ) -> AsyncGenerator[httpx2.ServerSentEvent | None, None]:
        timeout = httpx2.Timeout(self._timeout_seconds, read=_SILENCE_SECONDS)
        headers = {"Accept": "text/event-stream"}
        async with self._http.stream(
            "GET", path, params=params, headers=headers, timeout=timeout
        ) as response:
            self._was_reached = True
            if response.status_code != 200:
                await response.aread()
                self._read(response)
            yield None
            # An event holds arguments or results, which may be larger than httpx2 lets pass.
            async for frame in httpx2.EventSource(response, max_event_size=None):
                yield frame

    async def _answer(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body_json: str | None = None,
        is_repeatable: bool,
    ) -> Any:
        headers = {} if body_json is None else {"Content-Type": "application/json"}
        content = None if body_json is None else body_json.encode()
        patience = _Patience(self._retry_seconds if is_repeatable else 0.0)
        while True:
            try:
                response = await self._http.request(
                    method, path, params=params, content=content, headers=headers
                )
                self._was_reached = True
                return self._read(response)
            except _FAILURES as error:
                problem = self._problem(error, is_repeatable)
            await patience.pause(problem)

    def _problem(self, error: _Failure, is_repeatable: bool) -> Exception:
        """Return what to raise when trying again does not help; raises what it never does."""
        match error:
            case WireError():
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise error
                return error
            case NetworkError():
                text = str(error)
            case httpx2.ConnectError() | httpx2.ConnectTimeout():
                problem = NetworkError(
                    f"no server answers at {self._url} ({_text(error)}); start one with `proctor "
                    f"dev`, or name another: Client(base_url=...) or {SERVER_URL_VARIABLE}"
                )
                if not self._was_reached:
                    raise problem from error
                return problem
            case httpx2.SSEError():
                raise NetworkError(f"{self._url} sent no event stream: {_text(error)}") from error
            case httpx2.TimeoutException():
                text = (
                    f"{self._url} did not answer within {self._timeout_seconds} seconds; "
                    "Client(timeout=...) waits longer"
                )
            case _:
                text = f"the connection to {self._url} broke: {_text(error)}"
        self._was_reached = True
        if not is_repeatable:
            text += "; what was asked may have been done, so look before you ask again"
        return NetworkError(text)

    def _read(self, response: httpx2.Response) -> Any:
        if response.is_success and not response.content:
            return None
        try:
            body = parsed(response.text)
        except ValueError:
            body = None
        if response.is_success and body is not None:
            return body
        if isinstance(body, dict) and isinstance(body.get("message"), str):
            raise _refusal(body)
        if response.status_code in _PROXY_STATUSES:
            raise NetworkError(f"a proxy before {self._url} says HTTP {response.status_code}")
        start = " ".join(response.text.split())[:_SHOWN_CHARACTERS]
        if response.has_redirect_location:
            start = f"it redirects to {response.headers['location']}"
        raise WireError(
            ErrorCode.INTERNAL_ERROR,
            f"no Proctor server answers at {self._url}: HTTP {response.status_code} {start}",
        )


class _Patience:
    """For how long something is tried again, with pauses that grow."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Begin anew: it worked."""
        self._since: float | None = None
        self._pause = _PAUSE_SECONDS

    async def pause(self, problem: Exception) -> None:
        """Wait before the next try; raises `problem` when there is no time for one."""
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now
        if now - self._since + self._pause > self._seconds:
            raise problem
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, _PAUSE_SECONDS_MAX)


def _refusal(body: dict[str, Any]) -> WireError:
    known = {str(code): code for code in ErrorCode}
    code = known.get(str(body.get("code")), ErrorCode.INTERNAL_ERROR)
    details = body.get("details")
    text = details if isinstance(details, str) else ""
    message: str = body["message"]
    if code is ErrorCode.UNAUTHORIZED:
        message += f"; give a key: Client(api_key=...), or {API_KEY_VARIABLE} in the environment"
    return WireError(code, message, text)


def _checked(base_url: str) -> str:
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"{base_url!r} is not the address of a server: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(
            f"{base_url!r} is not the address of a server; one begins with http:// or https://"
        )
    return base_url.rstrip("/")


def _authorization(api_key: str | None) -> dict[str, str]:
    key = (api_key or "").strip()
    if not key:
        return {}
    if not key.isascii() or not key.isprintable():
        raise ValueError("the API key holds a character that cannot be sent; is it complete?")
    return {"Authorization": f"Bearer {key}"}


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
