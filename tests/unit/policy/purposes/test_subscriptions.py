"""Subscriptions by client, filter, topic and group."""

from __future__ import annotations

import pytest

from penstock.model.topics import parse_subscribed
from penstock.policy.purposes.subscriptions import Subscription, Subscriptions


def add(held: Subscriptions, client: str, text: str, ap: str | None = None) -> Subscription:
    made = Subscription(client, parse_subscribed(text), ap, 1)
    held.add(made)
    return made


@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("cached", [True, False])
def test_matching_is_per_client_and_by_inner_filter(tree: bool, cached: bool) -> None:  # noqa: FBT001
    held = Subscriptions(tree=tree, cached=cached)
    plain = add(held, "one", "a/#")
    shared = add(held, "one", "$share/g/a/#")
    add(held, "one", "b")
    add(held, "two", "a/b")
    for topic in ("a/b", b"a/b"):
        assert set(held.matching("one", topic)) == {plain, shared}
    assert held.matching("nobody", "a/b") == ()
    gone = held.remove("one", "a/#")
    assert gone is plain
    assert not plain.active
    assert held.matching("one", "a/b") == (shared,)
    late = add(held, "one", "+/b")
    assert set(held.matching("one", "a/b")) == {shared, late}
    held.configure(tree=not tree, cached=not cached)
    assert set(held.matching("one", "a/b")) == {shared, late}
    assert len(held) == 4


def test_groups_know_their_members() -> None:
    held = Subscriptions()
    one = add(held, "one", "$share/g/a", "x")
    two = add(held, "two", "$share/g/a", "x")
    add(held, "two", "$share/h/a", "y")
    assert held.group("$share/g/a") == {"one": one, "two": two}
    held.remove("one", "$share/g/a")
    held.remove("two", "$share/g/a")
    assert held.group("$share/g/a") == {}
    assert ("$share/g/a", "") not in held._groups


def test_removing_what_is_not_there() -> None:
    held = Subscriptions()
    assert held.remove("one", "a") is None
    add(held, "one", "a")
    assert held.remove("one", "b") is None
    assert held.remove("one", "a") is not None
    assert held.of("one") == ()
    assert not held._clients
