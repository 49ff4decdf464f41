from __future__ import annotations

import os

import pytest

from penstock.cep.engine import Engine
from penstock.cep.program import Program
from penstock.cep.steps import Publication
from penstock.errors import PenstockError, UnavailableError
from penstock.gateway.detection.journal import Outbox
from penstock.gateway.detection.persistence import DetectionState, fork_snapshot, unpack_state
from penstock.gateway.publications import AppliedSubmissions, Qos2Duplicates


def test_the_state_is_the_one_of_the_moment_it_began() -> None:
    state = [b"x" * 1_000_000]
    child = fork_snapshot(lambda: b"".join(state))
    state[0] = b"changed"
    assert child.read() == b"x" * 1_000_000
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)


def test_a_state_that_cannot_be_saved_is_told() -> None:
    def fail() -> bytes:
        raise RuntimeError("broken on purpose")

    with pytest.raises(UnavailableError, match="could not be saved"):
        fork_snapshot(fail).read()


def test_outbox_and_deduplication_are_packed_with_the_engine() -> None:
    program = Program()
    outbox = Outbox()
    outbox.put(Publication(f"t/{it}", {"n": it}, "a", "s", "p", 1) for it in range(3))
    outbox.settle([1])
    state = DetectionState(
        Engine(program),
        outbox,
        AppliedSubmissions({"neighbour": [3, 5]}),
        Qos2Duplicates({"place": "content"}),
    )
    state.engine.advance(1_800_000_000_000)
    loaded = unpack_state(state.pack(), program)
    assert loaded.engine.save() == state.engine.save()
    assert loaded.engine.now == 1_800_000_000_000
    assert loaded.duplicates.known == state.duplicates.known
    assert loaded.applied_submissions.as_data() == {"neighbour": [3, 5]}
    assert (loaded.outbox.waiting, loaded.outbox.last) == (outbox.waiting, 3)
    assert unpack_state(state.pack(Engine(program).save()), program).engine.now == 0
    with pytest.raises(PenstockError, match="damaged"):
        unpack_state(b"\0\0\0\5nonsense", program)
