"""What runs beside the messages: tasks of the loop, and threads that wait for the store.

Rules that hold here:
- Nothing that waits for the store runs on the loop.
- A task that fails is logged, unless it failed because the store is away: who asked for it
  knows that already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.errors import UnavailableError
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
