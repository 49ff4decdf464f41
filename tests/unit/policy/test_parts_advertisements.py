"""What a client has advertised, found by topic."""

from __future__ import annotations

import pytest

from penstock.policy.parts import LIMIT, Advertisements


@pytest.fixture
def held() -> Advertisements:
    made = Advertisements()
    assert made.put("c", "home/+/vitals", None)
    assert made.put("c", "home/p1/#", 10.0)
    return made


def entitled(_: str) -> bool:
    return True


def test_it_covers_until_it_ends(held: Advertisements) -> None:
    assert held.cover("c", "home/p1/door", 9.0, entitled)
    assert not held.cover("c", "home/p1/door", 10.0, entitled)
    assert not held.cover("c", "home/p1/door", 9.0, entitled)
    assert held.cover("c", "home/p1/vitals", 10.0, entitled)
    held.withdraw("c", "home/+/vitals")
    held.withdraw("c", "home/+/other")
    assert not held.cover("c", "home/p1/vitals", 10.0, entitled)


def test_the_right_to_it_is_asked_for_of_each_that_fits(held: Advertisements) -> None:
    asked: list[str] = []

    def refuse(filter_: str) -> bool:
        asked.append(filter_)
        return False

    assert not held.cover("c", "home/p1/vitals", 1.0, refuse)
    assert sorted(asked) == ["home/+/vitals", "home/p1/#"]
    assert not held.cover("d", "home/p1/vitals", 1.0, entitled)


def test_a_message_asks_nothing_of_the_others(held: Advertisements) -> None:
    """Each took its time at every message: a thousand of them kept the gateway busy."""
    for number in range(LIMIT - 2):
        assert held.put("c", f"garden/g{number}/+/#", None)
    assert not held.put("c", "one/more", None)
    assert held.put("c", "garden/g1/+/#", 5.0)
    asked: list[str] = []

    def refuse(filter_: str) -> bool:
        asked.append(filter_)
        return False

    assert not held.cover("c", "garden/g2/x/y", 1.0, refuse)
    assert asked == ["garden/g2/+/#"]
    held.end("c")
    assert not held.cover("c", "garden/g2/x/y", 1.0, entitled)
