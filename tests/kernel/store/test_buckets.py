"""Rate buckets: never over the limit, whoever asks at once, and after a restart."""

import asyncio
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from proctor_kernel.store.buckets import Buckets, Full, Token
from proctor_kernel.store.sqlite import IN_MEMORY, SQLite

FIVE = Token("five", limit=5, window_micros=60_000_000)
TWO = Token("two", limit=2, window_micros=60_000_000)


async def test_there_is_room_up_to_the_limit_and_again_when_the_window_has_moved_on(
    database: SQLite,
) -> None:
    buckets = Buckets(database)

    first = [await buckets.take([TWO], holder=f"s{n}", now=n) for n in range(3)]
    at_the_edge = await buckets.take([TWO], holder="edge", now=60_000_000)
    after = await buckets.take([TWO], holder="after", now=60_000_001)

    assert first == [(), (), (Full(TWO, 60_000_000),)]
    assert at_the_edge == ()  # the call of time 0 is out of the window, that of time 1 is in it
    assert after == ()
    assert await buckets.take([TWO], holder="more", now=60_000_001) == (Full(TWO, 120_000_000),)


async def test_deciding_twice_takes_one_token(database: SQLite) -> None:
    buckets = Buckets(database)

    taken = [await buckets.take([TWO], holder="same", now=n) for n in range(5)]

    assert taken == [()] * 5
    assert await buckets.take([TWO], holder="other", now=6) == ()


async def test_a_call_takes_all_its_tokens_or_none(database: SQLite) -> None:
    buckets = Buckets(database)
    for number in range(2):
        await buckets.take([TWO], holder=f"s{number}", now=1)

    refused = await buckets.take([FIVE, TWO], holder="both", now=2)
    rest = [await buckets.take([FIVE], holder=f"f{number}", now=3) for number in range(6)]

    assert refused == (Full(TWO, 60_000_001),)
    assert rest == [()] * 5 + [(Full(FIVE, 60_000_003),)]


async def test_buckets_are_shared_between_kernels_and_survive_a_restart(path: Path) -> None:
    for number in range(5):
        database = SQLite(str(path), "NORMAL")
        assert await Buckets(database).take([FIVE], holder=f"s{number}", now=number) == ()
        database.close()
    database = SQLite(str(path), "NORMAL")

    assert await Buckets(database).take([FIVE], holder="one more", now=9) == (
        Full(FIVE, 60_000_000),
    )
    database.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=40))
def test_no_window_ever_holds_more_calls_than_the_limit(calls: list[tuple[int, int]]) -> None:
    database = SQLite(IN_MEMORY, "NORMAL")
    admitted: dict[str, int] = {}

    async def all_of_them() -> None:
        buckets, token, now = Buckets(database), Token("b", 3, 10), 0
        for step, wait in calls:
            now += wait
            if await buckets.take([token], holder=f"s{step}", now=now) == ():
                admitted[f"s{step}"] = now

    asyncio.run(all_of_them())
    database.close()

    for start in admitted.values():
        assert sum(start <= each < start + 10 for each in admitted.values()) <= 3
