"""What the signed checkpoints of a database say, and what the runs are held to by them. Pure."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from proctor_kernel.audit.inspection import Ended, Finding
from proctor_kernel.core import checkpoints
from proctor_kernel.core.checkpoints import BEFORE_FIRST, Checkpoint, Head

Believed = Callable[[str, str, str], bool]
"""Key id, text and signature -> whether that key is known and signed it."""


@dataclass(frozen=True, slots=True)
class SignedRow:
    """A row of `checkpoints`, not yet believed."""

    number: int
    position: int
    signed_at: int
    body: str
    key_id: str
    signature: str


@dataclass(frozen=True, slots=True)
class Signed:
    """The last event of a run, and the number of the checkpoint that names it."""

    head: Head
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Everything that sound checkpoints say."""

    count: int = 0
    number: int = 0
    """Of the last one."""
    hash: str = BEFORE_FIRST
    upto: int = 0
    """The last position that any of them covers."""
    ended: dict[str, Signed] = field(default_factory=dict)
    forgotten: dict[str, int] = field(default_factory=dict)
    """Run -> the checkpoint that says that retention deleted it."""
    covered: tuple[tuple[int, int], ...] = ()
    """The ranges of positions, above the first and up to the second, of those that are sound."""
    times: dict[int, int] = field(default_factory=dict)
    """Number -> when it was signed, microseconds since 1970."""
    findings: tuple[Finding, ...] = ()

    def covers(self, position: int) -> bool:
        """True when a sound checkpoint names every run that ended at this position."""
        at = bisect_left(self.covered, (position, 0)) - 1
        return at >= 0 and self.covered[at][0] < position <= self.covered[at][1]


def read(
    found: Iterable[SignedRow], believed: Believed | None, expected: tuple[int, str] | None = None
) -> Ledger:
    """Check checkpoints, in order, and return what they say.

    `believed` None: signatures are not checked, only hashes. `expected`: number and hash of one
    that somebody has kept elsewhere; it and those before it have to be there.
    """
    findings: list[Finding] = []
    ended: dict[str, Signed] = {}
    forgotten: dict[str, int] = {}
    covered: list[tuple[int, int]] = []
    times: dict[int, int] = {}
    hashes: dict[int, str] = {}
    number, digest, upto = 0, BEFORE_FIRST, 0
    for row in found:
        problems = list(_gap(number, row.number))
        checkpoint = _parsed(row, problems)
        follows = checkpoint if row.number == number + 1 else None
        if follows is not None and follows.previous != digest:
            problems.append(f"checkpoint {row.number}: it names another one before it")
        if follows is not None and follows.after != upto:
            problems.append(
                f"checkpoint {row.number}: it begins at position {follows.after}, "
                f"the one before it ends at {upto}"
            )
        if believed is not None and not believed(row.key_id, row.body, row.signature):
            problems.append(_not_believed(row))
            checkpoint = None
        findings += [Finding("", None, problem) for problem in problems]
        if checkpoint is not None:
            covered.append((checkpoint.after, checkpoint.upto))
            times[row.number] = checkpoint.at
            ended.update((head.execution_id, Signed(head, row.number)) for head in checkpoint.ended)
            forgotten.update((each.execution_id, row.number) for each in checkpoint.forgotten)
        number, digest, upto = row.number, checkpoints.digest(row.body), row.position
        hashes[number] = digest
    if expected is not None and hashes.get(expected[0]) != expected[1]:
        findings.append(Finding("", None, _unexpected(*expected, hashes.get(expected[0]), number)))
    return Ledger(
        len(hashes), number, digest, upto, ended, forgotten, tuple(covered), times, tuple(findings)
    )


def held_to(ledger: Ledger, execution_id: str, ended: Ended | None) -> Finding | None:
    """Return how a run, of which nothing else is wrong, is not the one that was signed."""
    signed = ledger.ended.get(execution_id)
    if signed is None:
        if ended is not None and ledger.covers(ended.position):
            return Finding(
                execution_id,
                ended.seq,
                "it ended within a checkpoint that does not name it: it was put in later",
            )
        return None
    head, by = signed.head, f"checkpoint {signed.checkpoint}"
    if ended is None:
        return Finding(
            execution_id, head.seq, f"{by} says that it ended with event {head.seq}; it goes on now"
        )
    if ended.seq != head.seq:
        return Finding(
            execution_id,
            head.seq,
            f"{by} says that it ended with event {head.seq}, not {ended.seq}",
        )
    if ended.hash != head.hash:
        return Finding(
            execution_id,
            head.seq,
            f"{by} signed another history: hash {head.hash[:12]}, found {ended.hash[:12]}",
        )
    if not ledger.covers(ended.position):
        return Finding(
            execution_id,
            head.seq,
            f"its position {ended.position} is not within {by}, which names it",
        )
    return None


def missing(
    ledger: Ledger,
    ids: Iterable[str],
    *,
    deleted: dict[str, bool],
) -> Iterator[Finding]:
    """Return a finding for each signed run of `ids`, which are gone, that retention did not delete.

    `deleted`: runs of the table `forgotten`, and whether the signature there is believed.
    """
    for execution_id in ids:
        signed = ledger.ended.get(execution_id)
        if signed is None or execution_id in ledger.forgotten or deleted.get(execution_id):
            continue
        problem = (
            f"it is gone; checkpoint {signed.checkpoint} names it, with {signed.head.seq} events"
        )
        if execution_id in deleted:
            problem += "; it is listed as deleted by retention, which no known key signed"
        yield Finding(execution_id, None, problem)


def _gap(before: int, number: int) -> Iterator[str]:
    if number == before + 2:
        yield f"checkpoint {before + 1} is missing"
    elif number > before + 2:
        yield f"checkpoints {before + 1} to {number - 1} are missing"


def _parsed(row: SignedRow, problems: list[str]) -> Checkpoint | None:
    """Return what a row says, unless it contradicts itself."""
    try:
        checkpoint = checkpoints.from_text(row.body)
    except ValueError as error:
        problems.append(f"checkpoint {row.number}: {error}")
        return None
    columns = (row.number, row.position, row.signed_at, row.key_id)
    said = (checkpoint.number, checkpoint.upto, checkpoint.at, checkpoint.key_id)
    if columns != said:
        problems.append(f"checkpoint {row.number}: its columns are not what its text says")
        return None
    return checkpoint


def _not_believed(row: SignedRow) -> str:
    return (
        f"checkpoint {row.number}: not signed by a known key; "
        f"it says that key {str(row.key_id)[:16]} signed it"
    )


def _unexpected(number: int, digest: str, found: str | None, last: int) -> str:
    if found is None:
        return f"checkpoint {number} is expected; the last one is {last}"
    return f"checkpoint {number} is not the expected one: hash {found[:12]}, not {digest[:12]}"
