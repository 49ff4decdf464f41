from __future__ import annotations

import asyncio

from penstock.gateway.event_loop import NEVER, EngineTimer


def test_the_loop_wakes_for_the_earliest_moment_only() -> None:
    async def work() -> None:
        fired: list[int] = []
        timer = EngineTimer(lambda: fired.append(timer.due))
        timer.schedule(3_600_000, 0)
        timer.schedule(5, 0)
        # Later than the loop wakes: it wakes, and whoever is called schedules anew.
        timer.schedule(9, 0)
        assert timer.due == 9
        await asyncio.sleep(0.05)
        assert fired == [9]
        timer.schedule(None, 10)
        assert timer.due == NEVER
        await asyncio.sleep(0.02)
        assert fired == [9]

    asyncio.run(work())


def test_what_is_overdue_fires_at_once_and_what_is_cancelled_never() -> None:
    async def work() -> None:
        fired: list[int] = []
        timer = EngineTimer(lambda: fired.append(timer.due))
        timer.schedule(5, 1000)
        await asyncio.sleep(0.02)
        assert fired == [5]
        timer.schedule(6, 1000)
        timer.cancel()
        await asyncio.sleep(0.02)
        assert fired == [5]
        timer.ring()
        assert fired == [5, 6]
        timer.clear()
        assert timer.due == NEVER

    asyncio.run(work())
