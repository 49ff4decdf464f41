from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.errors import UnavailableError
from penstock.gateway.event_loop import Background


async def fail(error: Exception) -> None:
    raise error


def test_what_runs_beside_is_known_until_it_ends() -> None:
    async def trial() -> None:
        background = Background()
        go = asyncio.Event()
        background.start(go.wait())
        assert len(background.tasks) == 1
        go.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not background.tasks
        background.close()

    asyncio.run(trial())


@pytest.mark.parametrize(
    ("error", "logged"), [(ValueError("x"), True), (UnavailableError("the store is away"), False)]
)
def test_only_a_failure_that_nobody_knows_of_is_logged(
    error: Exception,
    logged: bool,  # noqa: FBT001
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def trial() -> None:
        background = Background()
        background.start(fail(error))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        background.close()

    asyncio.run(trial())
    assert ("work beside the connections failed" in capsys.readouterr().err) is logged


def test_all_that_runs_is_cancelled() -> None:
    async def trial() -> None:
        background = Background()
        ended: list[str] = []

        async def work(name: str) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(name)

        background.start(work("one"))
        background.start(work("two"))
        await asyncio.sleep(0)
        await background.cancel()
        assert sorted(ended) == ["one", "two"]
        background.close()

    asyncio.run(trial())


def test_what_waits_for_the_store_runs_away_from_the_loop() -> None:
    async def trial() -> None:
        background = Background(1, "trial")
        name = await background.run_in_thread(lambda: threading.current_thread().name)
        assert name.startswith("trial")
        background.close()

    asyncio.run(trial())
