"""The service's own log: whose each line is, and that nothing of a call is in it."""

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from pydantic import BaseModel
from tests.support.http_port import HttpPort
from tests.support.server import KEY, TOKEN, running

from proctor.wire.calls import StepSubmission, WireError
from proctor.wire.words import Idempotency, StepKind
from proctor_kernel.core.identity import span_id, trace_id
from proctor_kernel.log_lines import JsonLines, TextLines, about

HEADERS: Final = {"Authorization": f"Bearer {TOKEN}"}
SECRET: Final = "sk-live-0123456789"
"""In every argument, input, result, error, output and rationale."""

RULES: Final = """
@id("all") permit (principal, action, resource);
@id("no-delete") @reason("nothing is deleted")
forbid (principal, action == Action::"delete", resource);
@id("ask") @gate("approval") @reason("a person has to look")
forbid (principal, action == Action::"pay", resource);
@id("fragile") forbid (principal, action == Action::"strange", resource)
when { context.input.amount + 9223372036854775807 > 0 };
@id("slow") @gate("rate_limit") @limit("1/1h") @reason("once an hour")
forbid (principal, action == Action::"mail", resource);
"""


@dataclass
class Told:
    """A log after the scenario, and what the scenario was about."""

    text: str
    first: str
    lost: str
    request_id: str
    answered_id: str
    database: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines() if line.startswith("{")]

    def saying(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["message"] == message]


@pytest.fixture(scope="module", params=["json", "text"])
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp("server")
    rules = folder / "rules"
    rules.mkdir()
    (rules / "rules.cedar").write_text(RULES)
    with running(
        "serve",
        folder=folder,
        database=str(folder / "p.db"),
        rules=rules,
        options=("--log-level", "debug", "--log-format", request.param, "--lease-seconds", 1),
        environment={
            "PROCTOR_APPROVALS_WEBHOOK": f"http://127.0.0.1:1/hook?token={SECRET}",
            "PROCTOR_APPROVALS_WEBHOOK_SECRET": SECRET,
        },
    ) as server:
        first, lost, answered = asyncio.run(_scenario(server.url, rules))
        server.stop()
        yield Told(server.log(), first, lost, "from-a-proxy-1", answered, str(folder / "p.db"))


async def _scenario(url: str, rules: Path) -> tuple[str, str, str]:
    async with httpx2.AsyncClient(base_url=url, headers=HEADERS, timeout=20) as http:
        await http.post("/v0/agents", json={"id": "a", "secret": SECRET})
        made = await http.post(
            "/v0/executions",
            json={"agent_id": "a", "input": {"password": SECRET}},
            headers={"X-Request-Id": "from-a-proxy-1"},
        )
        port = HttpPort([url], "a", SECRET)
        claimed = await port.claim(wait_seconds=20)
        assert claimed is not None
        first, lease = claimed.execution_id, claimed.lease

        async def ask(target: str, args: str = f'{{"key":"{SECRET}"}}') -> Any:
            call = StepSubmission(StepKind.TOOL_CALL, target, args, Idempotency.SAFE_TO_RETRY)
            return await port.submit_step(first, lease, call)

        step = await ask("search")
        await port.complete_step(first, lease, step.step_id, result_json=f'"{SECRET}"')
        step = await ask("search")
        error = json.dumps({"message": f"could not read {SECRET}"})
        await port.fail_step(first, lease, step.step_id, error_json=error)
        await ask("delete")
        await ask("mail")
        await ask("mail")
        await ask("strange", f'{{"amount":"{SECRET}"}}')
        await ask("llm_call")
        with pytest.raises(WireError):
            await ask("broken", f'{{"{SECRET}"')
        pay = await ask("pay")
        denied = {"decision": "deny", "rationale": SECRET}
        await http.post(f"/v0/approvals/{pay.approval_id}/decide", json=denied)
        await http.post(f"/v0/approvals/{pay.approval_id}/deny", json={"rationale": SECRET})
        await port.fail_execution(first, lease, reason=f"ValueError: {SECRET}")
        # What is no request of ours is answered, and not repeated either.
        await http.post("/v0/executions", content=f'{{"agent_id": "{SECRET}'.encode())
        await http.get(f"/v0/executions/{SECRET}", headers={"Authorization": f"Bearer {SECRET}"})
        await http.get(f"/v0/nowhere/{SECRET}?token={SECRET}", headers={"X-Request-Id": "no\tid"})
        await http.post("/v0/executions", json={"agent_id": "a", "input": SECRET})
        taken = await port.claim(wait_seconds=20)
        again = await port.claim(wait_seconds=20)
        assert taken is not None
        assert again is not None
        lost = again.execution_id
        await port.complete_execution(lost, again.lease, output_json=f'"{SECRET}"')
        (rules / "rules.cedar").write_text("permit (")
        async with asyncio.timeout(20):
            while not (await http.get("/v0/policy")).json()["problems"]:
                await asyncio.sleep(0.05)
        await port.aclose()
        return first, lost, str(made.headers["X-Request-Id"])


