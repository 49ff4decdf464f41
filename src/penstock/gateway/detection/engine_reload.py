"""Reload: an engine takes over the state of another, under changed definitions or without somebody.

    definitions change ──▶ situations that they do not have end ──▶ possible events wait
        ──▶ steps are durable ──▶ the state is saved, and loaded into a new engine (fork, threads)
        ──▶ stored ──▶ the engine is replaced, in one step ──▶ what waited goes on

Rules that hold here:
- During a reload the engine does not change: no message is offered, no timer fires, nobody sets
  a situation by hand. Deliveries and all other messages go on.
- A situation that the new definitions do not have ends at once. Where a timer is due meanwhile,
  no situation is known until the end of the reload (`blind`): the timer might end one.
- Definitions that change once more are reloaded before anything goes on.
- People are forgotten on the way from one engine to the next: the snapshot is stored without
  them, with no step before it left, and none of them is in memory after it. A forked process
  looks first: of whom nothing is kept, only the journal is replaced, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from penstock.cep.engine import Engine
from penstock.cep.program import Program
from penstock.errors import UnavailableError
from penstock.gateway.detection.journal import Journal, Snapshot
from penstock.gateway.detection.persistence import (
    DetectionState,
    JournalWriter,
    StateOwner,
    fork_snapshot,
)
from penstock.store.detection.erasures import PersonToForget
from penstock.store.detection.journal import LeaseLostError
from penstock.telemetry import get_logger

_log = get_logger("gateway")


class EngineOwner(StateOwner, Protocol):
    """The owner of the engine that is replaced."""

    def suspend(self, why: str) -> None:
        """Let no situation be known for a while."""

    def replace_engine(self, engine: Engine) -> None:
        """Detect with an engine that has the same state under changed definitions."""

    def resume(self) -> None:
        """Go on: the reload is over."""


class EngineReload:
    """The change from one set of definitions to the next."""

    def __init__(
        self,
        owner: EngineOwner,
        journal: Journal,
        writer: JournalWriter,
        run_in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self.busy = False
        """Whether messages that could be events have to wait."""
        self.blind = False
        """Whether no situation is known until the end."""
        self._owner = owner
        self._journal = journal
        self._writer = writer
        self._run_in_thread = run_in_thread
        self._program = Program()
        self._people: Sequence[PersonToForget] = ()
        self._forgotten: list[int] | None = None
        """How much was kept of these people, once it is durable that it is gone."""
        self._task: asyncio.Task[None] | None = None
        self._done = asyncio.Event()

    def begin(self, program: Program) -> None:
        """Start to reload with changed definitions."""
        self._program = program
        self.busy = True
        self._done.clear()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def forget(self, people: Sequence[PersonToForget]) -> list[int] | None:
        """Forget people's events; return how much was kept of each, None: it may be still."""
        if await self._keep_without(people):
            return [0] * len(people)
        state = self._owner.state()
        if state is None or self.busy:
            return None
        self._people, self._forgotten = people, None
        self.begin(state.engine.program)
        await self.wait()
        self._people = ()
        return self._forgotten

    async def _keep_without(self, people: Sequence[PersonToForget]) -> bool:
        """Replace the journal by a snapshot if nothing in the state is about these people."""
        journal = self._journal
        await journal.reach(journal.added)
        state = self._owner.state()
        if state is None or self.busy or journal.durable < journal.added:
            return False
        # In this very step: the state is the one after the last batch, and all of it is durable.
        number, child = journal.number, fork_snapshot(partial(_pack_unless, state, people))
        try:
            data: bytes = await self._run_in_thread(child.read)
            if data:
                await self._writer.keep(data, number)
        except (UnavailableError, LeaseLostError):
            return False  # the usual way tells what is wrong
        return bool(data)

    async def wait(self) -> None:
        """Wait for the end of the reload, if there is one."""
        if self.busy:
            await self._done.wait()

    async def finish(self) -> None:
        """Wait until nothing runs any more, in whatever state detection is."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def go_blind(self) -> None:
        """Note that a timer is due, which cannot fire now."""
        if not self.blind:
            self.blind = True
            self._owner.suspend("definitions are being taken over")

    def end(self) -> None:
        """Release those who wait: the reload is over, or events are not detected any more."""
        self.busy = self.blind = False
        self._done.set()

    async def _run(self) -> None:
        try:
            while (state := self._owner.state()) is not None:
                if state.engine.program is self._program and not self._people:
                    break
                await self._reload(state.engine, self._program)
        finally:
            self._task = None
            self.end()
            self._owner.resume()

    async def _reload(self, engine: Engine, program: Program) -> None:
        journal = self._journal
        try:
            await journal.reach(journal.added)
            number = journal.number
            made, saved, counts = await self._make(engine, program)
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine is rebuilt
            self._owner.crash(error)
            return
        state = self._owner.state()
        if state is None or state.engine is not engine:
            return
        snapshot = Snapshot(state.pack(saved), list(made.situations()))
        try:
            await self._writer.store_snapshot(snapshot, number)
        except (UnavailableError, LeaseLostError) as error:
            _log.warning("a state under new definitions was not stored; it will be", error=error)
            self._writer.handle_failure(error)
            journal.snapshot_due = True
            counts = None
        state = self._owner.state()
        if state is not None and state.engine is engine and program is self._program:
            self.blind = False
            self._owner.replace_engine(made)
            self._people, self._forgotten = (), counts

    async def _make(
        self, engine: Engine, program: Program
    ) -> tuple[Engine, bytes, list[int] | None]:
        """Make an engine with another's state; return it with that state as it is then.

        And how much was kept of the people who are forgotten with it, if any are.
        """
        run = self._run_in_thread
        before = await run(fork_snapshot(engine.save).read)
        made: Engine = await run(Engine.load, program, before)
        counts = await run(_forget, made, self._people) if self._people else None
        return made, await run(fork_snapshot(made.save).read), counts


def _pack_unless(state: DetectionState, people: Sequence[PersonToForget]) -> bytes:
    """Return a state as bytes, nothing where it is about some of these people."""
    return b"" if any(_forget(state.engine, people)) else state.pack()


def _forget(engine: Engine, people: Sequence[PersonToForget]) -> list[int]:
    attributes = {name for it in people for name in it.attributes}
    found = engine.forget((it.person for it in people), attributes)
    return [found[it.person] for it in people]
