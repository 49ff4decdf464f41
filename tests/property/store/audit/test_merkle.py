"""The incremental tree against the recursive definition, written down as it reads."""

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from penstock.store.audit import merkle
from penstock.store.audit.merkle import Frontier, TreeNode

Leaves = list[bytes]


def split_of(leaves: Leaves) -> int:
    power = 1
    while power * 2 < len(leaves):
        power *= 2
    return power


def naive_root(leaves: Leaves) -> bytes:
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return sha256(b"\x00" + leaves[0]).digest()
    at = split_of(leaves)
    return sha256(b"\x01" + naive_root(leaves[:at]) + naive_root(leaves[at:])).digest()


def naive_path(index: int, leaves: Leaves) -> list[bytes]:
    if len(leaves) == 1:
        return []
    at = split_of(leaves)
    if index < at:
        return [*naive_path(index, leaves[:at]), naive_root(leaves[at:])]
    return [*naive_path(index - at, leaves[at:]), naive_root(leaves[:at])]


def naive_consistency(first: int, leaves: Leaves, *, whole: bool = True) -> list[bytes]:
    if first == len(leaves):
        return [] if whole else [naive_root(leaves)]
    at = split_of(leaves)
    if first <= at:
        return [*naive_consistency(first, leaves[:at], whole=whole), naive_root(leaves[at:])]
    return [*naive_consistency(first - at, leaves[at:], whole=False), naive_root(leaves[:at])]


def grow(leaves: Leaves) -> tuple[Frontier, list[list[bytes]]]:
    frontier = Frontier()
    return frontier, [frontier.append(merkle.hash_leaf(leaf)) for leaf in leaves]


def read_nodes(kept: list[list[bytes]], nodes: list[TreeNode]) -> dict[TreeNode, bytes]:
    return {node: kept[node.leaf][node.level] for node in nodes}


some_leaves = st.lists(st.binary(max_size=4), max_size=70)
leaves_and_index = st.lists(st.binary(max_size=4), min_size=1, max_size=70).flatmap(
    lambda leaves: st.tuples(st.just(leaves), st.integers(0, len(leaves) - 1))
)


@given(some_leaves)
def test_root_and_kept_hashes(leaves: Leaves) -> None:
    frontier, kept = grow(leaves)
    assert frontier.root() == naive_root(leaves)
    for last, hashes in enumerate(kept):
        for level, found in enumerate(hashes):
            assert found == naive_root(leaves[last + 1 - (1 << level) : last + 1])
    assert Frontier.read(frontier.size, bytes(frontier)).root() == frontier.root()


@given(some_leaves, some_leaves)
def test_appending_in_two_batches_is_appending_once(first: Leaves, second: Leaves) -> None:
    frontier, _ = grow(first)
    resumed = Frontier.read(frontier.size, bytes(frontier))
    for leaf in second:
        resumed.append(merkle.hash_leaf(leaf))
    assert resumed.root() == naive_root(first + second)


@given(leaves_and_index)
def test_inclusion(drawn: tuple[Leaves, int]) -> None:
    leaves, index = drawn
    frontier, kept = grow(leaves)
    ranges = merkle.inclusion_ranges(index, len(leaves))
    nodes = merkle.needed_nodes(ranges)
    assert len(nodes) <= 2 * len(leaves).bit_length()
    path = merkle.hash_ranges(ranges, read_nodes(kept, nodes))
    assert path == naive_path(index, leaves)
    leaf = merkle.hash_leaf(leaves[index])
    assert merkle.root_from_inclusion(leaf, index, len(leaves), path) == frontier.root()


@given(leaves_and_index, st.data())
def test_a_wrong_inclusion_proof_leads_elsewhere(
    drawn: tuple[Leaves, int], data: st.DataObject
) -> None:
    leaves, index = drawn
    path = naive_path(index, leaves)
    leaf = merkle.hash_leaf(leaves[index])
    root = naive_root(leaves)
    size = len(leaves)
    assert merkle.root_from_inclusion(leaf, index, size, [*path, leaf]) is None
    assert merkle.root_from_inclusion(merkle.hash_leaf(b"other"), index, size, path) != root
    if path:
        assert merkle.root_from_inclusion(leaf, index, size, path[1:]) is None
        at = data.draw(st.integers(0, len(path) - 1))
        forged = [*path]
        forged[at] = bytes([forged[at][0] ^ 1]) + forged[at][1:]
        assert merkle.root_from_inclusion(leaf, index, size, forged) != root


@given(leaves_and_index)
def test_consistency(drawn: tuple[Leaves, int]) -> None:
    leaves, index = drawn
    first = index + 1
    _, kept = grow(leaves)
    ranges = merkle.consistency_ranges(first, len(leaves))
    path = merkle.hash_ranges(ranges, read_nodes(kept, merkle.needed_nodes(ranges)))
    assert path == naive_consistency(first, leaves)
    old, new = naive_root(leaves[:first]), naive_root(leaves)
    assert merkle.is_consistent(first, old, len(leaves), new, path)


@given(leaves_and_index, st.data())
def test_a_rewritten_past_is_not_consistent(drawn: tuple[Leaves, int], data: st.DataObject) -> None:
    leaves, index = drawn
    first = index + 1
    changed = [*leaves]
    at = data.draw(st.integers(0, index))
    changed[at] += b"!"
    old = naive_root(leaves[:first])
    for path in (naive_consistency(first, leaves), naive_consistency(first, changed)):
        assert not merkle.is_consistent(first, old, len(changed), naive_root(changed), path)


@given(leaves_and_index)
def test_a_forged_consistency_proof_is_refused(drawn: tuple[Leaves, int]) -> None:
    leaves, index = drawn
    first, second = index + 1, len(leaves)
    old, new = naive_root(leaves[:first]), naive_root(leaves)
    path = naive_consistency(first, leaves)
    assert not merkle.is_consistent(first, old, second, new, [*path, old])
    for at in range(len(path)):
        forged = [*path]
        forged[at] = bytes(32)
        assert not merkle.is_consistent(first, old, second, new, forged)
    assert not merkle.is_consistent(first, bytes(32), second, new, path)
    assert not merkle.is_consistent(first, old, second, bytes(32), path)


@given(some_leaves)
def test_every_tree_extends_the_empty_one(leaves: Leaves) -> None:
    root = naive_root(leaves)
    assert merkle.is_consistent(0, merkle.EMPTY_ROOT, len(leaves), root, [])
    assert not merkle.is_consistent(0, bytes(32), len(leaves), root, [])
