"""Removals are confirmed by every broker, however late one of them learns it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from penstock.errors import UnavailableError
from penstock.kafka.acls import Acl
from penstock.kafka.drift import confirm_revoked

RULE = Acl("topic", "literal", "t", "read")
OTHER = Acl("topic", "literal", "u", "read")


class LateBroker:
    """Answers as a broker does that hears of a removal after some looks, or not at all."""

    def __init__(self, looks: int, *, silent: int = 0) -> None:
        self.looks = looks
        self.silent = silent
        self.closed = 0
        self.asked: list[str | None] = []

    def acls(self, principal: str | None) -> Iterator[tuple[str, Acl]]:
        self.asked.append(principal)
        if self.silent:
            self.silent -= 1
            raise UnavailableError("it broke off")
        yield ("User:ann", OTHER)
        # Of others, who are not ours to judge.
        yield ("User:bob", RULE)
        yield ("Group:ann", RULE)
        if self.looks:
            self.looks -= 1
            yield ("User:ann", RULE)

    def close(self) -> None:
        self.closed += 1


class Brokers:
    """The brokers of a cluster; some leave it after a number of looks."""

    def __init__(self, brokers: dict[str, LateBroker], leaving: dict[str, int]) -> None:
        self.known = brokers
        self.leaving = leaving
        self.opened: list[str] = []

    def brokers(self) -> list[str]:
        for name, looks in list(self.leaving.items()):
            self.leaving[name] = looks - 1
        return [name for name in self.known if self.leaving.get(name, 1) > 0]

    def connect_broker(self, address: str) -> LateBroker:
        self.opened.append(address)
        return self.known[address]


def confirm(leaving: dict[str, int] | None = None, **brokers: LateBroker) -> Brokers:
    made = Brokers(brokers, leaving or {})
    confirm_revoked(cast("Any", made), {"ann": {OTHER}})
    return made


def test_every_broker_is_asked_until_it_has_lost_the_rule() -> None:
    late = LateBroker(3)
    made = confirm(a=LateBroker(0), b=late, c=LateBroker(1))
    assert sorted(made.opened) == ["a", "b", "c"], "each is logged in at once"
    assert late.looks == 0
    assert [broker.closed for broker in made.known.values()] == [1, 1, 1]


def test_a_broker_that_breaks_off_is_asked_again() -> None:
    made = confirm(a=LateBroker(0), b=LateBroker(1, silent=2))
    assert made.opened.count("b") == 3


def test_a_broker_that_has_left_the_cluster_is_not_waited_for() -> None:
    confirm({"b": 3}, a=LateBroker(0), b=LateBroker(10**9))


@pytest.mark.parametrize(
    ("broker", "told"),
    [
        (LateBroker(10**9), "the broker b still has 1 ACLs that were removed, such as allow read"),
        (LateBroker(0, silent=10**9), "the broker b does not say whether ACLs are gone: it broke"),
    ],
)
def test_what_is_not_confirmed_in_time_is_told(
    monkeypatch: pytest.MonkeyPatch, broker: LateBroker, told: str
) -> None:
    monkeypatch.setattr("penstock.kafka.drift.GONE_SECONDS", 0.1)
    with pytest.raises(UnavailableError, match=told):
        confirm(a=LateBroker(0), b=broker)


def test_many_users_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.kafka.drift.FEW", 0)
    late = LateBroker(2)
    confirm(a=late)
    assert late.asked == [None] * 3
