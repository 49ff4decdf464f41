from __future__ import annotations

import pytest

from penstock.cep.outcome import Publication
from penstock.errors import PenstockError
from penstock.gateway import outbox as outboxes
from penstock.gateway.detection_state import pack_state, unpack_state
from penstock.gateway.outbox import Outbox
from penstock.gateway.sharing.receipts import Receipts


def publication(number: int) -> Publication:
    return Publication(f"t/{number}", {"n": number}, "a", "s", "p", 1)


def test_what_is_repeated_gets_the_same_numbers() -> None:
    first, second = Outbox(), Outbox()
    first.put(map(publication, range(3)))
    line = first.settle([2])
    assert not second.replay(b'{"at":1}')
    second.put(map(publication, range(3)))
    assert second.replay(line)
    assert second.waiting == first.waiting == {1: publication(0), 3: publication(2)}
    assert second.last == 3


def test_it_is_saved_beside_the_engine() -> None:
    outbox = Outbox()
    outbox.put(map(publication, range(3)))
    outbox.settle([1])
    receipts = Receipts({"neighbour": [3, 5]})
    engine, loaded, known = unpack_state(pack_state(b"engine", outbox, receipts))
    assert engine == b"engine"
    assert known.as_data() == {"neighbour": [3, 5]}
    assert (loaded.waiting, loaded.last) == (outbox.waiting, 3)
    with pytest.raises(PenstockError, match="damaged"):
        unpack_state(b"\0\0\0\5nonsense")


def test_the_oldest_are_given_up_where_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "LIMIT", 2)
    outbox = Outbox()
    outbox.put(map(publication, range(5)))
    assert list(outbox.waiting) == [4, 5]
    assert outbox.given_up == 3
