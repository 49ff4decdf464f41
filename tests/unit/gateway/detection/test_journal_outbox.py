from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.cep.steps import Publication
from penstock.gateway.detection.journal import Outbox


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


def test_what_was_detected_is_known_after_a_restart() -> None:
    outbox, again = Outbox(), Outbox()
    outbox.put(map(publication, range(5)))
    line = outbox.pass_on([1, 2, 3])
    again.put(map(publication, range(5)))
    again.settle([2])
    assert again.replay(line)
    assert (outbox.detected(), outbox.fresh()) == ([1, 2, 3], [4, 5])
    assert (again.detected(), again.fresh()) == ([1, 3], [4, 5])
    assert again.waiting[3] == replace(publication(2), depth=0)


@given(st.lists(st.sampled_from(["put", "pass", "send"]), max_size=30))
def test_repeated_lines_lead_to_the_same_outbox(steps: list[str]) -> None:
    outbox, again = Outbox(), Outbox()
    for number, step in enumerate(steps):
        line = b""
        if step == "put":
            outbox.put([publication(number)])
            again.put([publication(number)])
        elif step == "pass" and outbox.fresh():
            line = outbox.pass_on(outbox.fresh()[:2])
        elif step == "send" and outbox.detected():
            line = outbox.settle(outbox.detected()[:3])
        assert again.replay(line) is bool(line)
    assert (again.waiting, again.last) == (outbox.waiting, outbox.last)
    assert [*outbox.detected(), *outbox.fresh()] == list(outbox.waiting)
