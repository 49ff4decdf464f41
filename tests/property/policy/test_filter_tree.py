"""The filter tree against a dictionary that is scanned."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.topics import covers, matches, overlaps
from penstock.policy.filter_tree import FilterTree
from tests.support.scale import scaled

LEVELS = st.sampled_from(["", "a", "b", "$s", "+", "+"])
FILTERS = st.builds(
    lambda levels, tail: "/".join([*levels, *tail]),
    st.lists(LEVELS, max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)
TOPICS = st.lists(st.sampled_from(["", "a", "b", "$s", "z"]), min_size=1, max_size=5).map("/".join)
# None removes; few values, so that leaves are shared.
CHANGES = st.lists(st.tuples(FILTERS, st.sampled_from([None, "one", "two"])), max_size=30)


def build(changes: list[tuple[str, str | None]], tree: FilterTree[str]) -> dict[str, str]:
    plain: dict[str, str] = {}
    for filter_, value in changes:
        if value is None:
            assert tree.remove(filter_) == plain.pop(filter_, None)
        else:
            assert tree.set(filter_, value) == plain.get(filter_)
            plain[filter_] = value
    return plain


@settings(max_examples=scaled(300))
@given(CHANGES, FILTERS, TOPICS, st.booleans())
def test_the_tree_answers_like_a_scan(
    changes: list[tuple[str, str | None]],
    filter_: str,
    topic: str,
    share: bool,  # noqa: FBT001
) -> None:
    tree: FilterTree[str] = FilterTree(share=share)
    plain = build(changes, tree)
    assert len(tree) == len(plain)
    assert sorted(tree.items()) == sorted(plain.items())
    assert all(tree.get(there) == value for there, value in plain.items())
    assert tree.get(filter_) == plain.get(filter_)
    if topic:
        expected = Counter(v for f, v in plain.items() if matches(f, topic))
        assert Counter(tree.matching(topic)) == expected
    assert Counter(tree.covering(filter_)) == Counter(
        v for f, v in plain.items() if covers(f, filter_)
    )
    expected_overlap = {f: v for f, v in plain.items() if overlaps(f, filter_)}
    assert dict(tree.overlapping(filter_)) == expected_overlap
    assert Counter(tree.overlapping_values(filter_)) == Counter(expected_overlap.values())


@settings(max_examples=scaled(300))
@given(CHANGES, FILTERS)
def test_taking_out_what_overlaps(changes: list[tuple[str, str | None]], filter_: str) -> None:
    tree: FilterTree[str] = FilterTree()
    plain = build(changes, tree)
    taken = [plain.pop(there) for there in list(plain) if overlaps(there, filter_)]
    assert Counter(tree.take(filter_)) == Counter(taken)
    assert sorted(tree.items()) == sorted(plain.items())
    assert len(tree) == len(plain)
    again: FilterTree[str] = FilterTree()
    for there, value in plain.items():
        again.set(there, value)
    assert nodes(tree) == nodes(again)


@settings(max_examples=scaled(300))
@given(CHANGES)
def test_an_emptied_tree_keeps_nothing(changes: list[tuple[str, str | None]]) -> None:
    tree: FilterTree[str] = FilterTree()
    for filter_ in build(changes, tree):
        tree.remove(filter_)
    assert len(tree) == 0
    for root in (tree._plain, tree._dollar):
        assert root.fold() is None


@settings(max_examples=scaled(300))
@given(CHANGES, FILTERS)
def test_a_removed_filter_leaves_the_tree_as_small_as_before(
    changes: list[tuple[str, str | None]], filter_: str
) -> None:
    with_it: FilterTree[str] = FilterTree()
    plain = build([*changes, (filter_, "one")], with_it)
    with_it.remove(filter_)
    del plain[filter_]
    without: FilterTree[str] = FilterTree()
    for there, value in plain.items():
        without.set(there, value)
    assert nodes(with_it) == nodes(without)


def nodes(tree: FilterTree[str]) -> int:
    """Count the branches of a tree."""
    count = 0
    waiting = [tree._plain, tree._dollar]
    while waiting:
        node = waiting.pop()
        count += 1
        below = [*node.children.values(), *([node.one] if node.one else [])]
        waiting += [entry for entry in below if isinstance(entry, type(tree._plain))]
    return count