def test_nothing_of_a_call_is_in_the_log(log: Told) -> None:
    assert "run created" in log.text
    assert SECRET not in log.text
    assert SECRET[3:] not in log.text
    assert TOKEN not in log.text
    assert KEY not in log.text


@pytest.mark.parametrize("log", ["json"], indirect=True)
def test_each_line_about_a_run_has_its_ids_as_fields(log: Told) -> None:
    about_runs = [line for line in log.lines if log.first in json.dumps(line)]

    assert len(about_runs) > 10
    for line in about_runs:
        assert line["execution_id"] == log.first
        assert line["trace_id"] == trace_id(log.first)
        assert line["span_id"] == span_id(line.get("step_id", log.first))
        assert log.first not in line["message"]
    for line in log.lines:
        assert {"at", "level", "logger", "message"} <= set(line)
        if "step_id" in line and line["logger"] == "proctor_kernel.journal":
            assert {"execution_id", "agent_id", "dispatch_id", "attempt"} <= set(line)


@pytest.mark.parametrize("log", ["json"], indirect=True)
def test_an_operator_reads_what_happened(log: Told) -> None:
    (started,) = log.saying("started")
    assert started["database"] == log.database
    assert started["lease_seconds"] == 1
    assert log.saying("stopped")
    created = log.saying("run created")
    assert [line["execution_id"] for line in created] == [log.first, log.lost]
    denied = {line["target"]: line for line in log.saying("denied")}
    assert denied["delete"]["rules"] == "no-delete"
    assert denied["delete"]["reason"] == "nothing is deleted"
    # These reasons quote the call: they are in the record, and not here.
    assert "reason" not in denied["strange"]
    assert denied["strange"]["unevaluated"] == 1
    assert denied["llm_call"]["rules"] == "invalid-call"
    assert "reason" not in denied["llm_call"]
    assert "reason" not in denied["pay"]
    (limited,) = log.saying("rate limited")
    assert limited["rules"] == "slow"
    (asked,) = log.saying("approval requested")
    assert asked["rules"] == "ask"
    assert log.saying("approval denied")[0]["by"] == "bootstrap"
    (failed,) = log.saying("run failed")
    assert failed["reason"] == "agent_failed"
    (over,) = log.saying("taken over: the attempt before fell silent")
    assert over["execution_id"] == log.lost
    assert over["attempt"] == 2
    assert any(line["level"] == "error" and "rules.cedar" in line["message"] for line in log.lines)


@pytest.mark.parametrize("log", ["json"], indirect=True)
def test_a_request_is_found_again_by_its_id(log: Told) -> None:
    (created, *_) = log.saying("run created")
    requests = [line for line in log.saying("request") if line["request_id"] == log.request_id]

    assert log.answered_id == log.request_id == created["request_id"]
    assert [(line["method"], line["route"], line["status"]) for line in requests] == [
        ("POST", "/v0/executions", 201)
    ]
    assert not [line for line in log.lines if "\t" in line.get("request_id", "")]


@pytest.mark.parametrize("log", ["text"], indirect=True)
def test_a_line_of_text_ends_in_its_fields(log: Told) -> None:
    (line,) = (each for each in log.text.splitlines() if " denied  " in each and "delete" in each)

    assert f"execution_id={log.first}" in line
    assert 'reason="nothing is deleted"' in line


class Amount(BaseModel):
    amount: int


def record(message: str, *, error: Exception | None = None, **extra: Any) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("proctor", logging.ERROR, "", 0, message, (), info)
    made.__dict__.update(extra)
    return made


@pytest.mark.parametrize("lines", [JsonLines(), TextLines()])
def test_an_exception_that_quotes_what_it_met_is_named_by_type_and_place(
    lines: logging.Formatter,
) -> None:
    try:
        try:
            Amount.model_validate({"amount": SECRET})
        except ValueError as error:
            raise RuntimeError(f"about {SECRET}") from error
    except RuntimeError as error:
        line = lines.format(record("it failed", error=error))

    assert SECRET not in line
    assert "RuntimeError" in line
    assert "ValidationError" in line
    assert "test_log_lines.py" in line


def test_an_exception_of_the_system_keeps_its_message() -> None:
    line = JsonLines().format(record("it failed", error=OSError(28, "No space left on device")))

    assert "No space left on device" in line


def test_a_name_that_a_model_chose_makes_no_line_of_its_own() -> None:
    extra = about("e", target="x\n2026-01-01 INFO granted" + "y" * 1000)

    line = TextLines().format(record("denied\nand more", **extra))

    assert "\n" not in line
    assert len(line) < 500
