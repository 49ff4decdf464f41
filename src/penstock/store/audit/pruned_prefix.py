"""The beginning of a log that was pruned: what stays of it, and whether it fits together.

    leaves   0 1 2 3 4 5 6 7 │ 8 …          3 is a survivor, the cut is at 8
    kept     └1.0┘ 2   └2.1─┘               node 1.0, leaf 2, entry 3, node 2.1

Rules that hold here:
- Kept nodes and survivors cover the beginning without a gap, from left to right. Neighbours are
  hashed into their parent as soon as both are known; what is left at the cut are its peaks.
- A node that is kept and can also be computed has to be equal.
- Nothing here is believed: the peaks have to lead to signed heads, and a signed entry has to
  name the cut, its root and its survivors (`verification`).
- Nodes and survivors are read in pages and in the order of their last leaf, so that a beginning
  of any length needs the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from heapq import merge
from itertools import groupby
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from penstock.store.audit.entry import Detail, allow_detail
from penstock.store.audit.merkle import HASH_SIZE, Frontier, TreeNode, hash_node, peaks_of
from penstock.store.audit.reader import PAGE, Recorded, nodes, raw
from penstock.store.database import Database

PRUNED: Final = "audit.pruned"
"""The kind of the entry that says what was pruned."""

allow_detail("before", Detail.COUNT)
allow_detail("root", Detail.DIGEST)
allow_detail("kept", Detail.COUNT)
allow_detail("kept_digest", Detail.DIGEST)


class KeptDigest:
    """The number of the survivors, and a digest of which they are and of the nodes kept."""

    def __init__(self) -> None:
        self.count = 0
        self._entries = sha256()
        self._nodes = sha256()

    def add(self, seq: int) -> None:
        """Add the next survivor."""
        self.count += 1
        self._entries.update(b"%d\n" % seq)

    def add_node(self, leaf: int, level: int, value: bytes) -> None:
        """Add the next node, in the order of last leaf and level."""
        self._nodes.update(b"%d %d %s\n" % (leaf, level, value.hex().encode()))

    def hexdigest(self) -> str:
        """Return SHA-256 over that of the survivors' numbers and that of the nodes, line by line.

        Without the nodes one could be removed that the others lead to, and be missed by proofs.
        """
        return sha256(self._entries.digest() + self._nodes.digest()).hexdigest()


def describe_cut(edge: Frontier, kept: KeptDigest) -> dict[str, Any]:
    """Return what the entry of a pruning says of its cut."""
    return {
        "before": edge.size,
        "root": edge.root().hex(),
        "kept": kept.count,
        "kept_digest": kept.hexdigest(),
    }


class _Piece(NamedTuple):
    """The hash of a complete subtree; of a survivor with all hashes that stand beside it."""

    leaf: int
    level: int
    value: bytes
    hashes: Any = None


@dataclass(slots=True)
class PrunedPrefix:
    """What stays of the beginning, put together."""

    edge: Frontier = field(default_factory=Frontier)
    kept: KeptDigest = field(default_factory=KeptDigest)
    trouble: list[tuple[str, int | None]] = field(default_factory=list)
    """What does not fit, and the entry that it is about, where that is known."""


Pages = Callable[[int, int], list[Recorded]]


def read_prefix(database: Database, before: int, read_page: Pages) -> PrunedPrefix:
    """Put together what stays of the entries before `before`."""
    found = PrunedPrefix()
    stack: list[tuple[TreeNode, bytes]] = []
    reached = 0
    pieces = merge(
        _survivors(before, read_page), _kept_nodes(database), key=lambda it: (it.leaf, it.level)
    )
    for leaf, together in groupby(pieces, key=lambda it: it.leaf):
        group = list(together)
        lowest = TreeNode(group[0].level, (leaf + 1 >> group[0].level) - 1)
        if lowest.leaf != leaf or leaf >= before or lowest.start != reached:
            found.trouble.append(("the hashes kept of pruned entries have gaps", None))
            return found
        for one in group:
            if one.hashes is None:
                found.kept.add_node(*one[:3])
        completed = _climb(stack, lowest, group)
        survivor = next((it for it in group if it.hashes is not None), None)
        if survivor is not None:
            found.kept.add(leaf)
            if message := _compare(survivor, completed):
                found.trouble.append((message, leaf))
        if completed is None:
            found.trouble.append(("the hashes kept of pruned entries were changed", None))
            return found
        reached = leaf + 1
    if reached != before or [node for node, _ in stack] != peaks_of(before):
        found.trouble.append((f"hashes kept of entries before {before} are missing", None))
        return found
    if any(len(value) != HASH_SIZE for _, value in stack):
        found.trouble.append(("the hashes kept of pruned entries were changed", None))
        return found
    found.edge = Frontier(before, [value for _, value in stack])
    return found


def _climb(
    stack: list[tuple[TreeNode, bytes]], node: TreeNode, group: list[_Piece]
) -> list[bytes] | None:
    """Put a node on the stack and hash neighbours into parents; None where two disagree.

    Return the hashes of all subtrees that the node completes, itself included.
    """
    value = group[0].value
    left = group[1:]
    completed = [value]
    while True:
        while left and left[0].level == node.level:
            if left.pop(0).value != value:
                return None
        if not node.place & 1 or not stack or stack[-1][0] != node.sibling:
            break
        value = hash_node(stack.pop()[1], value)
        completed.append(value)
        node = node.parent
    stack.append((node, value))
    return None if left else completed


def _compare(survivor: _Piece, completed: list[bytes] | None) -> str:
    """Compare a survivor with the hashes that stand beside it; say what is wrong."""
    seq, kept = survivor.leaf, survivor.hashes
    if not isinstance(kept, bytes) or kept[:HASH_SIZE] != survivor.value:
        return f"entry {seq} is not as it was signed"
    if completed is not None and kept != b"".join(completed):
        return f"the hashes kept with entry {seq} were changed"
    return ""


def _survivors(before: int, read_page: Pages) -> Iterator[_Piece]:
    last = -1
    while page := read_page(last + 1, PAGE):
        for one in page:
            if one.seq >= before:
                return
            leaf = one.leaf_hash() or bytes(HASH_SIZE)
            yield _Piece(one.seq, 0, leaf, one.hashes)
            last = one.seq


def _kept_nodes(database: Database) -> Iterator[_Piece]:
    leaf, level = -1, -1
    while True:
        asked = (
            sa.select(*raw(nodes))
            .where(sa.tuple_(nodes.c.leaf, nodes.c.level) > sa.tuple_(leaf, level))
            .order_by(nodes.c.leaf, nodes.c.level)
            .limit(PAGE)
        )
        with database.read() as connection:
            page = connection.execute(asked).all()
        for row in page:
            leaf, level, value = row
            if type(leaf) is not int or type(level) is not int or not 0 <= level < HASH_SIZE * 8:
                # Behind every entry, where it is noticed.
                yield _Piece(2**62, 0, b"")
                return
            good = isinstance(value, bytes) and len(value) == HASH_SIZE
            yield _Piece(leaf, level, value if good else b"")
        if len(page) < PAGE:
            return
