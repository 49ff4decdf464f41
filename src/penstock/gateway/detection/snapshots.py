"""The state of detection as the store has it, and how an engine is made from it again.

Rules that hold here:
- A snapshot is the engine's, with the outbox and the receipts before it. Records of steps
  follow it in the order in which they were made; repeated, they give the state that was lost.
- All of this takes its time and waits for the store: it belongs into a thread.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.cep.engine import Engine
from penstock.cep.program import Program
from penstock.cep.step_result import Publication
from penstock.errors import PenstockError, UnavailableError
from penstock.gateway.detection.journal import Snapshot
from penstock.gateway.detection.outbox import Outbox
from penstock.gateway.replication.deduplication import AppliedSubmissions, Qos2Duplicates
from penstock.store.detection import Batch, DetectionStore

_SIZE: Final = 4
_FORK_SECONDS: Final = 120
_STANDARD_FILES: Final = 3


class RestoredState(NamedTuple):
    """What detection goes on with."""

    engine: Engine
    outbox: Outbox
    applied_submissions: AppliedSubmissions
    duplicates: Qos2Duplicates
    last: int
    """The number of the last batch."""


def rebuild(store: DetectionStore, program: Program) -> RestoredState:
    """Make again what was lost, from what is durable."""
    data, last, batches = store.load()
    outbox, receipts, repeats = Outbox(), AppliedSubmissions(), Qos2Duplicates()
    if data is None:
        engine = Engine(program)
    else:
        state, outbox, receipts, repeats = unpack_state(data)
        engine = Engine.load(program, state)
    beside = (outbox, receipts, repeats)
    for batch in batches:
        for line in batch.split(b"\n"):
            if line and not any(it.replay(line) for it in beside):
                outbox.put(engine.replay(line).publications)
    # The definitions may be others than those that the tables were written under.
    store.keep(pack_state(engine.save(), *beside), last, engine.situations())
    return RestoredState(engine, outbox, receipts, repeats, last)


def write(store: DetectionStore, batch: Batch, snapshot: Snapshot | None) -> None:
    """Write a batch durably, and after it a snapshot."""
    if batch.data or batch.transitions or batch.settled:
        store.append(batch)
    if snapshot is not None:
        store.keep(snapshot.data, batch.number, snapshot.standing)


def pack_state(
    engine: bytes, outbox: Outbox, receipts: AppliedSubmissions, repeats: Qos2Duplicates
) -> bytes:
    """Join the state of an engine with what is kept beside it."""
    waiting: list[Any] = [
        [number, it.topic, it.payload, it.action, it.scenario, it.subject, it.depth]
        for number, it in outbox.waiting.items()
    ]
    head = json.dumps(
        {
            "last": outbox.last,
            "waiting": waiting,
            "receipts": receipts.as_data(),
            "repeats": repeats.known,
        }
    ).encode()
    return len(head).to_bytes(_SIZE, "big") + head + engine


def unpack_state(data: bytes) -> tuple[bytes, Outbox, AppliedSubmissions, Qos2Duplicates]:
    """Take apart what `pack_state` has joined."""
    size = int.from_bytes(data[:_SIZE], "big")
    outbox = Outbox()
    try:
        head = json.loads(data[_SIZE : _SIZE + size])
        outbox.last = head["last"]
        outbox.waiting = {number: Publication(*rest) for number, *rest in head["waiting"]}
        receipts = AppliedSubmissions(head.get("receipts"))
        repeats = Qos2Duplicates(head.get("repeats"))
    except (ValueError, KeyError, TypeError):
        raise PenstockError(
            "the stored state of detection is damaged", fix="restore the store from a backup"
        ) from None
    return data[_SIZE + size :], outbox, receipts, repeats


class ForkedSnapshot(NamedTuple):
    """A process that saves."""

    pid: int
    pipe: int

    def read(self) -> bytes:
        """Wait for what it saved; to be called in a thread."""
        with os.fdopen(self.pipe, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        if status:
            raise UnavailableError("the state of detection could not be saved")
        return data


def fork_snapshot(save: Callable[[], bytes]) -> ForkedSnapshot:
    """Begin to save what `save` returns, as of now, in a forked process.

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
