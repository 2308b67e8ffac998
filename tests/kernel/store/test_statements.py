"""Every statement is one that both databases take."""

import asyncio
from typing import Any

import pytest
from sqlalchemy.sql.base import Executable
from tests.support.postgres import Cluster

from proctor_kernel.store import statements
from proctor_kernel.store.postgres import open_postgres
from proctor_kernel.store.sqlite import IN_MEMORY, SQLite

NAMED = {
    name: value
    for name, value in vars(statements).items()
    if isinstance(value, Executable) and name.isupper()
}


def given_for(statement: Any) -> dict[str, Any]:
    compiled = statement.compile()
    return {
        name: 1 if name == "row_limit" else _example(bind)
        for name, bind in compiled.binds.items()
        if compiled.params.get(name) is None
    }


def _example(bind: Any) -> Any:
    kind = bind.type.python_type if bind.type._type_affinity is not None else str
    return {int: 1, bool: False}.get(kind, "x")


@pytest.mark.parametrize("name", NAMED)
async def test_sqlite_takes_it(name: str) -> None:
    statement = NAMED[name]
    database = SQLite(IN_MEMORY, "NORMAL")
    if statement.is_select:
        await database.read(statement, **given_for(statement))
    else:
        await database.run(statement, **given_for(statement))
    database.close()


async def test_postgresql_takes_all_of_them(postgres: Cluster) -> None:
    database = await open_postgres(await _new(postgres))
    for statement in NAMED.values():
        if statement.is_select:
            await database.read(statement, **given_for(statement))
        else:
            await database.run(statement, **given_for(statement))
    await database.aclose()


async def _new(postgres: Cluster) -> str:
    return await asyncio.to_thread(postgres.new_database)
