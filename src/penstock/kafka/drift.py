"""Drift: how a cluster differs from the definitions; the record of its end, and whether it ended.

    controller: deleted ──▶ broker 1: no excess ACL ✓
                       ├──▶ broker 2: no excess ACL ✓     all ✓: it is done
                       └──▶ broker 3: has one more, poll again

    kafka.command      an officer's command: who, what it does to whom, the epoch it is stored as
    kafka.rule         an ACL of a user is about to be put, removed or pruned ┐ before it is done,
    kafka.user         a login is about to be put or removed                  ┘ outcome: allowed
    kafka.reconciled   what was about to be done is done, or failed; how much of it

Rules that hold here:
- The controller knows first; each broker replays the metadata log by itself, and lets readers
  go on until then. A revocation is done when every live broker confirms that the ACLs are gone.
- We look for what a broker has beyond what is wanted, not for what was deleted just now: who
  resumes after a failure finds the ACLs gone at one broker, which says nothing of the others.
- Live brokers are listed anew with every poll: one that crashed meanwhile has to answer until
  the controllers fence it, and one that comes back catches up before it serves.
- Brokers are polled in parallel: a slow one does not hold up the others.
- Nothing is changed at the cluster before the audit log says so. A crash in between leaves what
  was about to be done without its end; it is not known how much of it was done, and the
  next comparison goes on from what the cluster has.
- Users appear as pseudonyms, and so do the names of ACLs: groups and topics are named after
  users. No password, and nothing made of one, comes into the log.
- Where thousands of ACLs change at once, a user's are counted in one entry: which ones they
  are follows from the definitions of the epoch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection

from penstock.errors import UnavailableError
from penstock.kafka.acls import Acl, WantedAccess
from penstock.kafka.admin_connection import AdminConnection
from penstock.kafka.cluster import PRINCIPAL, Cluster
from penstock.store.audit.entry import Detail, Entry, Outcome, allow_detail
from penstock.store.audit.log import AREA, AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
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
    wanted: WantedAccess,
    kept: Mapping[str, KafkaUser],
    there: AbstractSet[str],
    own: AbstractSet[str],
) -> None:
    """Add to `found` how the users of a cluster differ from those defined."""
    mine = wanted.principals.keys() - own
    for name in sorted(mine):
        row = kept.get(name)
        if row is not None and row.credential is not None:
            if row.is_pending or name not in there:
                found.users_to_put.append(name)
        elif name not in there and wanted.principals[name].certificate is None:
            found.without_password.append(name)
    found.users_to_remove += sorted(kept.keys() - mine)
    found.foreign_users += sorted(there - mine - kept.keys() - own)


def _data(who: str, acl: Acl) -> dict[str, str]:
    return {"who": who, **acl._asdict()}


GONE_SECONDS = 30.0
PAUSE_SECONDS = 0.02
FEW = 200
"""Up to this many users it is cheaper to list the ACLs of each than all there are."""
TOGETHER = 8
"""How many brokers are polled in parallel."""

WantedAcls = Mapping[str, AbstractSet[Acl]]
"""The ACLs that each user is to have, and no more."""


def confirm_revoked(cluster: Cluster, wanted: WantedAcls) -> None:
    """Return when no broker has more for these users; raise if that takes too long."""
    if not wanted:
        return
    deadline = time.monotonic() + GONE_SECONDS
    done: set[str] = set()
    connections: dict[str, AdminConnection] = {}
    try:
        with ThreadPoolExecutor(TOGETHER, thread_name_prefix="penstock-kafka-look") as pool:
            while waiting := [broker for broker in cluster.brokers() if broker not in done]:
                look = partial(_look, cluster, connections, wanted)
                left = []
                for broker, trouble in zip(waiting, pool.map(look, waiting), strict=True):
                    if trouble is None:
                        done.add(broker)
                    else:
                        left.append(trouble)
                if left and time.monotonic() > deadline:
                    raise left[0]
                if left:
                    time.sleep(PAUSE_SECONDS)
    finally:
        for connection in connections.values():
            connection.close()


def _look(
    cluster: Cluster, connections: dict[str, AdminConnection], wanted: WantedAcls, broker: str
) -> UnavailableError | None:
    """Return why a broker has not confirmed; None if it has."""
    try:
        if broker not in connections:
            connections[broker] = cluster.connect_broker(broker)
        excess = _find_excess(connections[broker], wanted)
    except UnavailableError as error:
        lost = connections.pop(broker, None)
        if lost is not None:
            lost.close()
        return UnavailableError(
            f"the broker {broker} does not say whether ACLs are gone: {error.message}",
            fix="start it, or take it out of the cluster; every broker must be within reach",
        )
    if not excess:
        return None
    user, acl = min(excess)
    return UnavailableError(
        f"the broker {broker} still has {len(excess)} ACLs that were removed, such as "
        f"{acl} for {user}",
        fix="check that brokers and controllers see each other",
    )


def _find_excess(connection: AdminConnection, wanted: WantedAcls) -> list[tuple[str, Acl]]:
    some = [PRINCIPAL + user for user in wanted]
    found = []
    for principal in some if len(some) <= FEW else [None]:
        for who, acl in connection.acls(principal):
            user = who.removeprefix(PRINCIPAL)
            if user != who and acl not in wanted.get(user, (acl,)):
                found.append((user, acl))
    return found


COMMAND: Final = "kafka.command"
RULE: Final = "kafka.rule"
USER: Final = "kafka.user"
RECONCILED: Final = "kafka.reconciled"

SINGLE: Final = 1000
"""Up to this many ACLs each has an entry of its own."""
_BATCH: Final = 10_000

for name in ("acls_put", "acls_removed", "users_put", "users_removed"):
    allow_detail(name, Detail.COUNT)


class AccessAudit:
    """Writes for one actor, who is named by pseudonym."""

    def __init__(self, log: AuditLog, people: Pseudonyms, actor: str) -> None:
        self._log = log
        self._people = people
        self._actor = actor

    def note_command(
        self, operation: str, epoch: int, *, user: str | None = None, rule: str | None = None
    ) -> None:
        """Record a command that is stored."""
        self._log.append([self._entry(COMMAND, user, rule, epoch, operation=operation)])

    @contextmanager
    def noting(self, operation: str, epoch: int, *, user: str) -> Iterator[Connection]:
        """Give a transaction that records a command, to store it in."""
        entry = self._entry(COMMAND, user, None, epoch, operation=operation)
        with self._log.database.write(AREA) as connection:
            self._log.append_within(connection, [entry])
            yield connection

    def note_order(self, found: Drift, epoch: int) -> None:
        """Record what is about to be done to make differences go."""
        logins = [
            *(("remove", user) for user in found.users_to_remove),
            *(("put", user) for user in found.users_to_put),
        ]
        entries = [
            *self._acls("remove", found.extra, epoch),
            *self._acls("put", found.missing, epoch),
            *(
                self._entry(USER, user, None, epoch, operation=operation)
                for operation, user in logins
            ),
        ]
        self._append(entries)

    def note_pruning(self, acls: Iterable[tuple[str, Acl]], epoch: int) -> None:
        """Record that ACLs of others are about to be deleted."""
        self._append(list(self._acls("prune", list(acls), epoch)))

    def note_end(self, epoch: int | None, counts: dict[str, Any], *, failed: bool) -> None:
        """Record what came of it."""
        outcome = Outcome.FAILED if failed else Outcome.DONE
        entry = Entry.make(RECONCILED, outcome, actor=self._actor, epoch=epoch, **counts)
        self._log.append([entry])

    def _acls(self, operation: str, acls: Sequence[tuple[str, Acl]], epoch: int) -> Iterator[Entry]:
        if len(acls) > SINGLE:
            for who, count in Counter(who for who, _ in acls).items():
                yield self._entry(RULE, who, None, epoch, operation=operation, count=count)
            return
        for who, acl in acls:
            yield self._entry(RULE, who, str(acl), epoch, operation=operation)

    def _entry(
        self,
        kind: str,
        who: str | None,
        rule: str | None,
        epoch: int,
        **details: Any,
    ) -> Entry:
        person = None if who is None else self._people.person(who.removeprefix(PRINCIPAL))
        outcome = Outcome.DONE if kind == COMMAND else Outcome.ALLOWED
        return Entry.make(
            kind,
            outcome,
            actor=self._actor,
            subject=person,
            rule=None if rule is None else self._people.rule(rule),
            epoch=epoch,
            **details,
        )

    def _append(self, entries: list[Entry]) -> None:
        for first in range(0, len(entries), _BATCH):
            self._log.append(entries[first : first + _BATCH])
