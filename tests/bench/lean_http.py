"""A client that costs little, so that what is measured is the server: HTTP/1.1, kept alive."""

import asyncio
import time

from proctor_kernel import signatures


class Connection:
    """One connection to a server, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, port: int) -> "Connection":
        return cls(*await asyncio.open_connection(host, port))

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        length = 0
        for line in answer.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return status, await self._reader.readexactly(length) if length else b""

    def close(self) -> None:
        self._writer.close()


def signed(
    agent: str, secret: str, path: str, body: bytes, dispatch: str = "", attempt: str = ""
) -> dict[str, str]:
    """Return the headers of an agent's request."""
    timestamp = str(int(time.time()))
    headers = {
        "Rebuno-Agent-Id": agent,
        "Rebuno-Timestamp": timestamp,
        "Rebuno-Signature": signatures.of_request(
            secret,
            method="POST",
            target=path,
            timestamp=timestamp,
            dispatch_id=dispatch,
            dispatch_attempt=attempt,
            body=body,
        ),
    }
    if dispatch:
        headers |= {"Rebuno-Dispatch-Id": dispatch, "Rebuno-Dispatch-Attempt": attempt}
    return headers
