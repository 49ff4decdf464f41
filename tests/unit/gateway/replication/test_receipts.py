from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.replication.receipts import NEIGHBOURS, AppliedSubmissions, SubmissionId

NAMES = ("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb")


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 40), st.integers(0, 20))))
def test_what_may_be_asked_again_is_known_exactly(steps: list[tuple[str, int, int]]) -> None:
    """Against a model that forgets nothing: exact for every number that is still open."""
    receipts = AppliedSubmissions()
    taken: set[tuple[str, int]] = set()
    oldest = dict.fromkeys(NAMES, 1)
    lines = []
    for name, ahead, closed in steps:
        oldest[name] += closed
        receipt = SubmissionId(name, oldest[name] + ahead, oldest[name])
        receipts.put(receipt)
        lines.append(receipt.line())
        taken.add((name, receipt.number))
    again = AppliedSubmissions()
    assert all(again.replay(line) for line in lines)
    restored = AppliedSubmissions(receipts.as_data())
    for it in (receipts, again, restored):
        for name in NAMES:
            for number in range(oldest[name], oldest[name] + 100):
                assert it.has(SubmissionId(name, number, 0)) == ((name, number) in taken)


def test_they_stay_few() -> None:
    receipts = AppliedSubmissions()
    for number in range(1, 10_000):
        receipts.put(SubmissionId(NAMES[0], number, max(1, number - 3)))
    assert len(receipts.as_data()[NAMES[0]]) < 100
    for number in range(2 * NEIGHBOURS):
        receipts.put(SubmissionId(f"{number:016x}", 1, 1))
    assert len(receipts.as_data()) == NEIGHBOURS


def test_other_lines_are_not_theirs() -> None:
    assert not AppliedSubmissions().replay(b"#done 1,2")
    assert not AppliedSubmissions().replay(b'{"at":1}')
