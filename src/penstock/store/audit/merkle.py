"""An append-only Merkle tree, as pure arithmetic over hashes.

The tree is the one of RFC 6962: SHA-256, a leaf is hashed behind a zero byte and an
inner node behind a one byte, so that no leaf can pass for a node. A tree of n leaves
splits at the largest power of two below n.

Rules that hold here:
- Only *complete* subtrees (2^level leaves, aligned) are ever kept. Their hashes never
  change, so keeping them is append-only too. What is incomplete is folded when asked.
- The complete subtrees that end with one leaf are kept *with that leaf*: leaf hash
  first, then one hash per level. Node (level, place) is thus found with leaf
  (place + 1) * 2^level - 1, as its hash number `level`, and needs no table of its own.
- The right edge (`Frontier`) is all that appending needs: one hash per bit of the size.
- A range (start, end) here is a subtree of the recursion, so `start` is aligned to it.
- The *peaks* of a size are its largest complete subtrees. All proofs about what comes behind a
  size need nothing else of what is before it (see `pruning`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from penstock.errors import UsageError

HASH_SIZE = 32
EMPTY_ROOT = sha256(b"").digest()


def hash_leaf(data: bytes) -> bytes:
    """Hash one entry."""
    return sha256(b"\x00" + data).digest()


def hash_node(left: bytes, right: bytes) -> bytes:
    """Hash two neighbouring subtrees into their parent."""
    return sha256(b"\x01" + left + right).digest()


class TreeNode(NamedTuple):
    """A complete subtree: 2^level leaves, the `place`-th such group from the left."""

    level: int
    place: int

    @property
    def leaf(self) -> int:
        """The last leaf under this node, with which its hash is kept."""
        return ((self.place + 1) << self.level) - 1

    @property
    def start(self) -> int:
        """The first leaf under this node."""
        return self.place << self.level

    @property
    def sibling(self) -> TreeNode:
        """The other half of the parent."""
        return TreeNode(self.level, self.place ^ 1)

    @property
    def parent(self) -> TreeNode:
        """The node above."""
        return TreeNode(self.level + 1, self.place >> 1)

    def siblings_below(self, size: int) -> list[TreeNode]:
        """List the siblings on the way up to the peak of a tree of `size` leaves."""
        found = []
        node = self
        while node.parent.leaf < size:
            found.append(node.sibling)
            node = node.parent
        return found


class Range(NamedTuple):
    """The leaves from `start` up to, not including, `end`."""

    start: int
    end: int

    @property
    def split(self) -> int:
        """Where the recursion cuts this range in two."""
        return self.start + (1 << ((self.end - self.start - 1).bit_length() - 1))

    def nodes(self) -> list[TreeNode]:
        """List the complete subtrees that make up this range, left to right."""
        found = []
        start = self.start
        while start < self.end:
            level = (self.end - start).bit_length() - 1
            found.append(TreeNode(level, start >> level))
            start += 1 << level
        return found


def peaks_of(size: int) -> list[TreeNode]:
    """List the peaks of a tree of this size, the largest first."""
    return Range(0, size).nodes()


def edge_below(first: int, size: int) -> list[TreeNode]:
    """List what connects a tree of `first` leaves with the peaks of `size`, which extend it."""
    if not first:
        return []
    last = peaks_of(first)[-1]
    return [last, *last.siblings_below(size)]


def fold(hashes: Sequence[bytes]) -> bytes:
    """Fold the complete subtrees of a range into its hash, from the right."""
    if not hashes:
        return EMPTY_ROOT
    result = hashes[-1]
    for left in reversed(hashes[:-1]):
        result = hash_node(left, result)
    return result


class Frontier:
    """The right edge of a tree: its complete subtrees, the largest first."""

    __slots__ = ("peaks", "size")

    def __init__(self, size: int = 0, peaks: Sequence[bytes] = ()) -> None:
        if len(peaks) != size.bit_count() or any(len(peak) != HASH_SIZE for peak in peaks):
            raise UsageError(
                f"{len(peaks)} hashes are not the right edge of a tree of {size} entries"
            )
        self.size = size
        self.peaks = list(peaks)

    def append(self, leaf: bytes) -> list[bytes]:
        """Add a leaf hash; return it and the hash of every subtree that it completes."""
        completed = [leaf]
        node = leaf
        rest = self.size
        while rest & 1:
            node = hash_node(self.peaks.pop(), node)
            completed.append(node)
            rest >>= 1
        self.peaks.append(node)
        self.size += 1
        return completed

    def root(self) -> bytes:
        """Return the root hash of the whole tree."""
        return fold(self.peaks)

    def copy(self) -> Frontier:
        """Return an edge that can grow on its own."""
        return Frontier(self.size, self.peaks)

    def __bytes__(self) -> bytes:
        return b"".join(self.peaks)

    @classmethod
    def read(cls, size: int, data: bytes) -> Frontier:
        """Take an edge from the bytes that `bytes(frontier)` gave."""
        return cls(size, [data[at : at + HASH_SIZE] for at in range(0, len(data), HASH_SIZE)])


def inclusion_ranges(index: int, size: int) -> list[Range]:
    """Name the siblings on the way from leaf `index` up to the root of `size` leaves."""
    if not 0 <= index < size:
        raise UsageError(f"entry {index} is not in a tree of {size} entries")
    siblings = []
    at = Range(0, size)
    while at.end - at.start > 1:
        left, right = Range(at.start, at.split), Range(at.split, at.end)
        at, sibling = (left, right) if index < at.split else (right, left)
        siblings.append(sibling)
    return siblings[::-1]


def consistency_ranges(first: int, second: int) -> list[Range]:
    """Name the subtrees that show that `second` leaves extend the tree of `first` leaves.

    Where the first tree is itself a subtree of the second, its root is known to the
    verifier and left out.
    """
    if not 0 <= first <= second:
        raise UsageError(f"a tree of {second} entries cannot extend one of {first}")
    if first == 0:
        return []
    found = []
    at = Range(0, second)
    while at.end != first:
        left, right = Range(at.start, at.split), Range(at.split, at.end)
        at, other = (left, right) if first <= at.split else (right, left)
        found.append(other)
    if at.start:
        found.append(at)
    return found[::-1]


def needed_nodes(ranges: Sequence[Range]) -> list[TreeNode]:
    """List the kept nodes that have to be read to hash these ranges: O(log n) of them."""
    return [node for part in ranges for node in part.nodes()]


def hash_ranges(ranges: Sequence[Range], hashes: Mapping[TreeNode, bytes]) -> list[bytes]:
    """Hash each range from the kept nodes."""
    return [fold([hashes[node] for node in part.nodes()]) for part in ranges]


def root_from_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Compute the root that an inclusion proof leads to; None where its length is wrong."""
    ranges = inclusion_ranges(index, size)
    if len(path) != len(ranges):
        return None
    node = leaf
    for part, sibling in zip(ranges, path, strict=True):
        node = hash_node(sibling, node) if part.start < index else hash_node(node, sibling)
    return node


def is_consistent(
    first: int, first_root: bytes, second: int, second_root: bytes, path: Sequence[bytes]
) -> bool:
    """Tell whether the proof shows that the second tree extends the first."""
    ranges = consistency_ranges(first, second)
    if len(path) != len(ranges):
        return False
    if first == 0:
        return first_root == EMPTY_ROOT
    # The walk starts at the subtree that both trees share up to leaf `first`.
    own, others = (first_root, 0) if not ranges or ranges[0].end != first else (path[0], 1)
    old = new = own
    for part, sibling in zip(ranges[others:], path[others:], strict=True):
        if part.end < first:
            old = hash_node(sibling, old)
            new = hash_node(sibling, new)
        else:
            new = hash_node(new, sibling)
    return old == first_root and new == second_root
