"""What runs beside the messages: tasks of the loop, threads for the store, saving in batches.

Rules that hold here:
- Nothing that waits for the store runs on the loop.
- A task that fails is logged, unless it failed because the store is away: who asked for it
  knows that already.
- Changes of clients reach the store in the order in which they were given.
- At most one transaction runs at a time; what comes meanwhile goes into the next. So a
  thousand clients that subscribe at once wait for a few transactions, not for a thousand.
- A change that cannot be stored fails for its client, never in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from penstock.errors import PenstockError, UnavailableError
from penstock.telemetry import get_logger

_THREADS = 4
_log = get_logger("gateway")

T = TypeVar("T")


class Background:
    """The tasks and threads of one gateway, on the running loop."""

    def __init__(self, threads: int = _THREADS, name: str = "penstock-store") -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads = ThreadPoolExecutor(threads, name)

    @property
    def tasks(self) -> frozenset[asyncio.Task[Any]]:
        """The tasks that run now."""
        return frozenset(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let something run beside; if it fails, that is logged."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    async def run_in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that waits for the store, away from the loop."""
        return await self._loop.run_in_executor(self._threads, function, *arguments)

    async def cancel(self) -> None:
        """End all tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Give the threads back."""
        self._threads.shutdown(wait=False)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, UnavailableError):
            _log.error("work beside the connections failed", error=error)


BATCH = 1_000

Change = TypeVar("Change")


class SessionWriter(Generic[Change]):
    """A queue in front of the store of sessions, or of wills."""

    def __init__(self, store: Callable[[list[Change]], Awaitable[None]]) -> None:
        self._store = store
        self._waiting: list[tuple[Change, asyncio.Future[None]]] = []
        self._running: asyncio.Task[None] | None = None

    async def save(self, change: Change) -> None:
        """Save a change; return when it is durable."""
        await self._add(change)

    def later(self, change: Change) -> None:
        """Save a change that nobody waits for."""
        self._add(change).add_done_callback(_report)

    async def finish(self) -> None:
        """Wait until everything is saved."""
        while self._running is not None:
            await asyncio.wait([self._running])

    def _add(self, change: Change) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((change, done))
        if self._running is None:
            self._running = loop.create_task(self._run())
        return done

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            error = await self._try(batch)
            if error is not None and len(batch) > 1:
                # One change that the store refuses must not stand in the way of others.
                for one in batch:
                    _settle([one], await self._try([one]))
            else:
                _settle(batch, error)
        self._running = None

    async def _try(self, batch: list[tuple[Change, asyncio.Future[None]]]) -> BaseException | None:
        try:
            await self._store([change for change, _ in batch])
        except Exception as raised:  # noqa: BLE001 (told to every client that waits)
            return raised
        return None


def _settle(batch: list[tuple[Change, asyncio.Future[None]]], error: BaseException | None) -> None:
    for _, done in batch:
        if done.done():
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


def _report(done: asyncio.Future[None]) -> None:
    if done.cancelled():
        return
    error = done.exception()
    if error is not None:
        kind = "store" if isinstance(error, PenstockError) else "unexpected"
        _log.warning("a change that nobody waits for was not stored", error=error, kind=kind)
