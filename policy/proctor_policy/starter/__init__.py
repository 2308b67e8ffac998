"""The rules folder that `proctor init` writes: small, commented, with tests."""

from importlib.resources import files
from pathlib import Path
from typing import Final

NAMES: Final = ("rules.cedar", "entities.json", "facts.toml", "tests/rules.yaml")


def write(folder: Path) -> list[Path]:
    """Write the starter rules into `folder`, which must be empty or not exist yet.

    Raises:
        FileExistsError: there is something in it; nothing was written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder}: there is something already; name a new folder")
    written = []
    for name in NAMES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files(__name__).joinpath(name).read_text(encoding="utf-8"), "utf-8")
        written.append(path)
    return written
