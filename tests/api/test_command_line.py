"""The commands that ask a server, as somebody at a shell uses them."""

import json
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx2
from tests.api.test_operation import HEADERS, blocked_run
from tests.support.postgres import Cluster
from tests.support.server import TOKEN, Server

PROCTOR = str(Path(sys.executable).with_name("proctor"))


def run(url: str, token: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROCTOR, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PROCTOR_URL": url, "PROCTOR_API_KEY": token},
    )


def proctor(url: str, *arguments: str, token: str = TOKEN, fails: bool = False) -> str:
    done = run(url, token, *arguments)
    assert (done.returncode != 0) == fails, (arguments, done.stdout, done.stderr)
    return done.stderr if fails else done.stdout


def parsed(*arguments: str, url: str) -> Any:
    return json.loads(proctor(url, *arguments, "--json"))


async def test_a_run_is_created_listed_watched_forked_and_cancelled(server: Server) -> None:
    url = server.url
    async with httpx2.AsyncClient(base_url=url, headers=HEADERS) as http:
        await http.post("/v0/agents", json={"id": "cli", "secret": "s"})
    agents = parsed("agents", "ls", url=url)
    created = parsed("exec", "create", "cli", '{"n": 1.50}', url=url)
    short = created["id"][-8:]
    listed = parsed("exec", "ls", "--agent", "cli", url=url)
    events = parsed("exec", "events", short, url=url)
    fork = parsed("exec", "fork", short, "--at", "2", url=url)
    watching = threading.Timer(1.0, lambda: proctor(url, "exec", "cancel", short))
    watching.start()
    watched = run(url, TOKEN, "exec", "watch", short, "--json")
    watching.join()
    frames = [json.loads(line) for line in watched.stdout.splitlines()]
    shown = proctor(url, "exec", "get", created["id"])

    assert "cli" in [agent["id"] for agent in agents]
    assert created["id"] in [run["id"] for run in listed]
    assert [event["event_seq"] for event in events] == [1, 2, 3]
    assert fork["forked_from"] == created["id"]
    assert watched.returncode == 1, "a cancelled run is no success"
    assert frames[-1]["status"] == "cancelled"
    assert "cancelled" in shown
    assert "begins or ends with" in proctor(url, "exec", "get", "zzzzzzzz", fails=True)
    assert "a bearer token" in proctor(url, "exec", "ls", token="", fails=True)


async def test_an_approval_is_decided_by_its_id_and_by_answering_at_a_terminal(
    server: Server,
) -> None:
    url = server.url
    key = parsed(
        "keys", "create", "carol", "--scope", "approvals:read", "--scope", "approvals:write",
        "--group", "finance", url=url,
    )["token"]  # fmt: skip
    async with httpx2.AsyncClient(base_url=url, headers=HEADERS) as http:
        await blocked_run(http, url, "cli-payer")
        await blocked_run(http, url, "cli-payer-2")
    pending = [
        each for each in parsed("approvals", "ls", url=url) if "cli-payer" in each["agent_id"]
    ]
    refused = proctor(url, "approvals", "grant", pending[0]["id"], fails=True)
    no_terminal = proctor(url, "approvals", "grant", fails=True)
    proctor(url, "approvals", "grant", pending[0]["id"][-8:], "--reason", "fine", token=key)
    at_terminal = answered(url, key, "approvals", "deny", answers=["1", "d", "too much"])
    decided = {each["id"]: parsed("approvals", "show", each["id"], url=url) for each in pending}

    assert "is not asked" in refused
    assert "there is no terminal" in no_terminal
    assert "pay" in at_terminal
    first, second = (decided[each["id"]] for each in pending)
    assert (first["status"], first["decided_by"], first["rationale"]) == (
        "granted",
        "carol",
        "fine",
    )
    assert (second["status"], second["rationale"]) == ("denied", "too much")


def answered(url: str, key: str, *arguments: str, answers: list[str]) -> str:
    """Run a command at a terminal of its own, and type the answers."""
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [PROCTOR, *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "PROCTOR_URL": url, "PROCTOR_API_KEY": key, "TERM": "dumb"},
    )
    os.close(terminal)
    os.write(main, "".join(f"{answer}\n" for answer in answers).encode())
    shown = b""
    while True:
        try:
            part = os.read(main, 4096)
        except OSError:  # how a terminal says that nobody has it open any more
            break
        if not part:
            break
        shown += part
    assert process.wait(30) == 0, shown.decode()
    os.close(main)
    return shown.decode()


def test_the_first_key_is_made_in_the_database_itself(postgres: Cluster) -> None:
    url = postgres.new_database()
    made = json.loads(
        proctor("http://unused", "keys", "create", "ops", "--scope", "executions:read",
                "--database", url, "--json")
    )  # fmt: skip
    wrong = proctor(
        "http://unused", "keys", "create", "ops", "--scope", "everything", "--database", url,
        fails=True,
    )  # fmt: skip

    assert made["token"].startswith("prk_")
    assert "unknown scope 'everything'" in wrong


def test_policy_status_and_bundles_are_told(server: Server, tmp_path: Path) -> None:
    url = server.url
    httpx2.post(f"{url}/v0/agents", json={"id": "told", "secret": "s"}, headers=HEADERS)
    bundle = tmp_path / "tight.cedar"
    bundle.write_text('@id("x") permit (principal, action, resource);')
    status = parsed("policy", "status", url=url)
    proctor(url, "policy", "set", "told", str(bundle))
    bundle.write_text("permit (")
    refused = proctor(url, "policy", "set", "told", str(bundle), fails=True)

    assert len(status["hash"]) == 64
    assert "bundle.cedar:1" in refused
