"""Verifies the whole log against its signatures; makes and checks proofs of single entries.

What each means:
- A signed head says what the root was at a size. Only the holder of the key can make
  one, so a root that is computed from the entries and equals it vouches for all of them.
- The hashes kept with the entries are not signed. They tell *which* entry was changed by
  somebody who did not mend them; where they were mended too, the signed heads before
  and after still enclose the change.
- Heads kept outside the database tell that the log was set back or replaced as a whole.
- Where the log was pruned, the walk begins at the cut, with what stays of the entries before
  it. A signed entry behind it has to say that we cut there, and what we left.

Rules that hold here:
- `computed` grows from the entries themselves. From the first entry on that disagrees
  with the hash kept beside it, `claimed` grows from the kept hashes: the next signed
  head then tells which of the two is right.
- Nothing that stands in the database is trusted, not even to have the right type.
- All is read in pages, so that a log of any length needs the same memory, and a log that
  is being written is held up by nobody.
- A proof stands by itself: a JSON document that anybody can check, offline. An *inclusion* proof
  shows that one entry is in the log that a head was signed for, a *consistency* proof that the log
  of a later head extends that of an earlier one. Both carry the heads, the hashes and the public
  key; which key to believe never comes from the proof.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.errors import UnavailableError, UsageError, quote
from penstock.store.audit import merkle
from penstock.store.audit.entry import Entry, canonical
from penstock.store.audit.merkle import HASH_SIZE, Frontier
from penstock.store.audit.pruned_prefix import PRUNED, PrunedPrefix, describe_cut, read_prefix
from penstock.store.audit.reader import (
    PAGE,
    Checkpoint,
    Recorded,
    Tip,
    entries,
    read_after,
    read_bounds,
    read_checkpoint,
    read_heads,
    read_nodes,
    read_one,
    read_tip,
)
from penstock.store.audit.signatures import (
    FINDINGS_LIMIT,
    AuditVerdict,
    Head,
    PublicKeys,
    TamperedError,
)
from penstock.store.database import Database


class EntryWalk:
    """Walks through the entries in order, from the edge of what was pruned."""

    def __init__(self, verdict: AuditVerdict, believed: Sequence[Head], start: Frontier) -> None:
        self.verdict = verdict
        self.expected: dict[int, list[bytes]] = {}
        for head in believed:
            self.expected.setdefault(head.size, []).append(head.root)
        self.computed = start.copy()
        self.last_pruning: Recorded | None = None
        self.claimed: Frontier | None = None
        self.complete = False
        self.lost = False  # a signed head disagreed: every later one must, too
        self._good = start.size  # up to here a signed head agrees
        # Entries since then that do not fit the hash kept with them, and those whose kept
        # hashes do not fit the tree.
        self._changed: list[int] = []
        self._unfit: list[int] = []

    def take(self, recorded: Recorded) -> None:
        """Add the next entry to the tree."""
        if recorded.entry.kind == PRUNED:
            self.last_pruning = recorded
        leaf = recorded.leaf_hash()
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


_ATTEMPTS = 5  # where the log is pruned meanwhile
# What no appended entry can be equal to: its `details` are not JSON.
_UNREADABLE = Entry(0, "", "", None, None, None, None, details="")


def verify(
    database: Database,
    keys: PublicKeys,
    *,
    kept: Sequence[Head] = (),
    progress: Callable[[int, int], None] | None = None,
) -> AuditVerdict:
    """Verify the log against its signed heads and those that were `kept` elsewhere."""
    for _ in range(_ATTEMPTS):
        verdict, cut = _verify(database, keys, kept, progress)
        with database.read() as connection:
            if verdict.ok or cut == _read_cut(connection, AuditVerdict()):
                break
        # It was pruned under our hands.
    return verdict


def _verify(
    database: Database,
    keys: PublicKeys,
    kept: Sequence[Head],
    progress: Callable[[int, int], None] | None,
) -> tuple[AuditVerdict, Checkpoint]:
    verdict = AuditVerdict()
    with database.read() as connection:
        try:
            end: Tip | None = read_tip(connection)
        except TamperedError as error:
            end = None
            verdict.add(error.message)
        cut = _read_cut(connection, verdict)
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
    prefix = read_prefix(database, cut.before, lambda *at: _read_page(database, *at))
    verdict.pruned, verdict.survivors = cut.before, prefix.kept.count
    for message, entry in prefix.trouble:
        verdict.add(message, entry=entry)
    if prefix.edge.size < cut.before:
        return verdict, cut  # nothing to go on from
    if cut.before and not _leads_to(database, cut, prefix):
        verdict.add(
            f"entries before {cut.before} that are left, the hashes kept of the others, or entry"
            f" {cut.entry} that tells of the pruning are not as they were signed",
            entry=0,
            until=cut.entry,
        )
        return verdict, cut
    walk = EntryWalk(verdict, believed, prefix.edge)
    _check_old_heads(verdict, database, [it for it in believed if it.size < cut.before], prefix)
    _read_all(database, walk, size, progress)
    if walk.complete:
        _check_cut(verdict, prefix, walk.last_pruning)
        if end is not None and end.frontier != bytes(walk.computed):
            verdict.add("the right edge that appending continues from was changed")
    with database.read() as connection:
        _check_surplus(verdict, connection)
    verdict.size, verdict.root = walk.computed.size, walk.computed.root()
    return verdict, cut


def _read_cut(connection: Connection, verdict: AuditVerdict) -> Checkpoint:
    try:
        return read_checkpoint(connection)
    except TamperedError as error:
        verdict.add(error.message)
        return Checkpoint()


def _leads_to(database: Database, cut: Checkpoint, prefix: PrunedPrefix) -> bool:
    """Tell whether what is left leads to the root that the checkpoint's entry names."""
    said = next(iter(_read_page(database, cut.entry, 1)), None)
    try:
        details = json.loads(said.entry.details) if said and said.seq == cut.entry else None
    except (ValueError, TypeError, RecursionError):
        return False
    return isinstance(details, dict) and details.get("root") == prefix.edge.root().hex()


