"""Persistence of detection: who may write, the journal and snapshots, and how state is restored.

    steps ──▶ Journal ──▶ JournalWriter ──▶ store: batches ──▶ restore ──▶ DetectionState
                               └── fork ──▶ store: snapshot ──┘

Rules that hold here:
- The holder of the leader lease detects for all gateways that share a store. It is held for so many
  seconds after the last renewal was sent, by a clock that goes on while the machine sleeps.
  Sending, not answering, is when the time begins.
- Every write to the store renews it; where nothing is written, it is renewed by itself.
- A process of this machine that was killed delays nobody: that it is gone is looked up. Of
  processes elsewhere it is only known that they no longer renew.
- A gateway that finds it in the hands of another has written nothing.
- A snapshot has the engine's state, the outbox and the records of deduplication. The batches
  after it, replayed in order, restore the state that was lost.
- A batch is written when all followers have acknowledged it: nothing is on record that another
  gateway could contradict. A snapshot as of a batch is stored after that batch, never before.
- A snapshot of a running engine is taken in a forked process, so that steps go on.
- A store that does not answer ends the lease, and with it detection.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import re
import secrets
import signal
import socket
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import psutil

from penstock.cep.engine import Engine
from penstock.cep.program import Program
from penstock.cep.steps import Publication
from penstock.clock import boot_clock
from penstock.errors import PenstockError, UnavailableError
from penstock.gateway.detection.journal import Outbox, Snapshot
from penstock.gateway.publications import AppliedSubmissions, Qos2Duplicates
from penstock.store.detection.journal import (
    HOLDER_BYTES,
    DetectionStore,
    JournalBatch,
    LeaderRecord,
    LeaseLostError,
)
from penstock.telemetry import get_logger

_RENEWALS: Final = 3
_MARK_LENGTH: Final = HOLDER_BYTES  # half of a holder's digits
_PROCESS: Final = re.compile(r", process ([0-9]{1,9})$")


def make_place() -> str:
    """Say where this process runs, for people."""
    return f"{socket.gethostname()}, process {os.getpid()}"


def make_holder() -> str:
    """Name this process as a holder: what it runs on first, so that others there know it."""
    return _machine_mark(os.getpid()) + secrets.token_hex(_MARK_LENGTH // 2)


def is_gone(leader: LeaderRecord) -> bool:
    """Say whether a holder was a process of this machine that is no more."""
    found = _PROCESS.search(leader.place)
    if found is None:
        return False
    pid = int(found[1])
    return leader.holder.startswith(_machine_mark(pid)) and not _runs(pid)


def _runs(pid: int) -> bool:
    """Say whether a process runs; one that was killed and only waits to be counted does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return psutil.pid_exists(pid)


