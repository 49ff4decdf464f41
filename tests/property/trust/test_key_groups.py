"""Key groups against a plain model: who may have the key of which generation."""

from __future__ import annotations

import os
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from penstock.trust.key_groups import (
    GroupMember,
    KeyGroup,
    KeyGroupError,
    Refresh,
    TakenBeforeError,
    Welcome,
)
from penstock.trust.key_messages import read_messages, sign_messages
from penstock.trust.key_ring import GroupKey
from penstock.trust.key_tree import KeyTreeError
from penstock.trust.keys import DomainKey

GROUP = UUID(int=5)
REFRESH_EVERY = 100
MANAGER = DomainKey.generate()
steps = st.lists(
    st.tuples(
        st.sampled_from(["join", "late", "expel", "wait", "wait", "pause", "end"]),
        st.integers(0, 3),
        st.integers(1, 60),
        st.integers(1, 200),
    ),
    max_size=25,
)


class World:
    """A manager, four gateways that hear all it sends, and who should have which generation."""

    def __init__(self) -> None:
        self.group = KeyGroup(GROUP, REFRESH_EVERY)
        self.now = 1_000
        self.sides: dict[str, GroupMember] = {}
        self.keys: dict[str, set[bytes]] = {str(it): set() for it in range(4)}
        self.entitled: dict[str, set[int]] = {str(it): set() for it in range(4)}
        self.generations: dict[int, GroupKey] = {}
        self.model: dict[str, int] = {}
        """Who is in, and until when."""

    def send(self, sent: Welcome | Refresh | None) -> None:
        """Bring a message to everybody, former members included."""
        if sent is None:
            return
        (message,) = read_messages(sign_messages([sent], MANAGER), MANAGER.key)
        # Whoever keeps a group keeps it as plain data.
        self.group = KeyGroup.from_state(self.group.to_state())
        for name, side in self.sides.items():
            try:
                if isinstance(message, Refresh):
                    key: GroupKey | None = side.take_refresh(message)
                elif message.member == name:
                    key = side.take_welcome(message)
                else:
                    continue
            except (KeyTreeError, KeyGroupError):
                continue
            if key is not None:
                self.keys[name].add(key.secret)
        if self.group.members:
            self.generations[self.group.generation] = self.group.current_key()

    def join(self, name: str, since: int, until: int) -> None:
        """A gateway shows a capability."""
        private = X25519PrivateKey.generate()
        self.sides[name] = GroupMember(GROUP, name, private)
        public = private.public_key().public_bytes_raw()
        self.send(self.group.join(name, public, since, until, self.now, os.urandom))
        self.model[name] = until

    def note(self) -> None:
        """Who is in now is entitled to the generation of now."""
        for name, until in self.model.items():
            if until > self.now:
                self.entitled[name].add(self.group.generation)


@given(steps)
def test_members_have_the_keys_of_their_time_and_no_others(
    drawn: list[tuple[str, int, int, int]],
) -> None:
    world = World()
    for action, number, wait, length in drawn:
        name = str(number)
        before = world.group.generation
        if action in ("join", "late"):
            # A capability that was valid at the last refresh, or one that began just now.
            since = world.group.refreshed if action == "join" else world.now
            world.join(name, min(since, world.now), world.now + length)
        elif action == "expel":
            world.send(world.group.expel(name, world.now, os.urandom))
            world.model.pop(name, None)
        elif action == "end" and name in world.group.members:
            # Its capability was revoked.
            world.group.end(name, world.now)
            world.model[name] = world.now
        else:
            world.now += wait
        if action == "wait":
            world.send(world.group.refresh(world.now, os.urandom))
            assert not world.group.members or world.now < world.group.due
        if world.group.generation != before:
            # However the keys came to change: whose end has come is left out.
            world.model = {it: end for it, end in world.model.items() if end > world.now}
        world.note()
    for name, keys in world.keys.items():
        for generation, key in world.generations.items():
            assert (key.secret in keys) == (generation in world.entitled[name])
    starts = [world.generations[it].start for it in sorted(world.generations)]
    assert len(set(starts)) == len(starts)


def test_a_join_whose_capability_was_valid_at_the_last_refresh_needs_no_rekey() -> None:
    world = World()
    world.join("0", world.now, world.now + 90)
    world.now += 5
    revision = world.group.tree.revision
    world.join("1", world.now - 5, world.now + 90)
    assert world.group.tree.revision == revision
    world.join("2", world.now, world.now + 90)
    assert world.group.tree.revision == revision + 1


def test_a_capability_that_is_over_or_not_yet_valid_lets_nobody_in() -> None:
    group, public = KeyGroup(GROUP, REFRESH_EVERY), bytes(32)
    for since, until in ((0, 50), (60, 90)):
        with pytest.raises(KeyGroupError, match="not valid now"):
            group.join("metropolitan", public, since, until, 55, os.urandom)


def test_only_the_manager_s_messages_are_taken() -> None:
    world = World()
    world.join("0", world.now, world.now + 90)
    sent = world.group.expel("0", world.now, os.urandom)
    assert sent is not None
    signed = sign_messages([sent], MANAGER)
    forged = sign_messages([sent], DomainKey.generate())
    for data in (forged, signed.replace(b'"start": ', b'"start": 1')):
        with pytest.raises(KeyGroupError, match="not signed by"):
            read_messages(data, MANAGER.key)
    for data in (b"", b"[]", b"[" * 100_000, signed[:-1]):
        with pytest.raises(KeyGroupError, match="not a document of a key group"):
            read_messages(data, MANAGER.key)
    assert read_messages(signed, MANAGER.key) == [sent]


def test_what_was_taken_before_brings_nobody_back() -> None:
    world = World()
    world.join("0", world.now, world.now + 1_000)
    sent = []
    for _ in range(3):
        world.now += REFRESH_EVERY
        sent.append(world.group.refresh(world.now, os.urandom))
    side = world.sides["0"]
    for refresh in sent:
        assert refresh is not None
        side.take_refresh(refresh)
    for refresh in sent:
        assert refresh is not None
        with pytest.raises(TakenBeforeError):
            side.take_refresh(refresh)
    world.now += REFRESH_EVERY
    newest = world.group.refresh(world.now, os.urandom)
    assert newest is not None
    assert side.take_refresh(newest) == world.group.current_key()
