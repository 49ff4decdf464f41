"""Opt-outs for gateways: followed with the definitions, under the same lease.

    follower ──▶ look ──▶ on the list of points? ──▶ read what is new ──▶ tell ──▶ confirm
                             └── no: register first

Rules that hold here:
- A look that ends without an error has taken over all that was committed before it began, and
  whoever prohibits something from then on waits for this point. Else the lease is not renewed.
- What is new is read in pages, so that a million opt-outs need no more room than they take.
- A restored database tells another history: everything is read anew.
- The key that marks people is asked for when somebody has opted out, and again until it is the
  right one. Without it opt-outs are known, and nobody can be found: see `Prohibitions`.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.config.secrets import SecretFile
from penstock.errors import PenstockError, UnavailableError
from penstock.policy.consent import NOBODY, NumberOf, OptOutIndex
from penstock.store.consent import FINGERPRINT, MARKS, SINCE, Choice, changes_table
from penstock.store.database import Database
from penstock.store.enforcement_points import EnforcementPoints
from penstock.store.opt_outs import SubjectMarks, number_of
from penstock.telemetry import get_logger

PAGE: Final = 50_000
_TOLD: Final = 10_000
_PAGE_SINCE: Final = SINCE.where(changes_table.c.epoch <= sa.bindparam("upto")).limit(PAGE)

Take = Callable[[OptOutIndex, frozenset[int] | None], None]
"""Takes over opt-outs, with the numbers of people who chose since; None: it may be anybody."""
_Found = tuple[OptOutIndex, frozenset[int] | None, str | None]
"""Opt-outs, the numbers of people who chose since, and the mark of the newest choice."""
_log = get_logger("store")


def _taken_off() -> UnavailableError:
    return UnavailableError(
        "this gateway was taken off the list of those that opt-outs have to reach",
        fix="it registers again by itself; look whether the store is slow",
    )


class OptOutFeed:
    """What one gateway knows of the opt-outs; the follower's thread looks."""

    def __init__(self, database: Database, key: SecretFile, lease: float) -> None:
        self._points = EnforcementPoints(database)
        self._key = key
        self._lease = lease
        self.holder = secrets.token_hex(16)
        """The name of this gateway among the enforcement points."""
        self._index = NOBODY
        self._mark: str | None = None
        self._marks: SubjectMarks | None = None
        self._confirmed = -1
        self._subscribers: list[Take] = []
        self._warned = False
        self._delivery = threading.Lock()

    def subscribe(self, take: Take) -> None:
        """Call `take` with every update, from the follower's thread."""
        with self._delivery:
            take(self._index, None)
            self._subscribers.append(take)

    def look(self, connection: Connection) -> None:
        """Take over all opt-outs of now, and confirm it; raise where that cannot be done."""
        found = self._read(connection)
        if found is None:
            self._points.register(self.holder, self._lease)
            self._confirmed = -1
            found = self._read(connection)
        if found is None:
            raise _taken_off()
        index, changed, mark = found
        if index is not self._index:
            with self._delivery:
                for take in self._subscribers:
                    take(index, changed)
                self._index, self._mark = index, mark
        if self._confirmed != index.epoch:
            if not self._points.confirm(self.holder, index.epoch):
                raise _taken_off()
            self._confirmed = index.epoch

    def close(self) -> None:
        """Let nobody wait for this point any more; it must not deliver anything now."""
        self._points.withdraw(self.holder)

    def _read(self, connection: Connection) -> _Found | None:
        """Return all opt-outs of now; None where this gateway is not on the list of points."""
        with connection.begin():
            # In this order, also where each statement has a transaction of its own: whoever
            # commits between the two waits for this point.
            if not self._points.is_registered(connection, self.holder):
                return None
            held = self._index
            marks = dict(connection.execute(MARKS, {"asked": held.epoch}).all())
            is_same = marks.get(held.epoch) == self._mark
            lacks_key = held.by_purpose and held.number_of is None
            if is_same and max(marks, default=0) == held.epoch and not lacks_key:
                return held, frozenset(), self._mark
            return self._read_changes(connection, marks, is_same=is_same)

    def _read_changes(
        self, connection: Connection, marks: dict[int, str], *, is_same: bool
    ) -> _Found:
        held, epoch = self._index, max(marks, default=0)
        marked_by = self._find_key(connection)
        number: NumberOf | None = None if marked_by is None else marked_by.number
        if marked_by is self._marks:
            number = held.number_of  # the same object: numbers that are known stay known
        self._marks = marked_by
        index = held if is_same else NOBODY
        changed: set[int] | None = set() if is_same else None
        since = index.epoch
        while since < epoch:
            rows = connection.execute(_PAGE_SINCE, {"since": since, "upto": epoch}).all()
            counts: dict[str, Counter[int]] = defaultdict(Counter)
            for _, subject, purpose, choice in rows:
                who = number_of(subject)
                counts[purpose][who] += 1 if choice == Choice.OPT_OUT else -1
                if changed is not None:
                    changed.add(who)
            since = rows[-1].epoch if rows else epoch
            index = index.change(since, counts, number)
            if changed is not None and len(changed) > _TOLD:
                changed = None
        if index.number_of is not number or index is NOBODY:
            index = index.change(epoch, {}, number)
        return index, None if changed is None else frozenset(changed), marks.get(index.epoch)

    def _find_key(self, connection: Connection) -> SubjectMarks | None:
        """Return what marks people as the database knows it; None where that cannot be had."""
        known = connection.scalar(FINGERPRINT)
        if known is None:
            return None
        if self._marks is not None and self._marks.fingerprint == known:
            return self._marks
        trouble = "the key of consent is another than the one that people were marked with"
        try:
            marks = SubjectMarks(self._key.read())
            if marks.fingerprint == known:
                self._warned = False
                return marks
        except PenstockError as error:
            trouble = error.message
        if not self._warned:
            self._warned = True
            _log.error("what people opted out of is denied to everybody", problem=trouble)
        return None