def _check_old_heads(
    verdict: AuditVerdict, database: Database, old: Sequence[Head], prefix: PrunedPrefix
) -> None:
    """Check that what was pruned extends heads of its time, as far as that was provided for."""
    before, root = prefix.edge.size, prefix.edge.root()
    for head in old:
        ranges = merkle.consistency_ranges(head.size, before)
        try:
            with database.read() as connection:
                found = read_nodes(connection, merkle.needed_nodes(ranges))
        except TamperedError:
            verdict.add(
                f"whether the log extends the head of size {head.size} cannot be told: entries"
                f" before {before} were pruned, and nothing was kept for a head of this size"
            )
            continue
        path = merkle.hash_ranges(ranges, found)
        if not merkle.is_consistent(head.size, head.root, before, root, path):
            verdict.add(f"the log does not extend the head of size {head.size}", entry=0)


def _check_cut(verdict: AuditVerdict, prefix: PrunedPrefix, said: Recorded | None) -> None:
    """Compare the cut with the last entry that tells of one."""
    before = prefix.edge.size
    if said is None:
        if before:
            verdict.add(f"entries before {before} are missing, and no entry says that we pruned")
        return
    details = json.loads(said.entry.details)
    told = describe_cut(prefix.edge, prefix.kept)
    differing = [name for name, value in told.items() if details.get(name) != value]
    if "before" in differing:
        verdict.add(
            f"the log begins at {before}, but entry {said.seq} says that it was pruned up to"
            f" {details.get('before')}",
            entry=min(before, details.get("before", before)),
        )
    elif differing:
        verdict.add(
            f"of what was before {before}, other entries or hashes are left than entry"
            f" {said.seq} names: {prefix.kept.count} entries instead of {details.get('kept')}"
        )


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
    walk: EntryWalk,
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
            # Text that is not text, or a damaged page: find the entry it stands in.
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
        return
    left = size - verdict.pruned + verdict.survivors
    if last >= size:
        verdict.add(f"entry {last} stands behind the signed end at {size}", entry=size)
    elif first < 0 or count > left:
        verdict.add(f"{count} entries stand where {left} were signed", entry=max(first, 0))


VERSION = 1
PATH_LIMIT = 128
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)


