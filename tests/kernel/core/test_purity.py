"""The core can do no input or output: what it needs in memory is all that it has."""

import json
import pkgutil
import subprocess
import sys

import proctor_kernel.core

FORBIDDEN = {
    "asyncio",
    "cedarpy",
    "concurrent.futures",
    "datetime",
    "http",
    "logging",
    "multiprocessing",
    "pydantic",
    "random",
    "secrets",
    "select",
    "selectors",
    "socket",
    "sqlalchemy",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "urllib",
    "uuid",
}

PROGRAM = """
import sys, json
before = set(sys.modules)
for name in sys.argv[1:]:
    __import__(name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_importing_the_core_loads_nothing_that_can_do_input_or_output() -> None:
    names = [
        f"proctor_kernel.core.{module.name}"
        for module in pkgutil.iter_modules(proctor_kernel.core.__path__)
    ]

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names], capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in json.loads(done.stdout)}

    assert "proctor_kernel" in loaded
    assert loaded & FORBIDDEN == set()