def _machine_mark(pid: int) -> str:
    """Return a mark of a process number on this machine, since it started, as seen from here."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        # Nothing tells this machine from others: then nobody is known to be gone.
        return secrets.token_hex(_MARK_LENGTH // 2)
    return hashlib.sha256(f"{boot} {space} {pid}".encode()).hexdigest()[:_MARK_LENGTH]


class LeaderLease:
    """The lease, as one gateway holds it or not."""

    def __init__(
        self, store: DetectionStore, seconds: float, run_in_thread: Callable[..., Awaitable[Any]]
    ) -> None:
        self.seconds = seconds
        self.renewal_seconds = seconds / _RENEWALS
        """How long it may go without a renewal."""
        self._store = store
        self._run_in_thread = run_in_thread
        self._renewed = float("-inf")
        self.others_until = 0.0
        """Until when followers may rely on the state of the last holder, by `boot_clock`."""

    @property
    def is_held(self) -> bool:
        """Whether no other gateway can hold it."""
        return boot_clock() <= self._renewed + self.seconds

    @property
    def is_due(self) -> bool:
        """Whether it is time to renew it."""
        return boot_clock() >= self._renewed + self.renewal_seconds

    async def acquire(self) -> LeaderRecord | None:
        """Acquire or renew it; return its holder, if that is another gateway."""
        mine = self._store.holder
        instead_of, told_for = "", 0.0
        if not self.is_held:
            held: LeaderRecord | None = await self._run_in_thread(self._store.find)
            if held is not None and held.holder != mine:
                gone = is_gone(held)
                if not gone and not self._store.is_free(held):
                    return held
                instead_of = held.holder if gone else ""
                told_for = held.told_for / 1000
                if self._store.is_free(held, told_for):
                    told_for = 0.0  # Its end was so long ago that nobody relies on its state.
        sent = boot_clock()
        held = await self._run_in_thread(self._store.acquire, instead_of)
        if held is not None and held.holder != mine:
            return held
        self.renew(sent)
        if told_for:
            self.others_until = boot_clock() + told_for
        return None

    def renew(self, sent: float) -> None:
        """Note a renewal that was sent at a moment."""
        self._renewed = max(self._renewed, sent)

    async def release(self) -> None:
        """Release it, so that another gateway need not wait for its end."""
        await self._run_in_thread(self._store.release)
        self._renewed = float("-inf")


_SIZE: Final = 4
_FORK_SECONDS: Final = 120
_STANDARD_FILES: Final = 3
_log = get_logger("gateway")


class DetectionState(NamedTuple):
    """All that a snapshot saves and the journal restores."""

    engine: Engine
    outbox: Outbox
    applied_submissions: AppliedSubmissions
    duplicates: Qos2Duplicates

    def pack(self, engine: bytes | None = None) -> bytes:
        """Return the state as bytes, with the engine's own as it is now or was saved."""
        waiting: list[Any] = [
            [number, it.topic, it.payload, it.action, it.scenario, it.subject, it.depth]
            for number, it in self.outbox.waiting.items()
        ]
        head = json.dumps(
            {
                "last": self.outbox.last,
                "waiting": waiting,
                "receipts": self.applied_submissions.as_data(),
                "repeats": self.duplicates.known,
            }
        ).encode()
        saved = self.engine.save() if engine is None else engine
        return len(head).to_bytes(_SIZE, "big") + head + saved

    def replay(self, line: bytes) -> None:
        """Replay a line of the journal."""
        if not (
            self.outbox.replay(line)
            or self.applied_submissions.replay(line)
            or self.duplicates.replay(line)
        ):
            self.outbox.put(self.engine.replay(line).publications)


def unpack_state(data: bytes, program: Program) -> DetectionState:
    """Read a state that was packed."""
    size = int.from_bytes(data[:_SIZE], "big")
    outbox = Outbox()
    try:
        head = json.loads(data[_SIZE : _SIZE + size])
        outbox.last = head["last"]
        outbox.waiting = {number: Publication(*rest) for number, *rest in head["waiting"]}
        applied_submissions = AppliedSubmissions(head.get("receipts"))
        duplicates = Qos2Duplicates(head.get("repeats"))
    except (ValueError, KeyError, TypeError):
        raise PenstockError(
            "the stored state of detection is damaged", fix="restore the store from a backup"
        ) from None
    engine = Engine.load(program, data[_SIZE + size :])
    return DetectionState(engine, outbox, applied_submissions, duplicates)


def restore(store: DetectionStore, program: Program) -> tuple[DetectionState, int]:
    """Restore the state from snapshot and journal; return it with the number of the last batch."""
    data, last, batches = store.load()
    if data is None:
        state = DetectionState(Engine(program), Outbox(), AppliedSubmissions(), Qos2Duplicates())
    else:
        state = unpack_state(data, program)
    for batch in batches:
        for line in batch.split(b"\n"):
            if line:
                state.replay(line)
    # The definitions may be others than those that the tables were written under.
    store.keep(state.pack(), last, state.engine.situations())
    return state, last


