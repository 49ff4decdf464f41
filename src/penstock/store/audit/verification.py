"""Verifies the whole log: computes every hash anew and compares it with the signatures.

What each means:
- A signed head says what the root was at a size. Only the holder of the key can make
  one, so a root that is computed from the entries and equals it vouches for all of them.
- The hashes kept with the entries are not signed. They tell *which* entry was changed by
  somebody who did not mend them; where they were mended too, the signed heads before
  and after still enclose the change.
- Heads kept outside the database tell that the log was set back or replaced as a whole.

Rules that hold here:
- Nothing that stands in the database is trusted, not even to have the right type.
- All is read in pages, so that a log of any length needs the same memory, and a log that
  is being written is held up by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.errors import UnavailableError
from penstock.store.audit import merkle
from penstock.store.audit.entry import Entry, encode
from penstock.store.audit.errors import TamperedError
from penstock.store.audit.merkle import HASH_SIZE, Frontier
from penstock.store.audit.reader import (
    PAGE,
    Recorded,
    Tip,
    entries,
    read_after,
    read_bounds,
    read_heads,
    read_tip,
)
from penstock.store.audit.signatures import Head, PublicKeys
from penstock.store.database import Database

FINDINGS_LIMIT = 20
_TEXT = (str, type(None))
_NUMBER = (int, type(None))
# What no appended entry can be equal to: its `details` are no JSON.
_UNREADABLE = Entry(0, "", "", None, None, None, None, details="")


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that is not as it was signed."""

    message: str
    entry: int | None = None  # the first entry it is about
    until: int | None = None  # where that is only known to lie in a range: its last entry


