"""Proctor: every call of an agent asks the rules first, is recorded, and replays.

    from proctor import Agent, step, tool

Names are loaded when they are first used, so that importing this costs an agent little.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proctor import sync as sync
    from proctor import testing as testing
    from proctor.agent import Agent as Agent
    from proctor.client import Client as Client
    from proctor.context import execution as execution
    from proctor.embedding import embedded as embedded
    from proctor.embedding import run_embedded as run_embedded
    from proctor.errors import (
        APIError as APIError,
    )
    from proctor.errors import (
        Blocked as Blocked,
    )
    from proctor.errors import (
        ConflictError as ConflictError,
    )
    from proctor.errors import (
        ForbiddenError as ForbiddenError,
    )
    from proctor.errors import (
        LeaseSuperseded as LeaseSuperseded,
    )
    from proctor.errors import (
        NetworkError as NetworkError,
    )
    from proctor.errors import (
        NotFoundError as NotFoundError,
    )
    from proctor.errors import (
        PolicyError as PolicyError,
    )
    from proctor.errors import (
        ProctorError as ProctorError,
    )
    from proctor.errors import (
        RateLimited as RateLimited,
    )
    from proctor.errors import (
        Terminated as Terminated,
    )
    from proctor.errors import (
        ToolError as ToolError,
    )
    from proctor.errors import (
        UnauthorizedError as UnauthorizedError,
    )
    from proctor.errors import (
        UnavailableError as UnavailableError,
    )
    from proctor.errors import (
        ValidationError as ValidationError,
    )
    from proctor.errors import (
        failure_reason as failure_reason,
    )
    from proctor.mcp import wrap_mcp_tool as wrap_mcp_tool
    from proctor.mcp import wrap_mcp_tools as wrap_mcp_tools
    from proctor.tools import define_tool as define_tool
    from proctor.tools import step as step
    from proctor.tools import tool as tool
    from proctor.tools import wrap_tool as wrap_tool
    from proctor.wire.messages import Approval as Approval
    from proctor.wire.messages import Event as Event
    from proctor.wire.messages import Execution as Execution
    from proctor.wire.messages import PolicyStatus as PolicyStatus
    from proctor.wire.messages import Step as Step

_PUBLIC = {
    "proctor.agent": ("Agent",),
    "proctor.client": ("Client",),
    "proctor.context": ("execution",),
    "proctor.embedding": ("embedded", "run_embedded"),
    "proctor.errors": (
        "APIError",
        "Blocked",
        "ConflictError",
        "ForbiddenError",
        "LeaseSuperseded",
        "NetworkError",
        "NotFoundError",
        "PolicyError",
        "ProctorError",
        "RateLimited",
        "Terminated",
        "ToolError",
        "UnauthorizedError",
        "UnavailableError",
        "ValidationError",
        "failure_reason",
    ),
    "proctor.mcp": ("wrap_mcp_tool", "wrap_mcp_tools"),
    "proctor.tools": ("define_tool", "step", "tool", "wrap_tool"),
    "proctor.wire.messages": ("Approval", "Event", "Execution", "PolicyStatus", "Step"),
}
_MODULES = ("sync", "testing")
# INVARIANT: no module of this package is named like a public name: importing the module would
# put it in the name's place.
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_MODULE_OF)  # the table above is the one list of names


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"proctor.{name}")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'proctor' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
