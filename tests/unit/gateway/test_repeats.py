from __future__ import annotations

import pytest

from penstock.gateway import repeats as module
from penstock.gateway.repeats import Repeats
from penstock.gateway.session import Session
from penstock.mqtt import Publish

SESSION = Session("c", "alice", 0)


def publish(payload: bytes = b"x", *, qos: int = 2, dup: bool = False, number: int = 1) -> Publish:
    return Publish.of("t", payload, qos=qos, dup=dup, packet_id=number)


def test_an_equal_message_that_says_so_is_repeated() -> None:
    repeats = Repeats()
    assert not repeats.has(SESSION, publish(dup=True))
    repeats.note(SESSION, publish())
    assert repeats.has(SESSION, publish(dup=True))
    assert not repeats.has(SESSION, publish())
    assert not repeats.has(SESSION, publish(b"y", dup=True))
    assert not repeats.has(SESSION, publish(dup=True, number=2))
    assert not repeats.has(Session("d", "alice", 0), publish(dup=True))
    assert not repeats.has(Session("c", "bob", 0), publish(dup=True))


def test_with_qos_1_nothing_is_remembered() -> None:
    repeats = Repeats()
    repeats.note(SESSION, publish(qos=1))
    assert not repeats.has(SESSION, publish(qos=1, dup=True))
    assert not repeats.has(SESSION, publish(dup=True))


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LIMIT", 2)
    repeats = Repeats()
    for number in (1, 2, 3):
        repeats.note(SESSION, publish(number=number))
    known = [repeats.has(SESSION, publish(dup=True, number=number)) for number in (1, 2, 3)]
    assert known == [False, True, True]
