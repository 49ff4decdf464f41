"""The tree of keys: how many messages a change takes, and what a member refuses."""

from __future__ import annotations

import dataclasses
import os

import pytest

from penstock.trust.key_tree import KeyTree, KeyTreeError, Node, TreeMember

GROUP = b"g" * 16


def test_messages_of_a_change_grow_with_the_logarithm_of_the_members() -> None:
    tree, counts = KeyTree(GROUP), {}
    for members in (10, 100, 1_000, 10_000):
        tree.rekey([tree.add(os.urandom) for _ in range(members - _count(tree))], os.urandom)
        assert tree.height == (members - 1).bit_length()
        tree.remove(0)
        counts[members] = len(tree.rekey([tree.add(os.urandom)], os.urandom).keys)
    assert counts == {10: 8, 100: 14, 1_000: 20, 10_000: 28}


def _count(tree: KeyTree) -> int:
    return sum(1 for node in tree.keys if node.height == 0)


def _two() -> tuple[KeyTree, TreeMember]:
    tree = KeyTree(GROUP)
    leaf = tree.add(os.urandom)
    member = TreeMember(GROUP, leaf, 0, {Node(0, leaf): tree.keys[Node(0, leaf)]})
    member.take(tree.rekey([leaf], os.urandom))
    return tree, member


def test_a_member_refuses_revisions_out_of_order_of_other_groups_and_changed_ones() -> None:
    tree, member = _two()
    leaf = tree.add(os.urandom)
    second, third = tree.rekey([leaf], os.urandom), tree.rekey([], os.urandom)
    with pytest.raises(KeyTreeError, match=r"revision 3 .*, where revision 2 .* comes next"):
        member.take(third)
    with pytest.raises(KeyTreeError, match="join again"):
        member.take(dataclasses.replace(second, group=b"h" * 16))
    for number, wrapped in enumerate(second.keys):
        damaged = wrapped._replace(sealed=wrapped.sealed[:-1] + bytes([wrapped.sealed[-1] ^ 1]))
        keys = (*second.keys[:number], damaged, *second.keys[number + 1 :])
        if wrapped.child in member.keys:
            with pytest.raises(KeyTreeError, match="does not open"):
                member.take(dataclasses.replace(second, keys=keys))
    member.take(second)
    member.take(third)
    assert member.root_key == tree.root_key


def test_who_left_gets_no_key_of_later_revisions() -> None:
    tree, member = _two()
    before = member.root_key
    stays = tree.add(os.urandom)
    member.take(tree.rekey([stays], os.urandom))
    tree.remove(member.leaf)
    gone = tree.rekey([member.leaf], os.urandom)
    with pytest.raises(KeyTreeError):
        member.take(gone)
    assert tree.root_key not in {before, member.root_key, *member.keys.values()}
