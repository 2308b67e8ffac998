"""Governed steps a second over HTTP on PostgreSQL, and where the time goes."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2
from tests.bench.lean_http import Connection, signed
from tests.support.postgres import cluster
from tests.support.server import KEY, TOKEN, free_port, running

AGENT, SECRET = "bench", "bench-secret"
RUNS = 64
STEPS = 50


async def steps_per_second(url: str, steps: int = STEPS, runs: int = RUNS) -> float:
    """Return how many calls are governed a second, each asked for and settled over HTTP."""
    host, port = url.removeprefix("http://").split(":")
    async with httpx2.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}
    ) as http:
        await http.post("/v0/agents", json={"id": AGENT, "secret": SECRET})
        for _ in range(runs):
            await http.post("/v0/executions", json={"agent_id": AGENT})
    path = f"/v0/agents/{AGENT}/dispatches/claim"
    leases = []
    first = await Connection.open(host, int(port))
    for _ in range(runs):
        body = b'{"wait_seconds":5}'
        _, answer = await first.post(path, body, signed(AGENT, SECRET, path, body))
        leases.append(json.loads(answer))
    first.close()

    async def work(lease: dict[str, str]) -> None:
        connection = await Connection.open(host, int(port))
        dispatch, attempt = lease["dispatch_id"], str(lease["dispatch_attempt"])
        submit_path = f"/v0/executions/{lease['execution_id']}/steps"
        for n in range(steps):
            body = b'{"kind":"tool_call","target":"search","args":{"query":"q","n":%d}}' % n
            headers = signed(AGENT, SECRET, submit_path, body, dispatch, attempt)
            status, answer = await connection.post(submit_path, body, headers)
            assert status == 200, answer
            settle_path = f"{submit_path}/{json.loads(answer)['step_id']}/complete"
            body = b'{"result":["a","b"]}'
            headers = signed(AGENT, SECRET, settle_path, body, dispatch, attempt)
            status, answer = await connection.post(settle_path, body, headers)
            assert status == 200, answer
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(work(lease) for lease in leases))
    return runs * steps / (time.perf_counter() - began)


def profile(database: str, rules: Path, lines: int = 19) -> str:
    """Return what one process spends its time on under the same load."""
    settings = {
        "database": database,
        "rules": str(rules),
        "bootstrap_token": TOKEN,
        "secret_key": KEY,
    }
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.profiled_server", json.dumps(settings), str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(200):
            try:
                httpx2.get(f"{url}/v0/health")
                break
            except httpx2.HTTPError:
                time.sleep(0.05)
        asyncio.run(steps_per_second(url, steps=60))
    finally:
        process.terminate()
    out, _ = process.communicate(timeout=60)
    printed = out.splitlines()
    start = next((at for at, line in enumerate(printed) if "ncalls" in line), 0)
    return "\n".join(printed[start : start + lines])


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as name, cluster(durable=True) as postgres:
        folder = Path(name)
        rules = folder / "rules"
        rules.mkdir()
        (rules / "all.cedar").write_text('@id("all") permit (principal, action, resource);')
        for workers in (1, 2):
            with running(
                "serve",
                folder=folder,
                database=postgres.new_database(),
                rules=rules,
                options=("--workers", workers),
            ) as server:
                asyncio.run(steps_per_second(server.url, steps=20))
                rates = sorted(asyncio.run(steps_per_second(server.url)) for _ in range(3))
            print(
                f"governed steps a second over HTTP on PostgreSQL, {workers} process(es): "
                f"{rates[1]:,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})"
            )
        print("\nwhere one process's time goes (own seconds; the profiler slows it down):")
        print(profile(postgres.new_database(), rules))


if __name__ == "__main__":
    main()
