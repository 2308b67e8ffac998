"""For pytest: the fixture `governed`, and the timelines of its runs when a test fails.

    def test_there_is_no_shell(governed):
        run = governed.run(agent, {"question": "cedar"})
        assert run.step("shell").rule_ids == ["no-shell"]

The rules are those of the project: the folder that `proctor_rules` names in pytest's own
configuration, `rules` without it. Nothing of Proctor is imported before a test asks for it, since
this is loaded by every pytest of an environment with Proctor in it.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from proctor.testing import Governed, Run

_RULES = "proctor_rules"
_SEEN: pytest.StashKey["dict[str, Run]"] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say what can be configured."""
    parser.addini(
        _RULES,
        "Folder of .cedar files for `governed`, from where this is written.",
        default="rules",
    )


@pytest.fixture
def governed(request: pytest.FixtureRequest) -> "Governed":
    """Run agents in this test under the rules of the project."""
    from proctor.testing import Governed

    config = request.config
    base = config.rootpath if config.inipath is None else config.inipath.parent
    seen = request.node.stash.setdefault(_SEEN, {})
    return Governed(
        base / str(config.getini(_RULES)), observe=lambda run: seen.update({run.id: run})
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the runs of a failed test did."""
    report = yield
    seen = item.stash.get(_SEEN, {})
    if report.failed and seen:
        report.sections.append(("proctor runs", "\n\n".join(map(str, seen.values()))))
    return report
