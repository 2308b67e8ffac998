"""A Proctor server in a process of its own, as its user starts it."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

KEY = "a secret key for tests only"
TOKEN = "bootstrap-token-for-tests"

_LISTENS = re.compile(r"listens on (http://\S+)")


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A running server."""

    def __init__(self, arguments: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._log = log
        self._environment = environment
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = 60) -> None:
        with self._log.open("ab") as log:
            begins = self._log.stat().st_size
            self.process = subprocess.Popen(
                [sys.executable, "-m", "proctor_kernel", *self._arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
            )
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = _LISTENS.search(self.log()[begins:])
            if found is not None and self._answers(found[1]):
                self.url = found[1]
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"the server did not start: {self.log()[begins:]}")

    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(20)

    def stop(self) -> int:
        """Ask it to stop, and return its exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    @staticmethod
    def _answers(url: str) -> bool:
        try:
            return bool(httpx2.get(f"{url}/v0/health", timeout=5).is_success)
        except httpx2.HTTPError:
            return False


@contextmanager
def running(
    command: str,
    *,
    folder: Path,
    database: str,
    rules: Path,
    options: tuple[Any, ...] = (),
    environment: Mapping[str, str] | None = None,
    name: str = "server",
    port: int = 0,
) -> Iterator[Server]:
    """Run `proctor dev` or `proctor serve` for the time of a block."""
    given: dict[str, str] = {"PROCTOR_SECRET_KEY": KEY, **(environment or {})}
    if command == "serve":
        given.setdefault("PROCTOR_BOOTSTRAP_TOKEN", TOKEN)
    arguments = [
        command, "--port", str(port), "--database", database, "--rules", str(rules),
        *map(str, options),
    ]  # fmt: skip
    server = Server(arguments, folder / f"{name}.log", given)
    server.start()
    try:
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.stop()
