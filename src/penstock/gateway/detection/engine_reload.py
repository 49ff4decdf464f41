"""Changed definitions of events, taken over while everything else goes on.

    definitions change ──▶ what they no longer know has ended ──▶ messages that could be events wait
        ──▶ steps are durable ──▶ the state is saved beside, and loaded into a new engine (threads)
        ──▶ stored ──▶ the engines are exchanged, in one step ──▶ what waited goes on

Rules that hold here:
- While it lasts the engine does not change: no message is offered, no timer fires, nobody sets
  a situation by hand. Deliveries and all other messages go on.
- A situation that the new definitions do not have ends at once. So does knowing any, where a
  timer is due meanwhile: it might be an end (`blind`).
- Where definitions change once more, that is taken over before anything goes on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.cep.engine import Engine
from penstock.cep.program import Program
from penstock.errors import UnavailableError
from penstock.gateway.detection.snapshots import fork_snapshot, pack_state
from penstock.store.detection import ClaimLostError
from penstock.telemetry import get_logger

if TYPE_CHECKING:
    from penstock.gateway.detection.engine_host import EngineHost

_log = get_logger("gateway")


class EngineReload:
    """The change from one set of definitions to the next."""

    def __init__(self, detection: EngineHost) -> None:
        self.busy = False
        """Whether messages that could be events have to wait."""
        self.blind = False
        """Whether nothing is known of situations until it is done."""
        self._detection = detection
        self._task: asyncio.Task[None] | None = None
        self._done = asyncio.Event()

    def begin(self) -> None:
        """Take over the definitions that detection has got."""
        self.busy = True
        self._done.clear()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def wait(self) -> None:
        """Wait until it is done."""
        if self.busy:
            await self._done.wait()

    async def finish(self) -> None:
        """Wait until nothing runs any more, in whatever state detection is."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def go_blind(self) -> None:
        """Take note that a timer is due, which cannot fire now."""
        if not self.blind:
            self.blind = True
            self._detection.board.invalidate("definitions are being taken over")
            self._detection.leader.dismiss("definitions are being taken over")

    def end(self) -> None:
        """Let those go on who wait: it is done, or events are not detected any more."""
        self.busy = self.blind = False
        self._done.set()

    async def _run(self) -> None:
        detection = self._detection
        try:
            while (engine := detection.engine) is not None:
                program = detection.program
                if engine.program is program:
                    break
                await self._turn(engine, program)
        finally:
            self._task = None
            self.end()
            detection.leader.begin(detection.deadline)

    async def _turn(self, engine: Engine, program: Program) -> None:
        detection = self._detection
        journal = detection.journal
        try:
            await journal.reach(journal.added)
            number = journal.number
            made, saved = await self._make(engine, program)
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine is made anew
            detection.crash(error)
            return
        if detection.engine is not engine:
            return
        state = pack_state(saved, *detection.beside)
        try:
            await detection.keeping.keep(state, number, list(made.situations()))
        except (UnavailableError, ClaimLostError) as error:
            _log.warning("a state under new definitions was not stored; it will be", error=error)
            detection.keeping.failed(error)
            journal.snapshot_due = True
        if detection.engine is engine and detection.program is program:
            self.blind = False
            detection.exchange(made)

    async def _make(self, engine: Engine, program: Program) -> tuple[Engine, bytes]:
        """Make an engine with another's state; return it with that state as it is then."""
        run = self._detection.run_in_thread
        before = await run(fork_snapshot(engine.save).read)
        made: Engine = await run(Engine.load, program, before)
        return made, await run(fork_snapshot(made.save).read)
