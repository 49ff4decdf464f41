"""Subscriptions by client, filter and group."""

from __future__ import annotations

from penstock.model.topics import parse_subscribed
from penstock.policy.purposes.subscriptions import Subscription, Subscriptions


def add(held: Subscriptions, client: str, text: str, ap: str | None = None) -> Subscription:
    made = Subscription(client, parse_subscribed(text), ap, 1)
    held.add(made)
    return made


def test_subscriptions_are_kept_per_client_as_they_were_written() -> None:
    held = Subscriptions()
    plain = add(held, "one", "a/#")
    shared = add(held, "one", "$share/g/a/#")
    other = add(held, "two", "a/b")
    assert held.of("one") == (plain, shared)
    assert held.of("nobody") == ()
    gone = held.remove("one", "a/#")
    assert gone is plain
    assert not plain.active
    assert set(held) == {shared, other}
    assert len(held) == 2


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
