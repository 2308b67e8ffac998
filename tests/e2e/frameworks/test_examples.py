"""Agent frameworks take governed tools as they are: what the model is told, what runs, and when."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from examples import shop

import proctor
from proctor import Client
from proctor.wire.words import ExecutionStatus, StepStatus

from .conftest import Example

ORDER = "o-17: a teapot, 80 euros, broken on the way"
DENIED = "delete_order not allowed. reason: orders are kept for the books"
BEFORE_THE_APPROVAL = [[], [ORDER], [ORDER, DENIED]]


async def waiting(client: Client, execution_id: str) -> str:
    """Return the approval that a run waits for, once its handler has stopped."""
    async with asyncio.timeout(20):
        while "dispatch.discarded" not in [e.type for e in await client.events(execution_id)]:
            await asyncio.sleep(0.01)
    assert (await client.get(execution_id)).status is ExecutionStatus.BLOCKED
    (approval,) = await client.list_approvals()
    return approval.id


def bodies(printed: str) -> list[str]:
    """Return the bodies that ran, by what each prints."""
    return sorted(re.findall(r"tool +(\w+)", printed))


async def test_the_model_is_told_what_is_allowed_and_denied_and_never_that_a_call_waits(
    example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    async with proctor.embedded(
        agents=[example.agent], rules=shop.RULES, database=":memory:"
    ) as client:
        run = await client.create(example.agent.id, {"request": "My teapot came broken."})
        approval = await waiting(client, run.id)
        told_first = list(shop.told)
        before = bodies(capsys.readouterr().out)
        await client.grant_approval(approval, by="alice")
        ended = await client.wait(run.id, timeout=20)
        steps = await client.list_steps(run.id)

    assert told_first == BEFORE_THE_APPROVAL
    assert "paying" not in before
    assert "deleting" not in before
    assert ended.status is ExecutionStatus.COMPLETED
    assert ended.output == "The teapot is paid back."
    # The second attempt replays the first: the model is told the same, and then goes on.
    assert shop.told[len(told_first) :] == [
        *BEFORE_THE_APPROVAL,
        [ORDER, DENIED, "paid 80 back", "sent"],
    ]
    assert sorted(before + bodies(capsys.readouterr().out)) == ["looking", "paying", "writing"]
    assert {each.target: each.status for each in steps} == {
        "look_up_order": StepStatus.SUCCEEDED,
        "delete_order": StepStatus.DENIED,
        "refund": StepStatus.SUCCEEDED,
        "send_note": StepStatus.SUCCEEDED,
    }
    assert [each.args for each in steps if each.target == "send_note"] == [
        {"order": "o-17", "note": {"subject": "Your teapot", "urgency": "low"}, "copy_to": None}
    ]


async def test_a_call_that_people_say_no_to_reaches_the_model_as_a_refusal(
    example: Example,
) -> None:
    async with proctor.embedded(
        agents=[example.agent], rules=shop.RULES, database=":memory:"
    ) as client:
        run = await client.create(example.agent.id, {"request": "My teapot came broken."})
        approval = await waiting(client, run.id)
        await client.deny_approval(approval, by="alice", rationale="too much")
        ended = await client.wait(run.id, timeout=20)

    assert ended.status is ExecutionStatus.COMPLETED
    assert shop.told[-1] == [ORDER, DENIED, "refund not allowed. reason: too much", "sent"]


async def test_a_run_goes_on_where_its_kernel_was_closed_and_nothing_recorded_runs_twice(
    example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "proctor.db"
    async with proctor.embedded(
        agents=[example.agent], rules=shop.RULES, database=database
    ) as client:
        run = await client.create(example.agent.id, {"request": "My teapot came broken."})
        async with asyncio.timeout(20):
            while StepStatus.SUCCEEDED not in [s.status for s in await client.list_steps(run.id)]:
                await asyncio.sleep(0)
    async with proctor.embedded(
        agents=[example.agent], rules=shop.RULES, database=database
    ) as client:
        await client.grant_approval(await waiting(client, run.id), by="alice")
        ended = await client.wait(run.id, timeout=20)

    assert ended.output == "The teapot is paid back."
    ran = bodies(capsys.readouterr().out)
    assert [ran.count(each) for each in ("looking", "paying")] == [1, 1]


def test_an_example_that_is_killed_goes_on_with_its_run_when_it_is_started_again(
    example: Example, tmp_path: Path
) -> None:
    command = [sys.executable, "-u", "-m", example.module, str(tmp_path / "shop.db")]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}

    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as first:
        assert first.stdout is not None
        printed = []
        for line in first.stdout:
            printed.append(line)
            if ORDER in line:
                break
        first.kill()
    second = subprocess.run(
        command, input="y\n", capture_output=True, text=True, env=environment, check=False
    )

    assert second.stderr == ""
    assert "looking" in bodies("".join(printed))
    assert "looking" not in bodies(second.stdout)
    assert bodies(second.stdout).count("paying") == 1
    assert "completed: The teapot is paid back." in second.stdout
