"""A rules folder edited in every way that editors, git and Kubernetes have."""

import asyncio
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.policy.conftest import a_call

from proctor_policy.cases import failures
from proctor_policy.load import load
from proctor_policy.problem import RulesInvalid
from proctor_policy.ruleset import RuleSet, deny_all
from proctor_policy.watch import Watcher, tree_digest

LOOKS_MAX = 3
"""A settled edit is in force after at most three looks."""


def policy(rule_id: str, effect: str = "permit") -> str:
    return f'@id("{rule_id}") {effect} (principal, action, resource);\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "rules"
    made.mkdir()
    (made / "a.cedar").write_text(policy("a"))
    return made


class Clock:
    now = 1

    def __call__(self) -> int:
        self.now += 1
        return self.now


def watching(folder: Path, **more: object) -> Watcher:
    return Watcher(
        folder,
        load=load,
        start=load(folder),
        now_micros=Clock(),
        **more,  # type: ignore[arg-type]
    )


async def looked(watcher: Watcher, times: int = LOOKS_MAX) -> list[str]:
    """Look as often as it takes, and return the ids in force."""
    for _ in range(times):
        await watcher.look()
    return [each.id for each in watcher.rules.policies]


def atomic_rename(folder: Path) -> None:
    (folder / "a.cedar.swp").write_text(policy("b"))
    os.replace(folder / "a.cedar.swp", folder / "a.cedar")


def in_place(folder: Path) -> None:
    (folder / "a.cedar").write_text(policy("b"))


def older_time(folder: Path) -> None:
    before = (folder / "a.cedar").stat()
    (folder / "a.cedar").write_text(policy("b"))
    os.utime(folder / "a.cedar", (1, 1))
    assert before.st_size == (folder / "a.cedar").stat().st_size


def same_time(folder: Path) -> None:
    before = (folder / "a.cedar").stat()
    (folder / "a.cedar").write_text(policy("b"))
    os.utime(folder / "a.cedar", ns=(before.st_atime_ns, before.st_mtime_ns))


def moved_into_a_folder(folder: Path) -> None:
    (folder / "new").mkdir()
    (folder / "new" / "b.cedar").write_text(policy("b"))
    (folder / "a.cedar").unlink()


def replaced_folder(folder: Path) -> None:
    other = folder.with_name("other")
    other.mkdir()
    (other / "b.cedar").write_text(policy("b"))
    shutil.rmtree(folder)
    other.rename(folder)


@pytest.mark.parametrize(
    "edit",
    [atomic_rename, in_place, older_time, same_time, moved_into_a_folder, replaced_folder],
    ids=lambda edit: edit.__name__,
)
async def test_an_edit_is_in_force_after_three_looks(
    folder: Path, edit: Callable[[Path], None]
) -> None:
    watcher = watching(folder)
    await looked(watcher)

    edit(folder)

    assert await looked(watcher) == ["b"]
    assert watcher.status.reloads == 1
    assert watcher.status.hash == watcher.rules.hash == load(folder).hash


async def test_a_kubernetes_swap_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    for number, name in enumerate(("a", "b")):
        version = folder / f"..{number}"
        version.mkdir(parents=True)
        (version / "r.cedar").write_text(policy(name))
    (folder / "..data").symlink_to("..0")
    (folder / "r.cedar").symlink_to("..data/r.cedar")
    watcher = watching(folder)
    await looked(watcher)

    (folder / "..data_tmp").symlink_to("..1")
    os.replace(folder / "..data_tmp", folder / "..data")

    assert await looked(watcher) == ["b"]


async def test_a_link_to_the_folder_that_is_re_pointed_is_seen(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "r.cedar").write_text(policy(name))
    link = tmp_path / "rules"
    link.symlink_to("a")
    watcher = watching(link)
    await looked(watcher)

    (tmp_path / "next").symlink_to("b")
    os.replace(tmp_path / "next", link)

    assert await looked(watcher) == ["b"]


async def test_a_folder_that_is_gone_and_back_keeps_its_rules_meanwhile(folder: Path) -> None:
    watcher = watching(folder)
    await looked(watcher)

    folder.rename(folder.with_name("away"))
    gone = await looked(watcher)
    problems = watcher.status.problems
    folder.with_name("away").rename(folder)
    back = await looked(watcher)

    assert gone == back == ["a"]
    assert "no such folder" in str(problems[0])
    assert watcher.status.problems == ()


