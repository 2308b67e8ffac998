"""What a step of DBOS costs on SQLite, in a process of its own; prints one figure as JSON.

Its SQLite runs with `synchronous` at FULL, the driver's default: the durability to compare is
ours at FULL. DBOS records a step and asks no policy.
"""

import asyncio
import json
import tempfile
import time

from dbos import DBOS

STEPS = 200
ROUNDS = 5


@DBOS.step()
async def work(n: int) -> dict[str, bool]:
    """Do nothing, so that only the recording is timed."""
    return {"ok": True}


@DBOS.workflow()
async def run(steps: int) -> float:
    """Return the microseconds of one step."""
    began = time.perf_counter()
    for number in range(steps):
        await work(number)
    return (time.perf_counter() - began) / steps * 1e6


async def main() -> None:
    """Time several rounds."""
    await run(10)
    print(json.dumps([await run(STEPS) for _ in range(ROUNDS)]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": f"sqlite:///{folder}/dbos.sqlite",
                "log_level": "ERROR",
            }
        )
        DBOS.launch()
        asyncio.run(main())
        DBOS.destroy()
