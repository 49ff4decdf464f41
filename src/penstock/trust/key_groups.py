"""Key groups: who may have the key of an event type or an attribute, and from when to when.

     capability valid at the last refresh          capability began later
    join ──────────────▶ key of now, no rekey     join ──────────────▶ rekey, new generation
    leave ─────────────▶ rekey when the capability ends               expel ──▶ rekey at once

Rules that hold here:
- A member is who showed a capability; its end is the end of the membership, whatever the member
  says: whenever keys change, those whose end has come are left out. Who is expelled is out with
  the next generation, which starts at once.
- A member takes each revision once, in order: what was sent before brings nobody back to it.
- The key of a generation follows from the root of the tree of keys, so that a rekey brings it to
  all members in as many messages as the tree is high. Who joins without a rekey is sent the key
  of this generation alone, and gets its place in the tree with the next one.
- A key is never older than `refresh_every`. A new one counts from `lead` later on, so that all have
  it when the first message is sealed with it; the key of who was expelled ends at once.
- Who was expelled stays out, whatever it asks for, until somebody lets it in by hand.
- What is sent to one member alone is sealed to its public key (HPKE, RFC 9180).
- The clock and randomness are handed in. The state is plain data: whoever keeps it wraps it.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Any, Final, Self
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.errors import PenstockError, quote
from penstock.trust.key_ring import GroupKey
from penstock.trust.key_tree import KEY_BYTES, KeyTree, Node, RandomBytes, Rekey, TreeMember

_SUITE: Final = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_NUMBER_BYTES: Final = 8


class KeyGroupError(PenstockError):
    """Who may not join, or what was not sealed for this member."""


class TakenBeforeError(KeyGroupError):
    """What a member took already: it changes nothing."""


@dataclass
class Membership:
    """A member, as the manager knows it; times are milliseconds since 1970."""

    name: str
    public_key: bytes
    until: int
    """When its capability ends."""
    leaf: int | None = None
    """Its place in the tree; none before the first refresh after it joined."""
    token: str = ""
    """The capability that it showed, if it may be revoked."""
    asked: int = 0
    """When it asked to join, as it told."""


@dataclass(frozen=True)
class Welcome:
    """What one member alone is sent, sealed to its public key."""

    group: UUID
    member: str
    generation: int
    sealed: bytes = field(repr=False)


@dataclass(frozen=True)
class Refresh:
    """A new generation: what all members are sent, and what some are sent besides."""

    group: UUID
    generation: int
    start: int
    rekey: Rekey
    welcomes: tuple[Welcome, ...]


@dataclass
class KeyGroup:
    """The manager's side of the key group of one resource."""

    resource: UUID
    refresh_every: int
    generation: int = 0
    refreshed: int = 0
    """When the generation of now started."""
    members: dict[str, Membership] = field(default_factory=dict)
    barred: set[str] = field(default_factory=set)
    """Who was expelled, by name."""
    lead: int = 0
    tree: KeyTree = field(init=False)

    def __post_init__(self) -> None:
        self.tree = KeyTree(self.resource.bytes)

    @property
    def due(self) -> int:
        """When the next refresh is due."""
        ends = [it.until for it in self.members.values()]
        return min([self.refreshed + self.refresh_every, *ends])

    def join(
        self,
        name: str,
        public_key: bytes,
        since: int,
        until: int,
        now: int,
        random: RandomBytes,
        *,
        token: str = "",
        asked: int = 0,
    ) -> Welcome | Refresh:
        """Take a member in whose capability was checked, without a rekey where none is needed."""
        if not since <= now < until:
            message = f"the capability of {quote(name)} is not valid now → it needs a new one"
            raise KeyGroupError(message)
        known = self.members.get(name)
        if known is not None and known.leaf is not None:
            self.tree.remove(known.leaf)
        self.barred.discard(name)
        self.members[name] = Membership(name, public_key, until, token=token, asked=asked)
        is_covered = since <= self.refreshed and self.tree.root_key is not None
        if is_covered and now < self.due and (known is None or known.leaf is None):
            return self._welcome(name, self._key(self.generation, self.refreshed).secret)
        changed = () if known is None or known.leaf is None else (known.leaf,)
        return self._refresh(now, random, changed)

    def expel(self, name: str, now: int, random: RandomBytes) -> Refresh | None:
        """Put a member out at once; nothing happens where there is none of this name."""
        gone = self.members.pop(name, None)
        if gone is None:
            return None
        self.barred.add(name)
        return self._refresh(now, random, self._vacate(gone), lead=0)

    def refresh(self, now: int, random: RandomBytes, *, at_once: bool = False) -> Refresh | None:
        """Start a new generation where one is due, without those whose capability has ended."""
        if now < self.due and not at_once:
            return None
        return self._refresh(now, random, ())

    def end(self, name: str, now: int) -> None:
        """Let a membership end now: with the next refresh, which is due at once."""
        member = self.members[name]
        member.until = min(member.until, now)

    def current_key(self) -> GroupKey:
        """Return the key of now."""
        return self._key(self.generation, self.refreshed)

    def to_state(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        tree = self.tree
        return {
            "resource": str(self.resource),
            "refresh_every": self.refresh_every,
            "generation": self.generation,
            "refreshed": self.refreshed,
            "members": [
                [it.name, it.public_key.hex(), it.until, it.leaf, it.token, it.asked]
                for it in self.members.values()
            ],
            "barred": sorted(self.barred),
            "revision": tree.revision,
            "height": tree.height,
            "free": tree.free,
            "keys": [[*node, key.hex()] for node, key in tree.keys.items()],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Return the group that plain data tell of."""
        group = cls(UUID(state["resource"]), state["refresh_every"])
        group.generation, group.refreshed = state["generation"], state["refreshed"]
        group.barred = set(state.get("barred", ()))
        for name, public_key, until, leaf, token, *asked in state["members"]:
            known = Membership(name, bytes.fromhex(public_key), until, leaf, token, *asked)
            group.members[name] = known
        tree = group.tree
        tree.revision, tree.height, tree.free = state["revision"], state["height"], state["free"]
        tree.keys = {Node(it, place): bytes.fromhex(key) for it, place, key in state["keys"]}
        return group

    def _vacate(self, member: Membership) -> tuple[int, ...]:
        if member.leaf is None:
            return ()
        self.tree.remove(member.leaf)
        return (member.leaf,)

    def _refresh(
        self, now: int, random: RandomBytes, changed: tuple[int, ...], lead: int | None = None
    ) -> Refresh:
        # The first key waits for nobody.
        later = 0 if not self.generation else self.lead if lead is None else lead
        for gone in [it for it in self.members.values() if it.until <= now]:
            del self.members[gone.name]
            changed += self._vacate(gone)
        joined = [it for it in self.members.values() if it.leaf is None]
        leaves: list[int] = []
        for member in joined:
            member.leaf = self.tree.add(random)
            leaves.append(member.leaf)
        before = self.tree.revision
        rekey = self.tree.rekey({*changed, *leaves}, random)
        self.generation += 1
        # Two generations never start together: the time of publication tells them apart.
        self.refreshed = max(now + later, self.refreshed + 1)
        welcomes = []
        for member, leaf in zip(joined, leaves, strict=True):
            numbers = (leaf, before)
            place = b"".join(it.to_bytes(_NUMBER_BYTES, "big") for it in numbers)
            welcomes.append(self._welcome(member.name, place + self.tree.keys[Node(0, leaf)]))
        return Refresh(self.resource, self.generation, self.refreshed, rekey, (*welcomes,))

    def _key(self, generation: int, start: int) -> GroupKey:
        root = self.tree.root_key
        if root is None:
            message = f"the key group of {self.resource} has no members"
            raise KeyGroupError(message)
        return derive_key(self.resource, generation, start, root)

    def _welcome(self, name: str, content: bytes) -> Welcome:
        public = X25519PublicKey.from_public_bytes(self.members[name].public_key)
        content = self.refreshed.to_bytes(_NUMBER_BYTES, "big") + content
        context = _context(self.resource, name, self.generation)
        return Welcome(
            self.resource, name, self.generation, _SUITE.encrypt(content, public, context)
        )


class GroupMember:
    """The side of a gateway that is in a key group: follows what the manager sends."""

    def __init__(self, group: UUID, name: str, private_key: X25519PrivateKey) -> None:
        self._group = group
        self._name = name
        self._private_key = private_key
        self._tree: TreeMember | None = None

    def to_state(self) -> dict[str, Any] | None:
        """Return its place in the tree as plain data, if it has one."""
        tree = self._tree
        if tree is None:
            return None
        keys = [[*node, key.hex()] for node, key in tree.keys.items()]
        return {"leaf": tree.leaf, "revision": tree.revision, "keys": keys}

    def take_state(self, state: dict[str, Any]) -> None:
        """Go on from what plain data tell of."""
        keys = {Node(it, place): bytes.fromhex(key) for it, place, key in state["keys"]}
        self._tree = TreeMember(self._group.bytes, state["leaf"], state["revision"], keys)

    def take_welcome(self, welcome: Welcome) -> GroupKey | None:
        """Take what was sealed for this member; return the key of now, if it brings one."""
        context = _context(self._group, self._name, welcome.generation)
        try:
            opened = _SUITE.decrypt(welcome.sealed, self._private_key, context)
        except (InvalidTag, ValueError):
            message = f"a welcome to key group {welcome.group} is not for {quote(self._name)}"
            raise KeyGroupError(message) from None
        start, content = _number(opened[:_NUMBER_BYTES]), opened[_NUMBER_BYTES:]
        if len(content) == KEY_BYTES:
            return GroupKey(self._group, welcome.generation, start, content)
        leaf, before = _number(content[:_NUMBER_BYTES]), _number(content[_NUMBER_BYTES:-KEY_BYTES])
        if self._tree is not None and before < self._tree.revision:
            raise TakenBeforeError("it is an earlier welcome than what was taken since")
        keys = {Node(0, leaf): content[-KEY_BYTES:]}
        self._tree = TreeMember(self._group.bytes, leaf, before, keys)
        return None

    def take_refresh(self, refresh: Refresh) -> GroupKey:
        """Follow a new generation, welcomes to this member first; return its key."""
        if self._tree is not None and refresh.rekey.revision <= self._tree.revision:
            raise TakenBeforeError(f"revision {refresh.rekey.revision} was taken before")
        for welcome in refresh.welcomes:
            if welcome.member == self._name:
                self.take_welcome(welcome)
        if self._tree is None:
            message = f"{quote(self._name)} has no place in key group {refresh.group} → join again"
            raise KeyGroupError(message)
        self._tree.take(refresh.rekey)
        root = self._tree.root_key
        assert root is not None  # noqa: S101 - `take` brings one, or raises
        return derive_key(self._group, refresh.generation, refresh.start, root)


def member_key(seed: bytes) -> X25519PrivateKey:
    """Return the key to which a domain's welcomes are sealed; it follows from the domain's own."""
    derived = HKDF(SHA256(), KEY_BYTES, salt=None, info=b"penstock key group member").derive(seed)
    return X25519PrivateKey.from_private_bytes(derived)


def derive_key(resource: UUID, generation: int, start: int, root: bytes) -> GroupKey:
    """Return the key of a generation, which follows from the root of the tree."""
    named = resource.bytes + generation.to_bytes(4, "big") + start.to_bytes(8, "big")
    secret = hmac.digest(root, b"penstock group key" + named, "sha256")
    return GroupKey(resource, generation, start, secret)


def _context(group: UUID, member: str, generation: int) -> bytes:
    return b"penstock key group" + group.bytes + generation.to_bytes(4, "big") + member.encode()


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")
