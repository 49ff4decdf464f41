"""Compares what a cluster has with what the definitions say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from penstock.kafka.cluster import PRINCIPAL
from penstock.kafka.rules import Rule, WantedAccess
from penstock.store.kafka_users import KafkaUser


@dataclass(slots=True)
class Differences:
    """What differs, from the side of the definitions.

    `missing` and `extra` are rules of users that Penstock keeps; `foreign` rules are of
    principals that nobody declared, and are left alone unless that is wanted.
    """

    missing: list[tuple[str, Rule]] = field(default_factory=list)
    extra: list[tuple[str, Rule]] = field(default_factory=list)
    foreign: list[tuple[str, Rule]] = field(default_factory=list)
    users_to_put: list[str] = field(default_factory=list)
    users_to_remove: list[str] = field(default_factory=list)
    without_password: list[str] = field(default_factory=list)
    foreign_users: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Defined users whose names belong to Penstock itself; nothing is done for them."""
    undeclared: list[tuple[str, str]] = field(default_factory=list)
    """Views with the roles they name that nobody declared, where roles are declared at all."""
    holders: Counter[Rule] = field(default_factory=Counter)
    """How many principals have a rule, where all rules were looked at."""

    @property
    def is_empty(self) -> bool:
        """Say whether the cluster has what the definitions say, foreign things aside."""
        return not (self.missing or self.extra or self.users_to_put or self.users_to_remove)

    def as_data(self) -> dict[str, Any]:
        """Return them as JSON can hold them."""
        return {
            "missing": [_data(user, rule) for user, rule in self.missing],
            "extra": [_data(user, rule) for user, rule in self.extra],
            "foreign": [_data(principal, rule) for principal, rule in self.foreign],
            "users_to_put": self.users_to_put,
            "users_to_remove": self.users_to_remove,
            "without_password": self.without_password,
            "foreign_users": self.foreign_users,
            "refused": self.refused,
            "undeclared": [{"view": view, "role": role} for view, role in self.undeclared],
        }


def compare_rules(
    found: Differences,
    wanted: WantedAccess,
    users: Iterable[str],
    rules: Iterable[tuple[str, Rule]],
) -> None:
    """Add to `found` how the rules of a cluster differ from those wanted for these users."""
    held: dict[str, set[Rule]] = {user: set() for user in users}
    for principal, rule in rules:
        found.holders[rule] += 1
        mine = held.get(principal.removeprefix(PRINCIPAL))
        if mine is None or not principal.startswith(PRINCIPAL):
            found.foreign.append((principal, rule))
        else:
            mine.add(rule)
    found.foreign.sort()
    for user in sorted(held):
        have, want = held.pop(user), wanted.rules(user)
        if have != want:
            found.missing += [(user, rule) for rule in sorted(want - have)]
            found.extra += [(user, rule) for rule in sorted(have - want)]


def find_undeclared(wanted: WantedAccess) -> list[tuple[str, str]]:
    """Return views with the roles they name that are not declared, though others are.

    That is no error: roles may be declared one by one, before and after the views that name
    them. But it may be a slip of the pen.
    """
    if not wanted.roles:
        return []
    return sorted(
        (view.name, role)
        for view in wanted.views.values()
        for role in view.roles
        if role not in wanted.roles
    )


def compare_users(
    found: Differences,
    defined: Iterable[str],
    kept: Mapping[str, KafkaUser],
    there: AbstractSet[str],
    own: AbstractSet[str],
) -> None:
    """Add to `found` how the users of a cluster differ from those defined."""
    mine = set(defined)
    for name in sorted(mine):
        row = kept.get(name)
        if row is not None and row.credential is not None:
            if row.is_pending or name not in there:
                found.users_to_put.append(name)
        elif name not in there:
            found.without_password.append(name)
    found.users_to_remove += sorted(kept.keys() - mine)
    found.foreign_users += sorted(there - mine - kept.keys() - own)


def _data(who: str, rule: Rule) -> dict[str, str]:
    return {"who": who, **rule._asdict()}