class ForkedSnapshot(NamedTuple):
    """A child process that saves a snapshot, and the pipe that it writes to."""

    pid: int
    pipe: int

    def read(self) -> bytes:
        """Return the snapshot when the child is done; call it in a thread."""
        with os.fdopen(self.pipe, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        if status:
            raise UnavailableError("the state of detection could not be saved")
        return data


def fork_snapshot(save: Callable[[], bytes]) -> ForkedSnapshot:
    """Start to save what `save` returns, as of now, in a forked process.

        fork ──▶ child: the state as it was in this step ──▶ bytes through a pipe ──▶ exit
          └────▶ parent goes on at once; a thread reads the pipe

    The child has the state of exactly one step, because memory is copied on write. It touches
    neither the loop nor any socket or file of its parent: it closes all first. It ends by
    itself: when it is done, when nobody reads, or after a while.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Later Pythons warn of other threads' locks. The child takes none: it computes and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(writing)
        return ForkedSnapshot(pid, reading)
    status = 1
    try:
        gc.disable()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_FORK_SECONDS)
        os.closerange(_STANDARD_FILES, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        data = memoryview(save())
        while data:
            data = data[os.write(writing, data) :]
        status = 0
    finally:
        os._exit(status)


class StateOwner(Protocol):
    """The owner of the state that is saved."""

    def state(self) -> DetectionState | None:
        """Return the state after the last step; None where events are not detected."""

    def crash(self, error: Exception) -> None:
        """Discard the state: it cannot be saved."""

    def invalidate(self, cause: str, trouble: str) -> None:
        """Stop to detect: the state cannot be made durable."""


class JournalWriter:
    """Writes the journal of one gateway, and its snapshots."""

    def __init__(
        self,
        owner: StateOwner,
        store: DetectionStore,
        lease: LeaderLease,
        *,
        wait_replicated: Callable[[], Awaitable[bool]],
        run_in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._owner = owner
        self._store = store
        self._lease = lease
        self._wait_replicated = wait_replicated
        self._run_in_thread = run_in_thread
        self._forked: asyncio.Task[None] | None = None

    async def write(self, batch: JournalBatch, snapshot: Snapshot | None) -> None:
        """Write a batch when all followers know it, and after it a snapshot."""
        await self._wait_replicated()
        sent = boot_clock()
        await self._run_in_thread(_write_batch, self._store, batch, snapshot)
        self._lease.renew(sent)

    def snapshot(self) -> Snapshot | None:
        """Return the state after all that was added; None where there is none."""
        state = self._owner.state()
        if state is None:
            return None
        try:
            return Snapshot(state.pack(), list(state.engine.situations()))
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine is rebuilt
            self._owner.crash(error)
            return None

    def fork_snapshot(self, number: int, durable: Awaitable[bool]) -> None:
        """Start to save the state as of a batch, which `durable` waits for."""
        state = self._owner.state()
        if state is None or self._forked is not None:
            return
        store = self._store_forked(fork_snapshot(state.pack), number, durable)
        self._forked = asyncio.get_running_loop().create_task(store)

    async def store_snapshot(self, snapshot: Snapshot, number: int) -> None:
        """Store a state as of a batch, with the situations that hold in it."""
        await self._run_in_thread(self._store.keep, snapshot.data, number, snapshot.situations)

    async def keep(self, data: bytes, number: int) -> None:
        """Store a state as of a batch; there may be later ones."""
        await self._run_in_thread(self._store.keep, data, number)

    async def finish(self, seconds: float) -> None:
        """Give a forked snapshot some time to be stored."""
        if self._forked is not None:
            await asyncio.wait([self._forked], timeout=seconds)

    async def _store_forked(
        self, child: ForkedSnapshot, number: int, durable: Awaitable[bool]
    ) -> None:
        try:
            data = await self._run_in_thread(child.read)
            if await durable:
                await self._run_in_thread(self._store.keep, data, number)
        except (UnavailableError, LeaseLostError) as error:
            _log.warning("a snapshot was not stored; the next one will be", error=error)
        finally:
            self._forked = None

    def handle_failure(self, error: Exception) -> None:
        """Stop to detect where the lease is lost, or over."""
        if isinstance(error, LeaseLostError):
            self._owner.invalidate("lease", "another gateway detects")
        elif not self._lease.is_held:
            self._owner.invalidate("store", "the store does not answer")


def _write_batch(store: DetectionStore, batch: JournalBatch, snapshot: Snapshot | None) -> None:
    """Write a batch durably, and after it a snapshot."""
    if batch.data or batch.transitions or batch.settled:
        store.append(batch)
    if snapshot is not None:
        store.keep(snapshot.data, batch.number, snapshot.situations)
