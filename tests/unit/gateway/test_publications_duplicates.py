from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway import publications
from penstock.gateway.publications import (
    FOLLOWERS,
    AppliedSubmissions,
    Fingerprint,
    Qos2Duplicates,
    SubmissionId,
    fingerprint_of,
)
from penstock.mqtt import Publish

NAMES = ("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb")


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 40), st.integers(0, 20))))
def test_what_may_be_asked_again_is_known_exactly(steps: list[tuple[str, int, int]]) -> None:
    """Against a model that forgets nothing: exact for every number that is still open."""
    applied = AppliedSubmissions()
    taken: set[tuple[str, int]] = set()
    oldest = dict.fromkeys(NAMES, 1)
    lines = []
    for name, ahead, closed in steps:
        oldest[name] += closed
        submission = SubmissionId(name, oldest[name] + ahead, oldest[name])
        applied.put(submission)
        lines.append(submission.line())
        taken.add((name, submission.number))
    again = AppliedSubmissions()
    assert all(again.replay(line) for line in lines)
    restored = AppliedSubmissions(applied.as_data())
    for it in (applied, again, restored):
        for name in NAMES:
            for number in range(oldest[name], oldest[name] + 100):
                assert it.has(SubmissionId(name, number, 0)) == ((name, number) in taken)


def test_they_stay_few() -> None:
    applied = AppliedSubmissions()
    for number in range(1, 10_000):
        applied.put(SubmissionId(NAMES[0], number, max(1, number - 3)))
    assert len(applied.as_data()[NAMES[0]]) < 100
    for number in range(2 * FOLLOWERS):
        applied.put(SubmissionId(f"{number:016x}", 1, 1))
    assert len(applied.as_data()) == FOLLOWERS


def test_other_lines_are_not_theirs() -> None:
    assert not AppliedSubmissions().replay(b"#done 1,2")
    assert not AppliedSubmissions().replay(b'{"at":1}')


def fingerprint(
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
    duplicates = Qos2Duplicates()
    assert not duplicates.has(fingerprint(dup=True))
    duplicates.put(fingerprint())
    assert duplicates.has(fingerprint(dup=True))
    assert not duplicates.has(fingerprint())
    assert not duplicates.has(fingerprint(b"y", dup=True))
    assert not duplicates.has(fingerprint(dup=True, number=2))
    assert not duplicates.has(fingerprint(dup=True, client="d"))
    assert not duplicates.has(fingerprint(dup=True, user="bob"))
    assert not duplicates.has(fingerprint(dup=True, user=None))


def test_with_less_than_qos_2_there_is_no_fingerprint() -> None:
    for qos in (0, 1):
        packet = Publish.of("t", b"x", qos=qos, packet_id=qos)
        assert fingerprint_of("alice", "c", packet) is None


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publications, "FINGERPRINTS", 2)
    duplicates = Qos2Duplicates()
    for number in (1, 2, 3):
        duplicates.put(fingerprint(number=number))
    known = [duplicates.has(fingerprint(dup=True, number=number)) for number in (1, 2, 3)]
    assert known == [False, True, True]


def test_the_journal_tells_them_again() -> None:
    duplicates = Qos2Duplicates()
    assert duplicates.replay(fingerprint(client="odd \ud800 one").line())
    assert not duplicates.replay(b"something else")
    assert Qos2Duplicates(duplicates.known).has(fingerprint(client="odd \ud800 one", dup=True))