def prove_inclusion(database: Database, keys: PublicKeys, seq: int) -> dict[str, Any]:
    """Prove that entry `seq` is in the log as it now stands."""
    with database.read() as connection:
        head = read_tip(connection).head
        recorded = read_one(connection, seq)
        cut = read_checkpoint(connection)
        if recorded is None and 0 <= seq < cut.before:
            raise UsageError(
                f"entry {seq} of the audit log was pruned; entry {cut.entry} says so",
                fix="prove that entry, or choose one that `penstock audit tail` shows",
            )
        if recorded is None or not 0 <= seq < head.size:
            raise UsageError(
                f"there is no entry {seq} in the audit log",
                fix=f"choose one from 0 to {head.size - 1}" if head.size else "the log is empty",
            )
        ranges = merkle.inclusion_ranges(seq, head.size)
        path = merkle.hash_ranges(ranges, read_nodes(connection, merkle.needed_nodes(ranges)))
    return _checked(
        {
            "proof": "inclusion",
            "version": VERSION,
            "entry": recorded.as_document(),
            "path": [one.hex() for one in path],
            "head": head.as_document(),
            "public_keys": keys.pem(head.key),
        },
        keys,
    )


def prove_consistency(
    database: Database, keys: PublicKeys, first: Head, second: Head | None = None
) -> dict[str, Any]:
    """Prove that the log at the `second` head (the newest, if none) extends the `first`."""
    with database.read() as connection:
        newest = read_tip(connection).head
        last = second or newest
        if not first.size <= last.size <= newest.size:
            raise TamperedError(
                f"heads of sizes {first.size} and {last.size} cannot be connected"
                f" in a log of size {newest.size}",
                fix="pass the older head first; if it is larger than the log, entries are missing",
            )
        ranges = merkle.consistency_ranges(first.size, last.size)
        path = merkle.hash_ranges(ranges, read_nodes(connection, merkle.needed_nodes(ranges)))
    used = dict.fromkeys([first.key, last.key])
    return _checked(
        {
            "proof": "consistency",
            "version": VERSION,
            "first": first.as_document(),
            "second": last.as_document(),
            "path": [one.hex() for one in path],
            "public_keys": "".join(keys.pem(key) for key in used),
        },
        keys,
    )


def _checked(proof: dict[str, Any], keys: PublicKeys) -> dict[str, Any]:
    # A tampered database yields proofs that prove nothing: better no proof than such a one.
    check_proof(proof, keys)
    return proof


def embedded_keys(proof: Any) -> PublicKeys:
    """Return the public keys that a proof brings along; believing them is another matter."""
    text = proof.get("public_keys") if isinstance(proof, dict) else None
    if not isinstance(text, str):
        raise UsageError(f"{quote(proof)} is not a proof", fix="pass what `audit prove` printed")
    return PublicKeys.parse(text.encode(), "the proof")


def check_proof(proof: Any, keys: PublicKeys) -> str:
    """Check a proof; return what it proves, or raise `TamperedError`."""
    match proof:
        case {
            "proof": "inclusion",
            "version": 1,
            "entry": {"seq": int(seq), **fields} as entry,
            "path": list(path),
            "head": head,
        } if fields:
            return _check_inclusion(entry, seq, _hashes(path), Head.from_document(head), keys)
        case {
            "proof": "consistency",
            "version": 1,
            "first": first,
            "second": second,
            "path": list(path),
        }:
            heads = Head.from_document(first), Head.from_document(second)
            return _check_consistency(*heads, _hashes(path), keys)
    raise UsageError(f"{quote(proof)} is not a proof", fix="pass what `audit prove` printed")


def _hashes(path: list[Any]) -> list[bytes]:
    if len(path) > PATH_LIMIT or not all(
        isinstance(one, str) and _HASH.fullmatch(one) for one in path
    ):
        raise UsageError("the path of the proof is not a list of hashes")
    return [bytes.fromhex(one) for one in path]


def _check_inclusion(entry: Any, seq: int, path: list[bytes], head: Head, keys: PublicKeys) -> str:
    keys.check(head)
    try:
        leaf = merkle.hash_leaf(canonical(entry).encode())
    except (ValueError, RecursionError):
        raise UsageError("the entry of the proof is unreadable") from None
    inside = 0 <= seq < head.size
    if not inside or merkle.root_from_inclusion(leaf, seq, head.size, path) != head.root:
        raise TamperedError(f"the proof does not lead from entry {seq} to the signed root")
    return f"entry {seq} is in the log of {head.size} entries signed by {head.key}"


def _check_consistency(first: Head, second: Head, path: list[bytes], keys: PublicKeys) -> str:
    keys.check(first)
    keys.check(second)
    if first.size > second.size or not merkle.is_consistent(
        first.size, first.root, second.size, second.root, path
    ):
        raise TamperedError(
            f"the proof does not show that the log of {second.size} entries extends"
            f" that of {first.size}"
        )
    return f"the log of {second.size} entries extends that of {first.size}, signed by {second.key}"