async def test_a_broken_save_changes_nothing_but_the_status(folder: Path) -> None:
    watcher = watching(folder)
    await looked(watcher)
    before = watcher.status

    (folder / "a.cedar").write_text("permit (principal")
    in_force = await looked(watcher, times=6)
    broken = watcher.status
    (folder / "a.cedar").write_text(policy("b"))
    mended = await looked(watcher)

    assert in_force == ["a"]
    assert (broken.hash, broken.reloads, broken.failures) == (before.hash, 0, 1)
    assert str(broken.problems[0]).startswith(f"{folder}/a.cedar:1: ")
    assert broken.failing_since_micros is not None
    assert mended == ["b"]
    assert (watcher.status.problems, watcher.status.failing_since_micros) == ((), None)


async def test_many_files_written_one_by_one_come_into_force_together(folder: Path) -> None:
    watcher = watching(folder)
    await looked(watcher)
    seen = set()

    for number in range(10):
        (folder / f"n{number}.cedar").write_text(policy(f"n{number}"))
        await watcher.look()
        seen.add(len(watcher.rules.policies))
    await looked(watcher)

    assert seen == {1}
    assert len(watcher.rules.policies) == 11


async def test_going_back_to_what_is_in_force_is_no_reload(folder: Path) -> None:
    watcher = watching(folder)
    await looked(watcher)

    (folder / "a.cedar").write_text("permit (")
    await looked(watcher)
    (folder / "a.cedar").write_text(policy("a"))
    await looked(watcher)

    assert watcher.status.problems == ()
    assert watcher.status.reloads == 0


async def test_a_file_that_lost_its_policies_is_refused_until_that_is_meant(folder: Path) -> None:
    (folder / "b.cedar").write_text(policy("b", "forbid"))
    watcher = watching(folder)
    await looked(watcher)

    (folder / "b.cedar").write_text("")
    emptied = await looked(watcher)
    problem = str(watcher.status.problems[0])
    (folder / "b.cedar").write_text("// empty on purpose\n")
    meant = await looked(watcher)

    assert emptied == ["a", "b"]
    assert "b.cedar: it has no policies any more; delete it, or write" in problem
    assert meant == ["a"]


async def test_a_deleted_file_is_meant(folder: Path) -> None:
    (folder / "b.cedar").write_text(policy("b"))
    watcher = watching(folder)
    await looked(watcher)

    (folder / "b.cedar").unlink()

    assert await looked(watcher) == ["a"]


