from __future__ import annotations

import asyncio

import pytest

from penstock.errors import UnavailableError
from penstock.gateway.event_loop import SessionWriter
from penstock.store.sessions import ClientChange, Leave


def leave(name: str) -> Leave:
    return Leave(name, "h", 0)


def test_what_comes_meanwhile_goes_into_the_next_batch_in_order() -> None:
    batches: list[list[str]] = []

    async def store(changes: list[ClientChange]) -> None:
        batches.append([change.client for change in changes])
        await asyncio.sleep(0)

    async def run() -> None:
        writer = SessionWriter(store)
        await asyncio.gather(*(writer.save(leave(str(number))) for number in range(5)))
        writer.later(leave("last"))
        await writer.finish()

    asyncio.run(run())
    assert [name for batch in batches for name in batch] == ["0", "1", "2", "3", "4", "last"]
    assert len(batches) <= 3


def test_one_change_that_is_refused_does_not_stand_in_the_way() -> None:
    stored: list[str] = []

    async def store(changes: list[ClientChange]) -> None:
        if any(change.client == "bad" for change in changes):
            raise UnavailableError("no")
        stored.extend(change.client for change in changes)

    async def run() -> list[object]:
        writer = SessionWriter(store)
        writer.later(leave("bad"))
        names = ("a", "bad", "b")
        return await asyncio.gather(
            *(writer.save(leave(name)) for name in names), return_exceptions=True
        )

    results = asyncio.run(run())
    assert [isinstance(it, UnavailableError) for it in results] == [False, True, False]
    assert stored == ["a", "b"]


def test_finishing_without_work_returns() -> None:
    async def store(changes: list[ClientChange]) -> None:
        pytest.fail("nothing was to be stored")

    async def run() -> None:
        await SessionWriter(store).finish()

    asyncio.run(run())
