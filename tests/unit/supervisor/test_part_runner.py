import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config
from penstock.errors import UnavailableError
from penstock.supervisor.part_runner import PartRunner
from penstock.supervisor.parts import Part, PartState, TcpProbe
from penstock.supervisor.status import PartStatus

QUICK = {"backoff": "10ms", "backoff_limit": "20ms", "failures": 3, "grace": "10s"}
SLEEP = ("sleep", "60")


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


class Watched(PartRunner):
    """A runner that remembers what was to be said of its part, state by state."""

    def __init__(self, part: Part, **supervisor: Any) -> None:
        config = Config.model_validate({"supervisor": {**QUICK, **supervisor}})
        self.history: list[PartStatus] = []
        self.changed = asyncio.Event()
        super().__init__(part, config, os.environ, self._note)
        self._note()

    def _note(self) -> None:
        status = self.status()
        if self.history and self.history[-1].state is status.state:
            self.history.pop()
        self.history.append(status)
        self.changed.set()

    @property
    def states(self) -> list[PartState]:
        return [status.state for status in self.history]

    def last(self, state: PartState) -> PartStatus:
        return next(status for status in reversed(self.history) if status.state is state)

    async def reach(self, state: PartState, times: int = 1) -> None:
        async with asyncio.timeout(30):
            while self.states.count(state) < times:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def kept(runner: Watched, *before: PartRunner) -> AsyncIterator[Watched]:
    task = asyncio.create_task(runner.run(before))
    try:
        yield runner
    finally:
        runner.stop.set()
        async with asyncio.timeout(30):
            await task


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())


def test_an_ordinary_life() -> None:
    async def main() -> None:
        async with kept(Watched(Part("p", command=lambda _: SLEEP))) as runner:
            await runner.reach(PartState.RUNNING)
            status = runner.status()
            assert status.pid is not None
            os.kill(status.pid, 0)
        assert runner.states == [
            PartState.WAITING,
            PartState.STARTING,
            PartState.RUNNING,
            PartState.STOPPING,
            PartState.STOPPED,
        ]
        assert runner.status().pid is None
        assert runner.status().last_exit == "SIGTERM"

    run(main)


@pytest.mark.parametrize("code", [0, 3])
def test_a_part_that_ends_is_started_again(tmp_path: Path, code: int) -> None:
    note = tmp_path / "note"
    once = (
        "import pathlib, sys, time\n"
        f"note = pathlib.Path(sys.argv[1]); first = not note.exists(); note.touch()\n"
        f"sys.exit({code}) if first else time.sleep(60)"
    )

    async def main() -> None:
        part = Part("p", command=lambda _: python(once, str(note)))
        async with kept(Watched(part)) as runner:
            await runner.reach(PartState.RUNNING, times=2)
            assert runner.last(PartState.BACKOFF).detail == f"ended with exit {code}"
            assert runner.restarts == 1
            assert runner.status().last_exit == f"exit {code}"

    run(main)


def test_a_part_that_fails_too_often_is_given_up_and_tried_again_when_asked() -> None:
    async def main() -> None:
        part = Part("p", command=lambda _: ("false",))
        async with kept(Watched(part)) as runner:
            await runner.reach(PartState.FAILED)
            assert runner.states.count(PartState.STARTING) == 3
            assert runner.status().detail == "ended with exit 1"
            await asyncio.sleep(0.2)
            assert runner.state is PartState.FAILED
            runner.retry.set()
            await runner.reach(PartState.FAILED, times=2)
            assert runner.states.count(PartState.STARTING) == 6
        assert runner.states[-1] is PartState.STOPPED

    run(main)


def test_a_command_that_cannot_be_made_is_a_failure_with_its_reason() -> None:
    def command(_: Config) -> Sequence[str]:
        raise UnavailableError("no broker here", fix="install it")

    async def main() -> None:
        async with kept(Watched(Part("p", command=command))) as runner:
            await runner.reach(PartState.FAILED)
            assert runner.status().detail == "no broker here → install it"

    run(main)


def test_a_part_runs_when_its_probe_succeeds() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    listen = (
        "import socket, sys, time\n"
        "server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "server.bind(('127.0.0.1', int(sys.argv[1]))); time.sleep(.3); server.listen()\n"
        "time.sleep(60)"
    )

    async def main() -> None:
        part = Part(
            "p",
            command=lambda _: python(listen, str(port)),
            ready=lambda _: TcpProbe("127.0.0.1", port),
        )
        async with kept(Watched(part)) as runner:
            await runner.reach(PartState.STARTING)
            assert not runner.was_ready.is_set()
            await runner.reach(PartState.RUNNING)
            socket.create_connection(("127.0.0.1", port)).close()

    run(main)


def test_a_part_that_does_not_become_ready_is_ended_and_counts_as_failed() -> None:
    async def main() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            probe = TcpProbe("127.0.0.1", closed.getsockname()[1])
            part = Part("p", command=lambda _: SLEEP, ready=lambda _: probe)
            async with kept(Watched(part, ready_timeout="100ms", failures=1)) as runner:
                await runner.reach(PartState.FAILED)
                assert runner.status().detail == "not ready within 0.1 s"
                assert runner.status().last_exit == "SIGTERM"
                assert PartState.RUNNING not in runner.states

    run(main)


def test_an_answer_of_something_else_is_not_taken_for_the_parts() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            probe = TcpProbe("127.0.0.1", other.getsockname()[1])
            part = Part("p", command=lambda _: SLEEP, ready=lambda _: probe)
            async with kept(Watched(part, failures=1)) as runner:
                await runner.reach(PartState.FAILED)
                assert (runner.status().detail or "").startswith("something else answers at ")
                assert PartState.RUNNING not in runner.states

    run(main)


def test_a_part_waits_for_those_before_it() -> None:
    async def main() -> None:
        first = Watched(Part("first", command=lambda _: SLEEP))
        second = Watched(Part("second", command=lambda _: SLEEP, after=("first",)))
        async with kept(second, first):
            await asyncio.sleep(0.05)
            assert second.state is PartState.WAITING
            assert second.status().detail == "waits for first"
            async with kept(first):
                await second.reach(PartState.RUNNING)
                assert second.status().detail is None

    run(main)


@pytest.mark.parametrize(
    ("command", "settings", "at"),
    [
        (("false",), {"backoff": "1h", "backoff_limit": "1h"}, PartState.BACKOFF),
        (("false",), {"failures": 1}, PartState.FAILED),
    ],
)
def test_it_stops_without_a_process(
    command: tuple[str, ...], settings: dict[str, Any], at: PartState
) -> None:
    async def main() -> None:
        async with kept(Watched(Part("p", command=lambda _: command), **settings)) as runner:
            await runner.reach(at)
        assert runner.states[-2:] == [at, PartState.STOPPED]

    run(main)


def test_it_stops_while_it_waits_or_starts() -> None:
    async def main() -> None:
        other = Watched(Part("other", command=lambda _: SLEEP))
        async with kept(Watched(Part("p", command=lambda _: SLEEP)), other) as waiting:
            await asyncio.sleep(0.05)
        assert waiting.states == [PartState.WAITING, PartState.STOPPED]
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            probe = TcpProbe("127.0.0.1", closed.getsockname()[1])
            part = Part("p", command=lambda _: SLEEP, ready=lambda _: probe)
            async with kept(Watched(part)) as starting:
                await starting.reach(PartState.STARTING)
                await asyncio.sleep(0.05)
        assert starting.states[-3:] == [PartState.STARTING, PartState.STOPPING, PartState.STOPPED]

    run(main)
