"""Keys of a tree against all that parties could ever work out from what they were sent."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from penstock.trust.key_tree import NONCE_BYTES, KeyTree, Node, Rekey, TreeMember, _context

GROUP = b"g" * 16


@dataclass
class History:
    """All that was sent, all root keys, and who was in at which revision."""

    tree: KeyTree = field(default_factory=lambda: KeyTree(GROUP))
    members: dict[int, TreeMember] = field(default_factory=dict)
    leaf_keys: dict[int, bytes] = field(default_factory=dict)
    """Of everybody who was ever in: the one key that was handed to them."""
    joined: dict[int, int] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    sent: list[Rekey] = field(default_factory=list)
    roots: list[bytes | None] = field(default_factory=list)

    def change(self, come: int, go: list[int]) -> None:
        """Some come, some go, one rekey."""
        changed, before = [], self.tree.revision
        for number in go:
            member = self.members.pop(number)
            self.tree.remove(member.leaf)
            changed.append(member.leaf)
            self.left[number] = before + 1
        for _ in range(come):
            number = len(self.joined)
            leaf = self.tree.add(os.urandom)
            key = self.tree.keys[Node(0, leaf)]
            self.members[number] = TreeMember(GROUP, leaf, before, {Node(0, leaf): key})
            self.leaf_keys[number] = key
            self.joined[number] = before + 1
            changed.append(leaf)
        self.sent.append(self.tree.rekey(changed, os.urandom))
        self.roots.append(self.tree.root_key)
        for member in self.members.values():
            member.take(self.sent[-1])

    def everything_known_to(self, some: set[int]) -> set[bytes]:
        """Return all keys that parties can work out together from all that was ever sent."""
        known = {self.leaf_keys[it] for it in some}
        while True:
            before = len(known)
            for rekey in self.sent:
                for node, child, sealed in rekey.keys:
                    context = _context(GROUP, rekey.revision, node, child)
                    for key in list(known):
                        try:
                            nonce, text = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
                            known.add(AESGCM(key).decrypt(nonce, text, context))
                        except InvalidTag:
                            continue
            if len(known) == before:
                return known

    def was_in(self, number: int, revision: int) -> bool:
        """Whether somebody was a member at a revision."""
        return self.joined[number] <= revision < self.left.get(number, revision + 1)


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    history.change(draw(st.integers(1, 5)), [])
    for _ in range(draw(st.integers(0, 5))):
        present = sorted(history.members)
        go = draw(st.lists(st.sampled_from(present), unique=True, max_size=3)) if present else []
        history.change(draw(st.integers(0, 3)), go)
    return history


@given(histories())
def test_all_members_have_the_root_key_and_it_is_new_with_every_revision(history: History) -> None:
    for member in history.members.values():
        assert member.root_key == history.roots[-1]
    roots = [it for it in history.roots if it is not None]
    assert len(set(roots)) == len(roots)


@given(histories(), st.data())
def test_parties_together_know_the_roots_of_their_times_and_no_others(
    history: History, data: st.DataObject
) -> None:
    parties = data.draw(st.sets(st.sampled_from(sorted(history.joined)), max_size=3))
    known = history.everything_known_to(parties)
    for revision, root in enumerate(history.roots, start=1):
        is_theirs = any(history.was_in(it, revision) for it in parties)
        assert root is None or (root in known) == is_theirs


@given(histories())
def test_a_rekey_has_two_messages_for_each_level_and_member_that_changed(history: History) -> None:
    before = len(history.members)
    history.change(1, [])
    assert len(history.sent[-1].keys) <= 2 * history.tree.height
    if before:
        history.change(0, [min(history.members)])
        assert len(history.sent[-1].keys) <= 2 * history.tree.height
    history.change(0, [])
    assert len(history.sent[-1].keys) <= 2
