"""`deploy/semconv.md` names what leaves, all of it and nothing else."""

import re
from pathlib import Path

from proctor_kernel.audit import attributes

DOCUMENT = Path(__file__).parents[2] / "deploy" / "semconv.md"

CONSTANTS = {
    value for name, value in vars(attributes).items() if name.isupper() and isinstance(value, str)
}


def test_every_attribute_is_documented_and_every_documented_one_exists() -> None:
    names = set(re.findall(r"`((?:gen_ai|proctor|error)\.[a-z_.]+[a-z])`", DOCUMENT.read_text()))

    assert CONSTANTS - names == set()
    assert names - CONSTANTS == {"proctor.step.denied"}
