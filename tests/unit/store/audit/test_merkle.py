import pytest

from penstock.errors import UsageError
from penstock.store.audit import merkle
from penstock.store.audit.merkle import Frontier, Range, TreeNode

# The inputs and roots that implementations of RFC 6962 commonly check themselves with.
INPUTS = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def test_roots_are_those_of_rfc_6962() -> None:
    frontier = Frontier()
    roots = [frontier.root().hex()]
    for data in INPUTS:
        frontier.append(merkle.hash_leaf(data))
        roots.append(frontier.root().hex())
    assert roots == ROOTS


def test_a_leaf_cannot_pass_for_a_node() -> None:
    left, right = merkle.hash_leaf(b"left"), merkle.hash_leaf(b"right")
    assert merkle.hash_leaf(left + right) != merkle.hash_node(left, right)


def test_a_leaf_brings_the_subtrees_it_completes() -> None:
    frontier = Frontier()
    completed = [frontier.append(merkle.hash_leaf(data)) for data in INPUTS]
    assert [len(hashes) for hashes in completed] == [1, 2, 1, 3, 1, 2, 1, 4]
    assert completed[7][3] == frontier.root()
    assert TreeNode(level=3, place=0).leaf == 7
    assert TreeNode(level=1, place=2).leaf == 5
    assert completed[5][1] == merkle.hash_node(completed[4][0], completed[5][0])


def test_the_edge_survives_being_written_and_read() -> None:
    frontier = Frontier()
    for data in INPUTS[:7]:
        frontier.append(merkle.hash_leaf(data))
    again = Frontier.read(7, bytes(frontier))
    assert again.root() == frontier.root()
    again.append(merkle.hash_leaf(INPUTS[7]))
    assert again.root().hex() == ROOTS[8]
    assert frontier.root().hex() == ROOTS[7], "the copy grew the original"


@pytest.mark.parametrize(("size", "data"), [(3, b"x" * 32), (1, b"x" * 31), (0, b"x" * 32)])
def test_an_edge_that_does_not_fit_its_size_is_refused(size: int, data: bytes) -> None:
    with pytest.raises(UsageError, match="not the right edge"):
        Frontier.read(size, data)


def test_ranges_name_the_nodes_they_are_made_of() -> None:
    assert Range(0, 8).nodes() == [TreeNode(3, 0)]
    assert Range(8, 13).nodes() == [TreeNode(2, 2), TreeNode(0, 12)]
    assert merkle.inclusion_ranges(2, 7) == [Range(3, 4), Range(0, 2), Range(4, 7)]
    assert merkle.consistency_ranges(3, 7) == [Range(2, 3), Range(3, 4), Range(0, 2), Range(4, 7)]
    assert merkle.consistency_ranges(4, 7) == [Range(4, 7)]


@pytest.mark.parametrize(("index", "size"), [(-1, 3), (3, 3), (0, 0)])
def test_an_entry_outside_the_tree_has_no_proof(index: int, size: int) -> None:
    with pytest.raises(UsageError, match="is not in a tree"):
        merkle.inclusion_ranges(index, size)


def test_a_tree_cannot_extend_a_larger_one() -> None:
    with pytest.raises(UsageError, match="cannot extend"):
        merkle.consistency_ranges(4, 3)
