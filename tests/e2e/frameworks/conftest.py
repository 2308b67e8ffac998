"""The examples of agent frameworks, one after the other, each from a clean slate."""

import importlib
from dataclasses import dataclass
from typing import Any

import pytest
from examples import shop

from proctor import Agent

FRAMEWORKS = ("anthropic", "fastmcp", "langchain", "openai", "pydantic_ai")


@dataclass(frozen=True)
class Example:
    """One example, by the module that `python -m` runs."""

    module: str
    agent: Agent


@pytest.fixture(params=FRAMEWORKS)
def example(request: Any) -> Example:
    """An example, with nothing told to its model so far."""
    shop.told.clear()
    module = f"examples.{request.param}_agent"
    return Example(module, importlib.import_module(module).agent)
