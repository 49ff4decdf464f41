"""Reservations: union, overwriting, removal, and caches that forget what changed only."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from penstock.model.purposes import PurposeSet
from penstock.policy.purposes.reservations import Reservations
from tests.support.policy.purpose_sets import parse_purposes

STORES = [(True, True), (True, False), (False, True), (False, False)]


def make(
    reserved: dict[str, str], *, tree: bool = True, cached: bool = True, allow: bool = True
) -> Reservations:
    store = Reservations(tree=tree, cached=cached, allow_unreserved=allow)
    for filter_, text in reserved.items():
        store.reserve(filter_, parse_purposes(text))
    return store


@pytest.mark.parametrize(("tree", "cached"), STORES)
def test_effective_purposes_are_unions(tree: bool, cached: bool) -> None:  # noqa: FBT001
    store = make(
        {"a/#": "{x|y/z}", "a/+": "{y}", "a/b": "{|x/q}", "b": "{w}"}, tree=tree, cached=cached
    )
    assert store.effective("a/b") == PurposeSet.of(["x", "y"], ["y/z", "x/q"])
    assert store.effective("a") == PurposeSet.of(["x"], ["y/z"])
    assert store.effective("c") is None
    assert dict(store.affected("a/b")) == {
        "a/#": PurposeSet.of(["x"], ["y/z"]),
        "a/+": PurposeSet.of(["y"]),
        "a/b": PurposeSet.of([], ["x/q"]),
    }
    verdicts = {ap: store.decide("a/b", ap) for ap in ("x", "x/q", "y", "y/z", "w", None)}
    assert verdicts == {"x": True, "x/q": False, "y": True, "y/z": False, "w": False, None: False}


@pytest.mark.parametrize(("tree", "cached"), STORES)
def test_reserving_again_overwrites_and_nothing_removes(tree: bool, cached: bool) -> None:  # noqa: FBT001
    store = make({"a": "{x}"}, tree=tree, cached=cached)
    assert store.decide("a", "x")
    store.reserve("a", parse_purposes("{y}"))
    assert not store.decide("a", "x")
    assert store.decide(b"a", "y")
    store.reserve("a", parse_purposes("{|}"))
    assert not store.decide("a", "y")
    assert store.get("a") == PurposeSet()
    store.reserve("a", parse_purposes("{}"))
    assert store.decide("a", None)
    assert len(store) == 0


@pytest.mark.parametrize(("tree", "cached"), STORES)
def test_strict_mode_denies_what_is_not_reserved(tree: bool, cached: bool) -> None:  # noqa: FBT001
    store = make({"a": "{x}"}, tree=tree, cached=cached, allow=False)
    assert not store.decide("b", "x")
    assert store.decide("a", "x")
    store.configure(tree=not tree, cached=cached, allow_unreserved=True)
    assert store.decide("b", None)
    assert store.decide("a", "x")


def test_a_change_forgets_the_affected_topics_only() -> None:
    store = make({"a/#": "{x}"})
    for topic in ("a/b", "a/c", "b"):
        store.decide(topic, "x")
    assert store._cache is not None
    store.reserve("a/b", PurposeSet.of(["y"]))
    assert set(store._cache) == {"a/c", "b"}
    store.reserve("a/+", PurposeSet.of(["y"]))
    assert set(store._cache) == {"b"}


def test_the_same_reservation_again_changes_nothing() -> None:
    store = make({"a": "{x}"})
    store.decide("a", "x")
    old, new = store.reserve("a", PurposeSet.of(["x"]))
    assert old is new
    assert store._cache is not None
    assert set(store._cache) == {"a"}


def test_equal_sets_are_one_object() -> None:
    store = make({"a": "{x}", "b": "{x}"}, cached=False)
    (one,) = store.covering("a")
    (other,) = store.covering("b")
    assert one is other


def test_the_pool_of_sets_is_bounded_and_can_be_emptied_at_any_time() -> None:
    store = make({"a": "{x}", "b/+": "{x}"}, cached=True)
    store.replace_all((f"a/{n}", PurposeSet.of([f"p{n}"])) for n in range(20_000))
    assert len(store._pool._sets) <= 16_384
    store.reserve("a/+", PurposeSet.of(["p0"]))
    assert store.decide("a/0", "p0")
    store._pool._sets.clear()
    store.reserve("a/0", PurposeSet.of(["p0"]))
    assert store.decide("a/0", "p0")
    assert len(store) == 20_001


def test_many_access_purposes_do_not_pile_up() -> None:
    store = make({"a": "{x}"})
    for number in range(10_000):
        assert not store.decide("a", f"p{number}")
    assert len(store._work_out("a")) <= 4_096
    assert store.decide("a", "x")


def test_a_reservation_with_a_set_of_its_own_takes_little_memory() -> None:
    """Neither its path nor its purposes are shared with any other."""
    count = 20_000
    gc.collect()
    tracemalloc.start()
    try:
        store = Reservations(cached=False)
        store.replace_all(
            (f"fleet/car{n}/part{n}/sensor{n}", PurposeSet.of([f"p{n}"])) for n in range(count)
        )
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(store) == count
    assert held / count <= 600
    assert store.get("fleet/car7/part7/sensor7") == PurposeSet.of(["p7"])
