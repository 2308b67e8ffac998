"""Importing costs little, and no order of imports puts a module in a name's place."""

import itertools
import json
import pkgutil
import subprocess
import sys

import pytest

import proctor


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
