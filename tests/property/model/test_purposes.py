"""Purpose sets: reading back what was printed, and compatibility in the plainest words."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.purposes import PurposeSet
from tests.support.policy.purpose_sets import parse_purposes
from tests.support.scale import scaled

PURPOSES = st.lists(st.sampled_from(["a", "b", "ab", "c"]), min_size=1, max_size=4).map("/".join)
SETS = st.builds(PurposeSet.of, st.lists(PURPOSES, max_size=4), st.lists(PURPOSES, max_size=4))


def under(purpose: str, ancestor: str) -> bool:
    return (purpose + "/").startswith(ancestor + "/")


@given(SETS)
def test_what_is_printed_reads_back(purposes: PurposeSet) -> None:
    assert parse_purposes(str(purposes)) == purposes


@given(SETS, PURPOSES)
def test_compatibility(purposes: PurposeSet, ap: str) -> None:
    allowed = any(under(ap, there) for there in purposes.aip)
    prohibited = any(under(ap, there) for there in purposes.pip)
    assert purposes.compatible(ap) == (allowed and not prohibited)


@given(SETS, SETS, PURPOSES)
def test_a_union_allows_what_one_allows_and_none_prohibits(
    one: PurposeSet, other: PurposeSet, ap: str
) -> None:
    effects = (one.effect(ap), other.effect(ap))
    expected = min(effects) if min(effects) < 0 else max(effects)
    assert one.union(other).effect(ap) == expected


@given(SETS, SETS, st.one_of(PURPOSES, st.none()))
@settings(max_examples=scaled(500))
def test_narrowing_admits_what_both_admit(
    one: PurposeSet, other: PurposeSet, ap: str | None
) -> None:
    assert one.narrow(other).admits(ap) == (one.admits(ap) and other.admits(ap))
    assert one.narrow(other) == other.narrow(one)
