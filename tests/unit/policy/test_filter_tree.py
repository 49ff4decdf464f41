"""The shape of the filter tree; its answers are tested against a scan elsewhere."""

from __future__ import annotations

from penstock.policy.filter_tree import _POOL_LIMIT, FilterTree


def test_equal_ends_with_one_value_are_shared() -> None:
    tree: FilterTree[str] = FilterTree(share=True)
    value = "value"
    for number in range(10):
        tree.set(f"car{number}/location/#", value)
    assert len({id(leaf) for leaf in tree._plain.children.values()}) == 1
    tree.set("car3/location/#", "other")
    assert tree.get("car3/location/#") == "other"
    assert tree.get("car4/location/#") == value


def test_the_pool_of_shared_ends_is_bounded() -> None:
    tree: FilterTree[str] = FilterTree(share=True)
    for number in range(_POOL_LIMIT + 10):
        tree.set(f"a/{number}/x{number}", "value")
    assert len(tree._pool) <= _POOL_LIMIT


def test_a_deep_filter_costs_one_entry_until_it_is_shared() -> None:
    tree: FilterTree[str] = FilterTree()
    deep = "/".join(["x"] * 100)
    tree.set(deep, "one")
    assert not isinstance(tree._plain.children["x"], type(tree._plain))
    tree.set(f"{deep}/y", "two")
    assert tree.matching(deep) == ["one"]
    assert tree.matching(f"{deep}/y") == ["two"]
    assert tree.remove(f"{deep}/y") == "two"
    assert not isinstance(tree._plain.children["x"], type(tree._plain))


def test_dollar_filters_stand_apart() -> None:
    tree: FilterTree[str] = FilterTree()
    for filter_ in ("#", "+/x", "$SYS/#", "$SYS/x"):
        tree.set(filter_, filter_)
    assert sorted(tree.matching("$SYS/x")) == ["$SYS/#", "$SYS/x"]
    assert sorted(tree.matching("a/x")) == ["#", "+/x"]
    assert sorted(dict(tree.overlapping("#"))) == ["#", "+/x"]
    assert sorted(dict(tree.items())) == ["#", "$SYS/#", "$SYS/x", "+/x"]


def test_what_is_not_there_is_none() -> None:
    tree: FilterTree[str] = FilterTree()
    tree.set("a/b", "value")
    assert tree.get("a") is tree.get("a/#") is tree.get("a/b/c") is tree.get("a/+") is None
    assert tree.remove("a/c") is None
    assert len(tree) == 1
