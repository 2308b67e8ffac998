"""The pytest plugin as a project uses it, in a pytest of its own."""

import json
import subprocess
import sys

import pytest

pytest_plugins = "pytester"

PROJECT = """
import proctor
from proctor import tool

@tool
async def search(query: str) -> str:
    return f"about {query}"

@tool
async def shell(command: str) -> str:
    return command

agent = proctor.Agent("clerk")

@agent.handler
async def work(question: str) -> list[str]:
    return [await search(question), await shell("ls")]
"""
RULES = """
@id("reads") permit (principal, action == Action::"search", resource);
@id("no-shell") @reason("agents have no shell here")
forbid (principal, action == Action::"shell", resource);
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    # Whether it is installed here or not, the plugin is loaded once.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(project=PROJECT)
    pytester.mkdir("rules").joinpath("rules.cedar").write_text(RULES)
    return pytester


def run(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    return project.runpytest_subprocess("-p", "proctor.pytest_plugin", "-W", "error", *options)


def test_the_fixture_runs_agents_under_the_rules_of_the_project(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import asyncio
        from project import agent
        from proctor.testing import Governed, Run, assert_denied

        def test_there_is_no_shell(governed: Governed) -> None:
            run = governed.run(agent, {"question": "cedar"})
            assert run.output[0] == "about cedar"
            assert_denied(run, "shell", rule="no-shell")

        def test_under_other_rules(governed: Governed) -> None:
            everything = '@id("all") permit (principal, action, resource);'
            run = governed.run(agent, {"question": "cedar"}, rules=everything, crash_after=1)
            assert run.bodies == {"search": 1, "shell": 1}

        def test_several_runs(governed: Governed) -> None:
            with governed.sync_kernel(agent) as t:
                runs = [t.run("clerk", {"question": each}) for each in "ab"]
            assert [run.output[0] for run in runs] == ["about a", "about b"]

        def test_awaiting(governed: Governed) -> None:
            async def awaited() -> Run:
                async with governed.kernel(agent) as t:
                    return await t.run("clerk", {"question": "c"})

            assert asyncio.run(awaited()).status == "completed"
        """
    )

    run(project).assert_outcomes(passed=4)


def test_a_failed_test_shows_the_timelines_of_its_runs(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        from project import agent

        def test_shell(governed):
            run = governed.run(agent, {"question": "cedar"})
            assert run.step("shell").decision == "allow"
        """
    )

    result = run(project)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*- proctor runs -*",
            "run * of clerk: completed",
            '    shell(command="ls"): denied by no-shell: agents have no shell here',
        ]
    )


def test_the_rules_folder_is_configured_from_where_that_is_written(
    project: pytest.Pytester,
) -> None:
    (project.path / "rules").rename(project.path / "policies")
    project.makeini("[pytest]\nproctor_rules = policies\n")
    project.mkdir("tests").joinpath("test_it.py").write_text(
        "from project import agent\n"
        "def test_it(governed):\n"
        "    assert governed.run(agent, {'question': 'q'}).step('shell').status == 'denied'\n"
    )

    run(project, "tests", "--import-mode=importlib", "-o", "pythonpath=.").assert_outcomes(passed=1)


def test_a_folder_that_is_not_there_says_where_to_name_it(project: pytest.Pytester) -> None:
    (project.path / "rules").rename(project.path / "policies")
    project.makepyfile(
        """
        from project import agent

        def test_it(governed):
            governed.run(agent)
        """
    )

    result = run(project)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no rules folder */rules'; name it in pytest's configuration*"])


def test_loading_the_plugin_imports_nothing_that_a_test_did_not_ask_for() -> None:
    program = (
        "import json, sys, pytest; before = set(sys.modules); import proctor.pytest_plugin; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )

    assert json.loads(said.stdout) == ["proctor", "proctor.pytest_plugin"]
