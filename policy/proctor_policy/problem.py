"""What is wrong with a rules folder, said so that its author can mend it."""

import tomllib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend: `rules/spend.cedar:12: unknown annotation 'resaon'; did you mean ...`."""

    file: str
    line: int | None
    """Counted from 1; None when it is the file or folder as a whole."""
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.message}" + ("" if self.hint is None else f"; {self.hint}")


class RulesInvalid(Exception):
    """A rules folder that is not loaded, with every problem found in it."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        assert problems, "a folder without problems is valid"
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def line_of_error(error: tomllib.TOMLDecodeError, text: str) -> int | None:
    """Return the line of a TOML text that an error is about, where it says."""
    if "end of document" in str(error):
        return text.rstrip().count("\n") + 1
    words = str(error).split("line ")
    digits = words[-1].split(",")[0] if len(words) > 1 else ""
    return int(digits) if digits.isdecimal() else None
