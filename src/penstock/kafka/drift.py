"""Drift: how a cluster differs from what the definitions say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from penstock.kafka.acls import Acl, WantedAccess
from penstock.kafka.cluster import PRINCIPAL
from penstock.store.kafka_users import KafkaUser


@dataclass(slots=True)
class Drift:
    """What differs, from the side of the definitions.

    `missing` and `extra` are ACLs of users that Penstock owns; `foreign` ACLs belong to
    principals that nobody declared, and are left alone unless pruning is asked for.
    """

    missing: list[tuple[str, Acl]] = field(default_factory=list)
    extra: list[tuple[str, Acl]] = field(default_factory=list)
    foreign: list[tuple[str, Acl]] = field(default_factory=list)
    users_to_put: list[str] = field(default_factory=list)
    users_to_remove: list[str] = field(default_factory=list)
    without_password: list[str] = field(default_factory=list)
    foreign_users: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Defined users whose names belong to Penstock itself; nothing is done for them."""
    undeclared: list[tuple[str, str]] = field(default_factory=list)
    """Views with the roles they name that nobody declared, where roles are declared at all."""
    holders: Counter[Acl] = field(default_factory=Counter)
    """How many principals have an ACL, where all ACLs were read."""

    @property
    def is_empty(self) -> bool:
        """Say whether the cluster has what the definitions say, foreign things aside."""
        return not (self.missing or self.extra or self.users_to_put or self.users_to_remove)

    def as_data(self) -> dict[str, Any]:
        """Return them as JSON can hold them."""
        return {
            "missing": [_data(user, acl) for user, acl in self.missing],
            "extra": [_data(user, acl) for user, acl in self.extra],
            "foreign": [_data(principal, acl) for principal, acl in self.foreign],
            "users_to_put": self.users_to_put,
            "users_to_remove": self.users_to_remove,
            "without_password": self.without_password,
            "foreign_users": self.foreign_users,
            "refused": self.refused,
            "undeclared": [{"view": view, "role": role} for view, role in self.undeclared],
        }


def compare_acls(
    found: Drift,
    wanted: WantedAccess,
    users: Iterable[str],
    acls: Iterable[tuple[str, Acl]],
) -> None:
    """Add to `found` how the ACLs of a cluster differ from those wanted for these users."""
    held: dict[str, set[Acl]] = {user: set() for user in users}
    for principal, acl in acls:
        found.holders[acl] += 1
        mine = held.get(principal.removeprefix(PRINCIPAL))
        if mine is None or not principal.startswith(PRINCIPAL):
            found.foreign.append((principal, acl))
        else:
            mine.add(acl)
    found.foreign.sort()
    for user in sorted(held):
        have, want = held.pop(user), wanted.acls(user)
        if have != want:
            found.missing += [(user, acl) for acl in sorted(want - have)]
            found.extra += [(user, acl) for acl in sorted(have - want)]


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
    found: Drift,
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


def _data(who: str, acl: Acl) -> dict[str, str]:
    return {"who": who, **acl._asdict()}
