from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.gateway.connection import login_queue as module
from penstock.gateway.connection.login_queue import FREE_FAILURES, BusyError, LoginQueue

HERE, THERE = "10.0.0.1", "10.0.0.2"


def run(trial: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await trial()

    asyncio.run(limited())


async def log_in(
    queue: LoginQueue, address: str, user: str, *, right: bool | None = True, real: bool = True
) -> bool:
    """Log in; a check takes a step of the loop."""
    async with queue.turn(address, user, real=real) as turn:
        if turn.slot:
            await asyncio.sleep(0)
            turn.right = right
    return bool(turn.right)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFUSAL_SECONDS", 0.02)


def test_no_more_than_the_slots_are_checked_at_a_time() -> None:
    async def trial() -> None:
        queue = LoginQueue(2, 100, 100)
        under_way = most = 0

        async def check(number: int) -> None:
            nonlocal under_way, most
            async with queue.turn(HERE, str(number)) as turn:
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0.001)
                under_way -= 1
                turn.right = True

        await asyncio.gather(*map(check, range(30)))
        assert most == 2
        assert len(queue) == 0

    run(trial)


def test_names_that_do_not_exist_hold_up_nobody() -> None:
    async def trial() -> None:
        queue = LoginQueue(1, 100, 100)
        async with queue.turn(THERE, "busy") as turn:
            wrong = [
                asyncio.ensure_future(log_in(queue, HERE, f"no-{it}", right=False, real=False))
                for it in range(50)
            ]
            await settle()
            right = asyncio.ensure_future(log_in(queue, HERE, "alice"))
            await settle()
            turn.right = True
        assert await right
        assert not any(await asyncio.gather(*wrong))

    run(trial)


def test_a_full_queue_makes_the_greediest_network_give_way() -> None:
    async def trial() -> None:
        queue = LoginQueue(1, 8, 7)
        async with queue.turn(THERE, "first") as turn:
            flood = [asyncio.ensure_future(log_in(queue, HERE, str(it))) for it in range(7)]
            await settle()
            with pytest.raises(BusyError):
                await log_in(queue, HERE, "one more")
            other = asyncio.ensure_future(log_in(queue, "10.0.0.3", "alice"))
            await settle()
            assert flood[0].done()
            turn.right = True
        assert await other
        ended = await asyncio.gather(*flood, return_exceptions=True)
        assert isinstance(ended[0], BusyError)
        assert ended[1:] == [True] * 6

    run(trial)


def test_failures_slow_down_their_own_name_and_network() -> None:
    async def trial() -> None:
        queue = LoginQueue(2, 100, 100)
        for _ in range(FREE_FAILURES + 1):
            assert not await log_in(queue, HERE, "alice", right=False)
        slowed = asyncio.ensure_future(log_in(queue, HERE, "alice"))
        assert await log_in(queue, HERE, "bob")
        assert await log_in(queue, THERE, "alice")
        assert not slowed.done()
        assert await slowed  # after the back-off
        assert await log_in(queue, HERE, "alice")

    run(trial)


def test_a_check_that_nobody_waits_for_any_more_counts_as_wrong() -> None:
    async def trial() -> None:
        queue = LoginQueue(2, 100, 100)
        for _ in range(FREE_FAILURES + 1):
            started = asyncio.Event()

            async def check(started: asyncio.Event = started) -> None:
                async with queue.turn(HERE, "alice"):
                    started.set()
                    await asyncio.sleep(60)

            task = asyncio.ensure_future(check())
            await started.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        slowed = asyncio.ensure_future(log_in(queue, HERE, "alice"))
        await settle()
        assert not slowed.done()
        slowed.cancel()

    run(trial)


def test_what_could_not_be_found_out_counts_for_nothing() -> None:
    async def trial() -> None:
        queue = LoginQueue(2, 100, 100)
        for _ in range(2 * FREE_FAILURES):
            with pytest.raises(OSError, match="away"):
                async with queue.turn(HERE, "alice"):
                    raise OSError("the broker is away")
        assert await log_in(queue, HERE, "alice")

    run(trial)


def test_who_waits_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.05)

    async def trial() -> None:
        queue = LoginQueue(1, 100, 100)
        async with queue.turn(HERE, "slow") as turn:
            with pytest.raises(BusyError):
                await log_in(queue, THERE, "alice")
            turn.right = True
        assert await log_in(queue, THERE, "alice")
        assert len(queue) == 0

    run(trial)


@pytest.mark.parametrize("seed", range(20))
def test_whoever_gives_up_whenever_no_slot_is_lost(seed: int) -> None:
    chance = random.Random(seed)

    async def trial() -> None:
        queue = LoginQueue(3, 20, 10)
        tasks: list[asyncio.Future[bool]] = []
        for _ in range(200):
            who = chance.choice([HERE, THERE]), chance.choice("abcdef")
            right, real = chance.choice([True, True, None, False]), chance.random() < 0.8
            tasks.append(asyncio.ensure_future(log_in(queue, *who, right=right, real=real)))
            if chance.random() < 0.5:
                chance.choice(tasks).cancel()
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (len(queue), queue._free) == (0, 3)
        assert not queue._order.has_ready()
        queue.close()

    run(trial)
