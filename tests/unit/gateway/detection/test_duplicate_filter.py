from __future__ import annotations

import pytest

from penstock.gateway.detection import duplicate_filter as module
from penstock.gateway.detection.duplicate_filter import DuplicateFilter, Fingerprint, fingerprint_of
from penstock.mqtt import Publish


def mark(
    payload: bytes = b"x",
    *,
    dup: bool = False,
    number: int = 1,
    user: str | None = "alice",
    client: str = "c",
) -> Fingerprint:
    packet = Publish.of("t", payload, qos=2, dup=dup, packet_id=number)
    made = fingerprint_of(user, client, packet)
    assert made is not None
    return made


def test_an_equal_message_that_says_so_is_repeated() -> None:
    repeats = DuplicateFilter()
    assert not repeats.has(mark(dup=True))
    repeats.put(mark())
    assert repeats.has(mark(dup=True))
    assert not repeats.has(mark())
    assert not repeats.has(mark(b"y", dup=True))
    assert not repeats.has(mark(dup=True, number=2))
    assert not repeats.has(mark(dup=True, client="d"))
    assert not repeats.has(mark(dup=True, user="bob"))
    assert not repeats.has(mark(dup=True, user=None))


def test_with_less_than_qos_2_there_is_no_mark() -> None:
    for qos in (0, 1):
        packet = Publish.of("t", b"x", qos=qos, packet_id=qos)
        assert fingerprint_of("alice", "c", packet) is None


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 2)
    repeats = DuplicateFilter()
    for number in (1, 2, 3):
        repeats.put(mark(number=number))
    known = [repeats.has(mark(dup=True, number=number)) for number in (1, 2, 3)]
    assert known == [False, True, True]


def test_the_journal_tells_them_again() -> None:
    repeats = DuplicateFilter()
    assert repeats.replay(mark(client="odd \ud800 one").line())
    assert not repeats.replay(b"something else")
    assert DuplicateFilter(repeats.known).has(mark(client="odd \ud800 one", dup=True))