@dataclass(slots=True)
class AuditVerdict:
    """What verification found."""

    size: int = 0
    root: bytes = merkle.EMPTY_ROOT
    heads: int = 0
    findings: list[AuditFinding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything is as it was signed."""
        return not self.findings

    @property
    def first_bad(self) -> int | None:
        """The first entry that is known to be bad, or that may be the first bad one."""
        return min((one.entry for one in self.findings if one.entry is not None), default=None)

    def add(self, message: str, entry: int | None = None, until: int | None = None) -> None:
        """Note a finding; after so many, more would not help anybody."""
        if len(self.findings) < FINDINGS_LIMIT:
            self.findings.append(AuditFinding(message, entry, until))


def verify(
    database: Database,
    keys: PublicKeys,
    *,
    kept: Sequence[Head] = (),
    progress: Callable[[int, int], None] | None = None,
) -> AuditVerdict:
    """Verify the log against its signed heads and those that were `kept` elsewhere."""
    verdict = AuditVerdict()
    with database.read() as connection:
        try:
            end: Tip | None = read_tip(connection)
        except TamperedError as error:
            end = None
            verdict.add(error.message)
        stored = read_heads(connection)
    if end is not None and end.size == 0 and end.root == merkle.EMPTY_ROOT:
        believed: list[Head] = []
    else:
        believed = _believed(verdict, keys, [end.head] if end else [], "newest")
    believed += _believed(verdict, keys, stored, "stored")
    believed += _believed(verdict, keys, kept, "given")
    verdict.heads = len(believed)
    size = end.size if end else max((head.size for head in believed), default=0)
    _check_truncation(verdict, believed, size)
    walk = _Walk(verdict, {head.size: [] for head in believed})
    for head in believed:
        walk.expected[head.size].append(head.root)
    _read_all(database, walk, size, progress)
    if end is not None and walk.complete and end.frontier != bytes(walk.computed):
        verdict.add("the right edge that appending continues from was changed")
    with database.read() as connection:
        _check_surplus(verdict, connection)
    verdict.size, verdict.root = walk.computed.size, walk.computed.root()
    return verdict


def _believed(
    verdict: AuditVerdict, keys: PublicKeys, heads: Sequence[Head], which: str
) -> list[Head]:
    """Return the heads with a good signature; note the others."""
    good = []
    for head in heads:
        try:
            keys.check(head)
        except (TamperedError, TypeError, AttributeError) as error:
            reason = error.message if isinstance(error, TamperedError) else "it is unreadable"
            verdict.add(f"the {which} head is forged: {reason}")
        else:
            good.append(head)
    return good


def _check_truncation(verdict: AuditVerdict, believed: Sequence[Head], size: int) -> None:
    largest = max((head.size for head in believed), default=0)
    if largest > size:
        verdict.add(
            f"the log ends at {size} entries, but a signed head says that there were {largest}",
            entry=size,
        )


def _read_all(
    database: Database,
    walk: _Walk,
    size: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    walk.compare()
    whole = True
    while whole and walk.computed.size < size and not walk.lost:
        page = _read_page(database, walk.computed.size, min(PAGE, size - walk.computed.size))
        whole = bool(page)
        for recorded in page:
            whole = recorded.seq == walk.computed.size
            if not whole or walk.lost:
                break
            walk.take(recorded)
        if progress:
            progress(walk.computed.size, size)
    walk.finish(size)


def _read_page(database: Database, start: int, limit: int) -> list[Recorded]:
    try:
        with database.read() as connection:
            return read_after(connection, start - 1, limit)
    except UnavailableError:
        if limit > 1:
            # Text that is no text, or a damaged page: find the entry it stands in.
            return _read_page(database, start, limit // 2)
        with database.read() as connection:
            found = connection.scalar(
                sa.select(entries.c.seq).where(entries.c.seq >= start).order_by(entries.c.seq)
            )
        return [] if found is None else [Recorded(found, _UNREADABLE, b"")]


def _check_surplus(verdict: AuditVerdict, connection: Connection) -> None:
    """Look for entries outside the signed range, or twice in it."""
    size, count, first, last = read_bounds(connection)
    if count == 0:
        return
    if not all(type(value) is int for value in (size, first, last)):
        verdict.add("the numbers of the entries are unreadable")
    elif last >= size:
        verdict.add(f"entry {last} stands behind the signed end at {size}", entry=size)
    elif first < 0 or count > size:
        verdict.add(f"{count} entries stand where {size} were signed", entry=max(first, 0))


class _Walk:
    """Walks through the entries in order, growing the tree.

    `computed` grows from the entries themselves. From the first entry on that disagrees
    with the hash kept beside it, `claimed` grows from the kept hashes: the next signed
    head then tells which of the two is right.
    """

    def __init__(self, verdict: AuditVerdict, expected: dict[int, list[bytes]]) -> None:
        self.verdict = verdict
        self.expected = expected
        self.computed = Frontier()
        self.claimed: Frontier | None = None
        self.complete = False
        self.lost = False  # a signed head disagreed: every later one must, too
        self._good = 0  # up to here a signed head agrees
        # Entries since then that do not fit the hash kept with them, and those whose kept
        # hashes do not fit the tree.
        self._changed: list[int] = []
        self._unfit: list[int] = []

    def take(self, recorded: Recorded) -> None:
        """Add the next entry to the tree."""
        leaf = _leaf_of(recorded)
        kept = recorded.hashes if isinstance(recorded.hashes, bytes) else b""
        kept_leaf = kept[:HASH_SIZE] if len(kept) >= HASH_SIZE else leaf or bytes(HASH_SIZE)
        if leaf != kept_leaf:
            self.claimed = self.claimed or self.computed.copy()
            _note(self._changed, recorded.seq)
        completed = self.computed.append(leaf or bytes(HASH_SIZE))
        if kept != b"".join(completed):
            _note(self._unfit, recorded.seq)
        if self.claimed is not None:
            self.claimed.append(kept_leaf)
        self.compare()

    def compare(self) -> None:
        """Compare the tree with the heads that were signed at this size."""
        size = self.computed.size
        roots = self.expected.get(size)
        if not roots:
            return
        if all(root == self.computed.root() for root in roots):
            for seq in self._unfit:
                self.verdict.add(
                    f"the hashes kept with entry {seq} were changed; the entry itself is as signed",
                    entry=seq,
                )
            self._good, self._changed, self._unfit, self.claimed = size, [], [], None
            return
        self.lost = True
        if self.claimed is not None and all(root == self.claimed.root() for root in roots):
            for seq in self._changed:
                self.verdict.add(f"entry {seq} is not as it was signed", entry=seq)
        else:
            self._report_range(size)

    def finish(self, size: int) -> None:
        """Note what is missing at the end."""
        if self.lost:
            return
        reached = self.computed.size
        self.complete = reached == size
        if reached < size:
            if self._unfit:
                self._report_range(reached)
            self.verdict.add(
                f"entry {reached} is missing; {size} entries were signed", entry=reached
            )
        elif self._good < reached:
            self.verdict.add(
                f"entries {self._good} to {reached - 1} are covered by no good signature",
                entry=self._good,
                until=reached - 1,
            )

    def _report_range(self, size: int) -> None:
        hint = f"; entry {self._changed[0]} disagrees with its own hash" if self._changed else ""
        self.verdict.add(
            f"entries {self._good} to {size - 1} are not all as they were signed{hint}",
            entry=self._good,
            until=size - 1,
        )


def _note(seqs: list[int], seq: int) -> None:
    # In a log that was changed throughout, no longer list than can be reported.
    if len(seqs) < FINDINGS_LIMIT:
        seqs.append(seq)


def _leaf_of(recorded: Recorded) -> bytes | None:
    """Hash an entry as it stands; None where it is nothing that could have been appended."""
    entry = recorded.entry
    needed = (type(entry.time), type(entry.kind), type(entry.outcome), type(entry.details))
    if (
        needed != (int, str, str, str)
        or type(entry.actor) not in _TEXT
        or type(entry.subject) not in _TEXT
        or type(entry.rule) not in _TEXT
        or type(entry.epoch) not in _NUMBER
    ):
        return None
    try:
        # `details` stands in the hashed bytes as it is: any other text gives another hash.
        return merkle.hash_leaf(encode(recorded.seq, entry))
    except ValueError:
        return None
