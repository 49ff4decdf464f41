"""What the loop of a gateway runs: work beside the messages, the clock, the engine's timer.

    wall clock ahead of us ──▶ we follow at once (after a jump: an alarm)
    wall clock behind us   ──▶ we go on, a sixteenth slower, until it has caught up

Rules that hold here:
- Nothing that waits for the store runs on the loop. A task that fails is logged, unless it failed
  because the store is away: who asked for it knows that already.
- Changes of clients reach the store in the order in which they were given. At most one
  transaction runs at a time; what comes meanwhile goes into the next. So a thousand clients that
  subscribe at once wait for a few transactions, not for a thousand. A change that cannot be
  stored fails for its client, never in silence.
- One time for policies, events and timers, so that they agree on what is over. It never stands
  still for long and never goes back: a window that has run out stays so, and one that runs does
  run out, whatever is done to the wall clock. After a restart it goes on from the latest time
  that detection knows.
- While the wall clock is behind, `ahead` says by how much: others tell times by their wall
  clocks, and a true time must not pass for one that is long over.
- The timer has one handle on the loop, for the earliest moment. A moment that moves back costs
  nothing: the loop wakes too early and schedules anew. Whoever decides something compares `due`
  first: a timer takes effect on time, whether the loop came to it or not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from penstock.clock import boot_clock
from penstock.errors import PenstockError, UnavailableError
from penstock.telemetry import get_logger, metrics

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


_JUMP_MS: Final = 60_000
_SLOWER: Final = 16

_JUMPS = metrics.counter(
    "penstock_gateway_clock_jumps",
    "Times that the wall clock moved by more than a minute on its own.",
    direction=("forward", "back"),
)


class Clock:
    """Tells the time; one for each gateway."""

    __slots__ = ("_behind", "_boot", "_held", "_steady", "_wall", "ahead")

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = boot_clock
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._boot = steady()
        self._held = int(wall() * 1000)
        self._behind = False
        self.ahead = 0
        """How far the time that was told last is ahead of the wall clock, in milliseconds."""

    def now(self) -> int:
        """Return the time, in milliseconds since 1970."""
        wall, boot = int(self._wall() * 1000), self._steady()
        passed = int((boot - self._boot) * 1000)
        # At the least: how far we go on our own, however seldom we are asked.
        least = self._held + (passed - passed // _SLOWER if passed >= _SLOWER else 0)
        if wall >= least:
            if wall - self._held - passed > _JUMP_MS and not self._behind:
                self._tell("forward", wall - self._held - passed)
            self._behind = False
            self._held, self._boot = wall, boot
        elif passed >= _SLOWER:
            if self._held - wall > _JUMP_MS and not self._behind:
                self._behind = True
                self._tell("back", self._held - wall)
            self._held, self._boot = least, boot
        self.ahead = self._held - wall
        return self._held

    def go_on_from(self, at: int) -> None:
        """Take note of a time that was told before: earlier ones are over."""
        self._held = max(self._held, at)

    @staticmethod
    def _tell(direction: str, milliseconds: int) -> None:
        _JUMPS[direction].inc()
        _log.warning("the clock has jumped", kind=direction, seconds=milliseconds // 1000)


NEVER: Final = 1 << 62
_LONGEST: Final = 3600.0


class EngineTimer:
    """Calls `fire` when the engine's next timer is due."""

    def __init__(self, fire: Callable[[], None]) -> None:
        self.due = NEVER
        """When the next timer is due, in milliseconds since 1970."""
        self._fire = fire
        self._wakes_at = NEVER
        self._handle: asyncio.TimerHandle | None = None

    def schedule(self, due: int | None, now: int) -> None:
        """Wake the loop when the next timer is due; None: there is none."""
        self.due = NEVER if due is None else due
        if self.due >= self._wakes_at:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._wakes_at = self.due
        seconds = min(max(self.due - now, 0) / 1000, _LONGEST)
        self._handle = asyncio.get_running_loop().call_later(seconds, self.ring)

    def ring(self) -> None:
        """Fire what is due, now."""
        self._wakes_at = NEVER
        self._fire()

    def clear(self) -> None:
        """Forget the next timer: there is no engine."""
        self.due = NEVER

    def cancel(self) -> None:
        """Wake the loop no more."""
        if self._handle is not None:
            self._handle.cancel()
