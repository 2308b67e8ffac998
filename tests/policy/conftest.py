"""Rules on disk, and calls to ask them about."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor_policy.call import Call, Session
from proctor_policy.load import load
from proctor_policy.ruleset import RuleSet

Write = Callable[..., Path]
Ask = Callable[..., Any]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a rules folder: `write("policies", entities="...", **{"sub/x.cedar": "..."})`."""

    def folder(*policies: str, **files: str) -> Path:
        root = tmp_path / "rules"
        root.mkdir(exist_ok=True)
        if policies:
            files["rules.cedar"] = "\n".join(policies)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        return root

    return folder


@pytest.fixture
def rules(write: Write) -> Callable[..., RuleSet]:
    """Load policies from a real folder."""
    return lambda *policies, **files: load(write(*policies, **files))


def a_call(target: str = "search", args_json: str = "{}", **changes: Any) -> Call:
    """Return a tool call; `changes` are fields of `Call`."""
    fields: dict[str, Any] = {
        "principal": "researcher",
        "kind": "tool_call",
        "idempotency": "safe_to_retry",
        "session": Session(),
        "now_micros": 1_700_000_000_123_456,
    }
    return Call(target=target, args_json=args_json, **{**fields, **changes})
