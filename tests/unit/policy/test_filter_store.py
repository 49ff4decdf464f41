"""The flat store answers like the tree, and deep filters are refused."""

from __future__ import annotations

import pytest

from penstock.model.topics import TopicError
from penstock.policy.filter_store import LEVEL_LIMIT, FilterStore, FlatFilters, check_depth
from penstock.policy.filter_tree import FilterTree

FILTERS = ["#", "a/#", "a/+/c", "a/b/#", "a/b", "+/b", "$s/+", "/"]


@pytest.mark.parametrize("asked", ["#", "a", "a/b", "a/b/c", "a/+", "a/+/c", "$s/x", "/", "+/+"])
def test_stores_agree(asked: str) -> None:
    stores: list[FilterStore[str]] = [FlatFilters(), FilterTree()]
    for store in stores:
        for filter_ in FILTERS:
            assert store.set(filter_, filter_) is None
        assert store.set("a/b", "again") == "a/b"
        assert store.remove("+/b") == "+/b"
    flat, tree = stores
    assert len(flat) == len(tree) == len(FILTERS) - 1
    assert sorted(flat.items()) == sorted(tree.items())
    assert flat.get(asked) == tree.get(asked)
    assert sorted(flat.covering(asked)) == sorted(tree.covering(asked))
    assert sorted(flat.overlapping(asked)) == sorted(tree.overlapping(asked))
    assert sorted(flat.overlapping_values(asked)) == sorted(tree.overlapping_values(asked))
    if "+" not in asked and "#" not in asked:
        assert sorted(flat.matching(asked)) == sorted(tree.matching(asked))
    for store in stores:
        store.clear()
        assert len(store) == 0
        assert list(store.items()) == []


def test_filters_have_a_depth_limit() -> None:
    assert check_depth("/" * (LEVEL_LIMIT - 1))
    with pytest.raises(TopicError, match="levels"):
        check_depth("/" * LEVEL_LIMIT)
