"""The walk of verification through the entries: grows the tree, compares with signed heads.

Rules that hold here:
- `computed` grows from the entries themselves. From the first entry on that disagrees
  with the hash kept beside it, `claimed` grows from the kept hashes: the next signed
  head then tells which of the two is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.store.audit.errors import FINDINGS_LIMIT, AuditVerdict
from penstock.store.audit.merkle import HASH_SIZE, Frontier
from penstock.store.audit.pruned_prefix import PRUNED
from penstock.store.audit.reader import Recorded
from penstock.store.audit.signatures import Head


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
