"""The audit trail of Kafka: who changes what at the cluster.

    kafka.command      an officer's command: who, what it does to whom, the epoch it is stored as
    kafka.rule         an ACL of a user is about to be put, removed or pruned ┐ before it is done,
    kafka.user         a login is about to be put or removed                  ┘ outcome: allowed
    kafka.reconciled   what was about to be done is done, or failed; how much of it

Rules that hold here:
- Nothing is changed at the cluster before the log says so. A crash in between leaves what
  was about to be done without its end; it is not known how much of it was done, and the
  next comparison goes on from what the cluster has.
- Users appear as pseudonyms, and so do the names of ACLs: groups and topics are named after
  users. No password, and nothing made of one, comes here.
- Where thousands of ACLs change at once, a user's are counted in one entry: which ones they
  are follows from the definitions of the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection

from penstock.kafka.acls import Acl
from penstock.kafka.cluster import PRINCIPAL
from penstock.kafka.drift import Drift
from penstock.store.audit.entry import Detail, Entry, Outcome, allow_detail
from penstock.store.audit.log import AREA, AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms

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
