"""JSON lines: one event a line, into a file that is rotated by size, or to standard output.

    {"id":"<execution>:<seq>","at":"...","type":"step.denied","execution_id":"...","seq":4,
     "agent_id":"...","trace_id":"...","span_id":"...","hash":"...","position":17,"payload":{...}}

A file that this process or another one goes on with gets no line twice: what comes again is what
was written last, and its last line says where that ends.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TextIO

from proctor_kernel.audit.leaving import Leaving
from proctor_kernel.audit.shipping import SinkDown
from proctor_kernel.core import event_json
from proctor_kernel.core.identity import quoted

BYTES_MAX: Final = 100 * 1024 * 1024
"""A file that is larger is put aside before more is written."""

KEPT_MAX: Final = 10
"""Files that were put aside and are kept: `<name>.1` is the latest."""

_TAIL_BYTES: Final = 64 * 1024
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Line:
    """The event that a line is about."""

    execution_id: str
    seq: int
    hash: str


class JsonLinesFile:
    """Appends to a file; every line is on the disk when `ship` returns."""

    def __init__(self, path: Path, *, bytes_max: int = BYTES_MAX, kept_max: int = KEPT_MAX) -> None:
        """`kept_max` 0 keeps all files that are put aside, under the time at which they were."""
        self._path = path
        self._bytes_max = bytes_max
        self._kept_max = kept_max
        self._file: int | None = None
        self._inode = 0
        self._last: _Line | None = None

    async def ship(self, batch: Sequence[Leaving]) -> int:
        """Write a line for each event that the file does not have."""
        try:
            return await asyncio.to_thread(self._write, batch)
        except OSError as error:
            self._close()
            raise SinkDown(f"{self._path}: {error.strerror or error}") from error

    async def aclose(self) -> None:
        """Close the file."""
        self._close()

    def _write(self, batch: Sequence[Leaving]) -> int:
        file = self._opened()
        new = list(batch[_index_after(batch, self._last) :])
        if not new:
            return 0
        _write_all(file, "".join(map(line, new)).encode())
        os.fsync(file)
        self._last = _Line(new[-1].record.execution_id, new[-1].record.seq, new[-1].record.hash)
        return len(new)

    def _opened(self) -> int:
        if self._file is not None:
            try:
                found = os.stat(self._path)
                if found.st_ino == self._inode and found.st_size < self._bytes_max:
                    return self._file
                is_full = found.st_ino == self._inode
            except FileNotFoundError:
                is_full = False  # somebody else has put it aside
            self._close()
            if is_full:
                self._put_aside()
        last = self._last or _last_line(self._path)
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        self._inode = os.fstat(self._file).st_ino
        _cut_torn_line(self._path, self._file)
        self._last = last
        return self._file

    def _put_aside(self) -> None:
        if not self._kept_max:
            at = datetime.fromtimestamp(os.stat(self._path).st_mtime, UTC)
            os.rename(self._path, f"{self._path}.{at:%Y%m%dT%H%M%S%f}")
            return
        for number in range(self._kept_max - 1, 0, -1):
            if os.path.exists(f"{self._path}.{number}"):
                os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        os.replace(self._path, f"{self._path}.1")

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class JsonLinesStream:
    """Writes to standard output, or another stream."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout

    async def ship(self, batch: Sequence[Leaving]) -> int:
        """Write a line for each event."""
        try:
            await asyncio.to_thread(self._write, batch)
        except OSError as error:
            raise SinkDown(f"standard output: {error.strerror or error}") from error
        return len(batch)

    async def aclose(self) -> None:
        """Leave the stream open: it is not ours."""

    def _write(self, batch: Sequence[Leaving]) -> None:
        self._stream.write("".join(map(line, batch)))
        self._stream.flush()


def line(each: Leaving) -> str:
    """Return the line of an event. A payload without masks is the very text that was hashed."""
    record = each.record
    at = (_EPOCH + timedelta(microseconds=record.at)).isoformat(timespec="microseconds")
    members = {
        "id": quoted(f"{record.execution_id}:{record.seq}"),
        "at": f'"{at.replace("+00:00", "Z")}"',
        "type": quoted(event_json.name(record.event)),
        "execution_id": quoted(record.execution_id),
        "seq": str(record.seq),
        "agent_id": quoted(each.agent_id),
        "target": quoted(each.target) if each.target else None,
        "trace_id": quoted(each.trace_id),
        "span_id": quoted(each.span_id),
        "hash": quoted(record.hash),
        "masked": "true" if each.is_masked else None,
        "position": str(each.place.position),
        "payload": record.payload,
    }
    written = ",".join(f'"{name}":{text}' for name, text in members.items() if text is not None)
    return "{" + written + "}\n"


def _write_all(file: int, text: bytes) -> None:
    at = os.lseek(file, 0, os.SEEK_END)
    left = memoryview(text)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        # Half a batch would be there twice once it is written again.
        os.ftruncate(file, at)
        raise


def _index_after(batch: Sequence[Leaving], last: _Line | None) -> int:
    for index, each in enumerate(batch):
        if last == _Line(each.record.execution_id, each.record.seq, each.record.hash):
            return index + 1
    return 0


def _last_line(path: Path) -> _Line | None:
    """Return what the last whole line of a file is about, or None without one."""
    for candidate in (path, Path(f"{path}.1")):
        try:
            with candidate.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                reach = _TAIL_BYTES
                while True:
                    file.seek(max(0, size - reach))
                    lines = file.read().split(b"\n")
                    if len(lines) > 2 or reach >= size:
                        break
                    reach *= 4
        except OSError:
            continue
        # What is behind the last line break was cut off by a crash; the first may be a part.
        whole = lines[:-1] if reach >= size else lines[1:-1]
        if whole:
            return _read(whole[-1])
    return None


def _read(text: bytes) -> _Line | None:
    try:
        found = json.loads(text)
        return _Line(str(found["execution_id"]), int(found["seq"]), str(found["hash"]))
    except (ValueError, KeyError, TypeError):
        return None  # a file of somebody else's: nothing in it is ours


def _cut_torn_line(path: Path, file: int) -> None:
    size = os.fstat(file).st_size
    if not size:
        return
    with path.open("rb") as reading:
        reach = min(size, 16 * 1024 * 1024)
        reading.seek(size - reach)
        tail = reading.read()
    torn = len(tail) - (tail.rfind(b"\n") + 1)
    if torn:
        os.ftruncate(file, size - torn)
