r"""A tree of keys: a manager gives many members one key, and a new one in few messages.

                 (2,0)  root: all members have it
               /       \
           (1,0)       (1,1)        a node's key is known to the members below it
           /   \\       /   \
        (0,0) (0,1) (0,2) (0,3)     leaves: one member each

A logical key hierarchy (RFC 2627, 5.4). Keys of nodes are drawn at random. When members come or
go, all nodes above them get new keys, and each new key goes out wrapped under the keys of the
node's two children: at most two messages for each level, whatever the number of members.

Rules that hold here:
- A key that a member who left knew wraps nothing afterwards; a member who joined gets keys that
  were drawn for it. Former and later members who share all they know open nothing that was
  sealed while neither was in: no node's key follows from another's.
- Each wrapped key is bound to the group, the revision, the node and the child. A member takes
  revisions in order, and one that it misses ends its membership, until it is welcomed again.
- The tree doubles at its root when it is full: no node changes its place.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.errors import PenstockError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
MAX_HEIGHT: Final = 24

RandomBytes = Callable[[int], bytes]


class KeyTreeError(PenstockError):
    """Keys of a group that do not fit to those that are held."""


class Node(NamedTuple):
    """A place in the tree: how far above the leaves, and which from the left."""

    height: int
    place: int

    @property
    def parent(self) -> Node:
        """The node above."""
        return Node(self.height + 1, self.place >> 1)

    @property
    def children(self) -> tuple[Node, Node]:
        """The nodes below."""
        left = self.place << 1
        return Node(self.height - 1, left), Node(self.height - 1, left + 1)


class WrappedKey(NamedTuple):
    """The new key of a node, for those who have the key of one of its children."""

    node: Node
    child: Node
    sealed: bytes


@dataclass(frozen=True)
class Rekey:
    """One revision of the tree: what all members are sent."""

    group: bytes
    revision: int
    height: int
    keys: tuple[WrappedKey, ...] = field(repr=False)


@dataclass
class KeyTree:
    """The manager's side: all keys."""

    group: bytes
    revision: int = 0
    height: int = 1
    keys: dict[Node, bytes] = field(default_factory=dict, repr=False)
    free: list[int] = field(default_factory=lambda: [0, 1])

    @property
    def root(self) -> Node:
        """The node whose key all members have."""
        return Node(self.height, 0)

    @property
    def root_key(self) -> bytes | None:
        """The key of all members, if there are any."""
        return self.keys.get(self.root)

    def add(self, random_bytes: RandomBytes) -> int:
        """Make a place for a member with a key of its own; nobody is told before `rekey`."""
        if not self.free:
            if self.height == MAX_HEIGHT:
                message = f"a group has {1 << MAX_HEIGHT} members at most"
                raise KeyTreeError(message)
            first, last = 1 << self.height, 2 << self.height
            self.height += 1
            self.free = list(range(first, last))
        leaf = heapq.heappop(self.free)
        self.keys[Node(0, leaf)] = random_bytes(KEY_BYTES)
        return leaf

    def remove(self, leaf: int) -> None:
        """Take a member's key away; it can go on until `rekey`."""
        del self.keys[Node(0, leaf)]
        heapq.heappush(self.free, leaf)

    def rekey(self, changed: Iterable[int], random_bytes: RandomBytes) -> Rekey:
        """Draw new keys for all nodes above leaves that came or went, or for the root alone."""
        self.revision += 1
        level = {Node(0, leaf) for leaf in changed}
        dirty: list[Node] = []
        for _ in range(self.height):
            level = {node.parent for node in level}
            dirty.extend(sorted(level))
        if not dirty:
            dirty = [self.root]
        wrapped: list[WrappedKey] = []
        for node in dirty:
            below = [child for child in node.children if child in self.keys]
            if not below:
                self.keys.pop(node, None)
                continue
            key = self.keys[node] = random_bytes(KEY_BYTES)
            for child in below:
                nonce = random_bytes(NONCE_BYTES)
                context = _context(self.group, self.revision, node, child)
                sealed = AESGCM(self.keys[child]).encrypt(nonce, key, context)
                wrapped.append(WrappedKey(node, child, nonce + sealed))
        return Rekey(self.group, self.revision, self.height, tuple(wrapped))


@dataclass
class TreeMember:
    """A member's side: the keys from its leaf to the root."""

    group: bytes
    leaf: int
    revision: int
    """The one before that which it joins with."""
    keys: dict[Node, bytes] = field(repr=False)
    root_key: bytes | None = field(default=None, repr=False)
    """The key that all members of this revision have, once one was taken."""

    def take(self, rekey: Rekey) -> None:
        """Follow one revision; `KeyTreeError` where it is none for this member."""
        if rekey.group != self.group or rekey.revision != self.revision + 1:
            message = f"revision {rekey.revision} of group {rekey.group.hex()}, where revision "
            message += f"{self.revision + 1} of {self.group.hex()} comes next → join again"
            raise KeyTreeError(message)
        root = Node(rekey.height, 0)
        opened = self._unwrap(rekey)
        if root not in opened:
            message = f"revision {rekey.revision} brings no key for this member → it has left"
            raise KeyTreeError(message)
        self.keys |= opened
        self.revision, self.root_key = rekey.revision, opened[root]

    def _unwrap(self, rekey: Rekey) -> dict[Node, bytes]:
        opened: dict[Node, bytes] = {}
        for node, child, sealed in rekey.keys:
            key = opened.get(child) or self.keys.get(child)
            if key is None or child not in node.children or self.leaf >> node.height != node.place:
                continue
            context = _context(self.group, rekey.revision, node, child)
            try:
                text = AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
            except (InvalidTag, ValueError):
                message = f"the key of node {tuple(node)} in revision {rekey.revision} does not "
                raise KeyTreeError(message + "open → this member has left") from None
            opened[node] = text
        return opened


def _context(group: bytes, revision: int, node: Node, child: Node) -> bytes:
    numbers = (revision, *node, *child)
    return b"penstock key tree" + group + b"".join(it.to_bytes(8, "big") for it in numbers)
