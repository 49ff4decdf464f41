"""Which presubscription speaks for a plain subscription."""

from __future__ import annotations

import pytest

from penstock.model.topics import parse_subscribed
from penstock.policy.purposes.subscriptions import Presubscriptions


def find(stored: list[str], text: str) -> str | None:
    held = Presubscriptions()
    for filter_ in stored:
        held.set("client", filter_, f"for {filter_}")
    found = held.find("client", parse_subscribed(text))
    return found.filter if found else None


@pytest.mark.parametrize(
    ("stored", "text", "expected"),
    [
        (["a/#"], "a/#", "a/#"),
        (["a/#"], "a/b", "a/#"),
        (["a/#"], "a", "a/#"),
        (["a/b"], "a/#", None),
        (["a/+"], "a/#", None),
        (["#"], "$SYS/x", None),
        (["#", "a/#", "a/+/c"], "a/b/c", "a/+/c"),
        (["+/b", "a/+"], "a/b", "a/+"),
        (["+/#", "#"], "#", "#"),
        (["#", "+/#"], "+/#", "+/#"),
        (["a/#"], "$share/g/a/b", "a/#"),
        (["a/#", "$share/g/a/b"], "$share/g/a/b", "$share/g/a/b"),
        (["$share/g/a/b"], "a/b", None),
        (["$share/g/a/b"], "$share/h/a/b", None),
    ],
)
def test_the_narrowest_that_covers_speaks(
    stored: list[str], text: str, expected: str | None
) -> None:
    assert find(stored, text) == expected
    assert find(stored[::-1], text) == expected


def test_each_client_has_its_own() -> None:
    held = Presubscriptions()
    held.set("one", "a", "x")
    assert held.find("two", parse_subscribed("a")) is None


def test_storing_again_overwrites_and_none_removes() -> None:
    held = Presubscriptions()
    held.set("one", "a", "x")
    held.set("one", "a", "y")
    found = held.get("one", "a")
    assert found is not None
    assert (found.ap, len(held)) == ("y", 1)
    held.set("one", "a", None)
    held.set("one", "never", None)
    assert len(held) == 0
    assert not held._clients
