"""The state of detection as the store has it, and how an engine is made from it again.

Rules that hold here:
- A snapshot is the engine's, with the outbox and the receipts before it. Records of steps
  follow it in the order in which they were made; repeated, they give the state that was lost.
- All of this takes its time and waits for the store: it belongs into a thread.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from penstock.cep.engine import Engine
from penstock.cep.program import Program
from penstock.cep.step_result import Publication
from penstock.errors import PenstockError
from penstock.gateway.detection.duplicate_filter import DuplicateFilter
from penstock.gateway.detection.journal import Snapshot
from penstock.gateway.detection.outbox import Outbox
from penstock.gateway.replication.receipts import AppliedSubmissions
from penstock.store.detection import Batch, DetectionStore

_SIZE: Final = 4


class RestoredState(NamedTuple):
    """What detection goes on with."""

    engine: Engine
    outbox: Outbox
    applied_submissions: AppliedSubmissions
    duplicates: DuplicateFilter
    last: int
    """The number of the last batch."""


def rebuild(store: DetectionStore, program: Program) -> RestoredState:
    """Make again what was lost, from what is durable."""
    data, last, batches = store.load()
    outbox, receipts, repeats = Outbox(), AppliedSubmissions(), DuplicateFilter()
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
    engine: bytes, outbox: Outbox, receipts: AppliedSubmissions, repeats: DuplicateFilter
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


def unpack_state(data: bytes) -> tuple[bytes, Outbox, AppliedSubmissions, DuplicateFilter]:
    """Take apart what `pack_state` has joined."""
    size = int.from_bytes(data[:_SIZE], "big")
    outbox = Outbox()
    try:
        head = json.loads(data[_SIZE : _SIZE + size])
        outbox.last = head["last"]
        outbox.waiting = {number: Publication(*rest) for number, *rest in head["waiting"]}
        receipts = AppliedSubmissions(head.get("receipts"))
        repeats = DuplicateFilter(head.get("repeats"))
    except (ValueError, KeyError, TypeError):
        raise PenstockError(
            "the stored state of detection is damaged", fix="restore the store from a backup"
        ) from None
    return data[_SIZE + size :], outbox, receipts, repeats