async def test_a_start_without_rules_denies_until_they_load(tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    with pytest.raises(RulesInvalid) as caught:
        load(folder)
    watcher = Watcher(
        folder,
        load=load,
        start=deny_all("nothing loaded"),
        problems=caught.value.problems,
        now_micros=Clock(),
    )
    await looked(watcher)
    denied = watcher.rules.decide(a_call())
    folder.mkdir()
    (folder / "a.cedar").write_text(policy("a"))

    assert denied.reason == "nothing loaded"
    assert await looked(watcher) == ["a"]
    assert watcher.status.failing_since_micros is None


async def test_rules_whose_tests_fail_do_not_come_into_force_when_that_is_asked(
    folder: Path,
) -> None:
    watcher = watching(folder, verify=lambda rules: failures(folder, rules))
    (folder / "tests").mkdir()
    (folder / "tests" / "t.yaml").write_text("- {name: open, tool: x, expect: allow}\n")
    await looked(watcher)

    (folder / "a.cedar").write_text(policy("a", "forbid"))
    refused = watcher.rules.decide(a_call("x")).decision, await looked(watcher)
    problem = str(watcher.status.problems[0])
    (folder / "tests" / "t.yaml").write_text("- {name: shut, tool: x, expect: deny}\n")
    await looked(watcher)

    assert refused == ("allow", ["a"])
    assert "t.yaml:1: open: x: expected allow, got deny" in problem
    assert watcher.rules.decide(a_call("x")).decision == "deny"


async def test_a_set_that_nobody_could_be_told_of_is_tried_again(folder: Path) -> None:
    refusals = [OSError("disk full")]

    async def changed(_: RuleSet) -> None:
        if refusals:
            raise refusals.pop()

    watcher = watching(folder, changed=changed)
    await looked(watcher)
    (folder / "a.cedar").write_text(policy("b"))
    await watcher.look()
    with pytest.raises(OSError, match="disk full"):
        await watcher.look()
    still = [each.id for each in watcher.rules.policies]

    assert still == ["a"]
    assert await looked(watcher) == ["b"]


def test_the_digest_sees_names_contents_and_what_cannot_be_read(folder: Path) -> None:
    digests = [tree_digest(folder)]
    (folder / "a.cedar").rename(folder / "b.cedar")
    digests.append(tree_digest(folder))
    (folder / "b.cedar").write_text("x")
    digests.append(tree_digest(folder))
    (folder / "dangling.cedar").symlink_to("nowhere")
    digests.append(tree_digest(folder))
    (folder / ".hidden").write_text("x")

    assert len(set(digests)) == 4
    assert tree_digest(folder) == digests[-1]


async def test_under_chaos_every_verdict_is_that_of_a_complete_set(folder: Path) -> None:
    """Saves, renames, cuts and restores at random; only sets that were whole ever decide."""
    chance = random.Random(7)
    complete: dict[str, str] = {}

    def whole(number: int) -> str:
        text = f'@id("a") @reason("{number}") forbid (principal, action, resource);\n'
        return text + f'@id("b{number}") permit (principal, action, resource);\n'

    (folder / "a.cedar").write_text(whole(0))
    watcher = watching(folder)
    complete[load(folder).hash] = "0"
    for number in range(1, 120):
        text = whole(number)
        match chance.randrange(5):
            case 0:
                (folder / "a.cedar").write_text(text[: chance.randrange(len(text))])
            case 1:
                (folder / "a.cedar").write_text("")
            case 2:
                (folder / ".tmp").write_text(text)
                os.replace(folder / ".tmp", folder / "a.cedar")
            case 3:
                folder.rename(folder.with_name("away"))
                await watcher.look()
                folder.with_name("away").rename(folder)
            case _:
                (folder / "a.cedar").write_text(text)
        with suppress(RulesInvalid):
            complete.setdefault(load(folder).hash, str(number))
        for _ in range(chance.randrange(4)):
            await watcher.look()
            verdict = watcher.rules.decide(a_call())
            assert verdict.ruleset in complete
    (folder / "a.cedar").write_text(whole(999))

    await looked(watcher)

    assert watcher.rules.decide(a_call()).reason == "999"


async def test_while_rules_are_edited_at_random_every_call_is_decided_by_a_complete_set(
    folder: Path,
) -> None:
    """The watcher runs on its own here, and calls are decided between any two of its steps."""
    chance = random.Random(11)
    complete: dict[str, str] = {}
    file = folder / "a.cedar"

    def whole(number: int) -> str:
        reason = f'@id("a") @reason("{number}") forbid (principal, action, resource);\n'
        return reason + "".join(policy(f"b{number}-{each}") for each in range(40))

    def edit(number: int) -> None:
        text = whole(number)
        match chance.randrange(4):
            case 0:
                file.write_text(text[: chance.randrange(len(text))])
            case 1:
                (folder / ".tmp").write_text(text)
                os.replace(folder / ".tmp", file)
            case 2:
                shutil.rmtree(folder)
                folder.mkdir()
                file.write_text(text)
            case _:
                file.write_text(text)
        with suppress(RulesInvalid):
            complete.setdefault(load(folder).hash, str(number))

    file.write_text(whole(0))
    complete[load(folder).hash] = "0"
    watcher = watching(folder)
    running = asyncio.create_task(watcher.run(interval_seconds=0.001))
    decided = 0

    async def deciding_until(reason: str | None, times: int) -> None:
        nonlocal decided
        async with asyncio.timeout(20):
            while verdict_of() != reason and (times > 0 or reason is not None):
                times -= 1
                decided += 1
                await asyncio.sleep(0 if reason is None else 0.001)

    def verdict_of() -> str:
        verdict = watcher.rules.decide(a_call())
        assert verdict.ruleset in complete
        return verdict.reason

    for number in range(1, 60):
        if number % 6:
            edit(number)
            await deciding_until(None, chance.randrange(20))
        else:  # a save that is left alone comes into force
            file.write_text(whole(number))
            complete[load(folder).hash] = str(number)
            await deciding_until(str(number), 20)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert decided > 400
    assert watcher.status.reloads >= 9
