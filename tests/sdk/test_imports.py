"""Importing costs little, and no order of imports puts a module in a name's place."""

import itertools
import json
import pkgutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import proctor

FRAMEWORKS = {
    "agents",
    "anthropic",
    "fastmcp",
    "langchain",
    "langchain_core",
    "langgraph",
    "mcp",
    "openai",
    "pydantic_ai",
}


def python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_no_framework_and_no_kernel() -> None:
    loaded = json.loads(python("import json, sys, proctor; print(json.dumps(sorted(sys.modules)))"))

    assert {
        "mcp",
        "httpx",
        "httpx2",
        "sqlalchemy",
        "cedarpy",
        "pydantic",
        "proctor_kernel",
    }.isdisjoint(loaded)
    assert FRAMEWORKS.isdisjoint(loaded)


def test_governing_a_tool_in_a_run_loads_no_framework(tmp_path: Path) -> None:
    (tmp_path / "rules.cedar").write_text('@id("all") permit (principal, action, resource);')
    loaded = json.loads(
        python(
            "import asyncio, json, sys, proctor\n"
            "async def main() -> list[str]:\n"
            "    return [await proctor.tool(search)('cedar')]\n"
            "def search(query: str) -> str:\n"
            "    return query\n"
            f"asyncio.run(proctor.run_embedded(main, rules={str(tmp_path)!r}))\n"
            "print(json.dumps(sorted(sys.modules)))"
        )
    )

    assert "proctor_kernel" in loaded
    assert FRAMEWORKS.isdisjoint(loaded)


@pytest.mark.parametrize("used", ["", "proctor.Agent, proctor.tool, proctor.step"])
def test_importing_the_package_takes_less_than_300_milliseconds(used: str) -> None:
    program = (
        "import time; began = time.process_time()\n"  # of this process, whatever others do
        f"import proctor; {used}\n"
        "print(time.process_time() - began)"
    )

    took = statistics.median(float(python(program)) for _ in range(5))

    assert took < 0.3, "python -X importtime -c 'import proctor' says where"


def test_an_agent_and_its_tools_do_without_pydantic() -> None:
    loaded = python(
        "import sys, proctor\n"
        "agent = proctor.Agent('a', tools=[proctor.tool('t')(print)])\n"
        "agent.bind(lambda input: None)\n"
        "print('pydantic' in sys.modules)"
    )

    assert loaded.strip() == "False"


def test_no_module_is_named_like_a_public_name() -> None:
    modules = {module.name for module in pkgutil.iter_modules(proctor.__path__)}

    assert modules.isdisjoint(proctor.__all__)


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["proctor.tools", "proctor.embedding", "proctor.context"]))
)
def test_public_names_are_functions_in_every_order_of_imports(order: tuple[str, ...]) -> None:
    imports = "; ".join(f"import {module}" for module in order)

    said = python(
        f"{imports}; import proctor; "
        "print(proctor.embedded.__name__, proctor.step.__name__, proctor.execution.__name__)"
    )

    assert said.split() == ["embedded", "step", "execution"]


def test_every_public_name_is_there() -> None:
    for name in proctor.__all__:
        assert getattr(proctor, name) is not None
    with pytest.raises(AttributeError, match="nope"):
        proctor.nope  # noqa: B018


def test_without_the_kernel_embedding_says_what_to_install() -> None:
    said = python(
        "import sys, asyncio; sys.modules['proctor_kernel'] = None\n"
        "import proctor\n"
        "agent = proctor.Agent('a'); agent.bind(lambda input: None)\n"
        "async def main():\n"
        "    async with proctor.embedded(agents=[agent], rules='rules'): pass\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except proctor.ProctorError as error:\n"
        "    print(error)\n"
    )

    assert "pip install 'proctor[kernel]'" in said


def test_without_the_kernel_testing_says_what_to_install() -> None:
    said = python(
        "import sys; sys.modules['proctor_kernel'] = None\n"
        "import proctor\n"
        "agent = proctor.Agent('a'); agent.bind(lambda input: None)\n"
        "try:\n"
        "    proctor.testing.run(agent, rules='permit (principal, action, resource);')\n"
        "except proctor.ProctorError as error:\n"
        "    print(error)\n"
    )

    assert "pip install 'proctor[kernel]'" in said
