from __future__ import annotations

import pytest

from penstock.gateway.authorization.request_context import (
    Stamp,
    StampReader,
    as_properties,
    narrow,
    read_purposes,
)
from penstock.model.purposes import PurposeSet
from tests.support.policy.purpose_sets import parse_purposes


def test_all_properties_count() -> None:
    pairs = (("purpose-aip", "a,b"), ("own", "x"), ("purpose-pip", "c"), ("purpose-aip", "d"))
    assert read_purposes(pairs) == PurposeSet.of(["a", "b", "d"], ["c"])
    assert read_purposes((("purpose-aip", ""),)) == PurposeSet()
    assert read_purposes((("own", "x"),)) is None


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("{a}", "{b|c}", "{|}"),
        ("{|}", "{|x}", "{|}"),
        ("{a}", "{|x}", "{a|x}"),
        ("{a}", "{a/b,c}", "{a/b}"),
    ],
)
def test_what_two_places_say_narrows(one: str, other: str, both: str) -> None:
    sets = parse_purposes(one), parse_purposes(other)
    assert narrow(*sets) == narrow(*reversed(sets)) == parse_purposes(both)
    assert narrow(sets[0], None) == narrow(None, sets[0]) == sets[0]


def test_they_travel_in_properties_of_the_gateway() -> None:
    purposes = PurposeSet.of(["b", "a"], ["c"])
    assert as_properties(purposes) == (("penstock-aip", "a,b"), ("penstock-pip", "c"))


@pytest.mark.parametrize(
    ("pairs", "stamp"),
    [
        ((), Stamp()),
        ((("penstock-publisher", "ann"),), Stamp(stamped=True, user="ann")),
        ((("penstock-publisher", "anonymous"),), Stamp(stamped=True)),
        (
            (("penstock-publisher", "ann"), ("penstock-client", "c"), ("penstock-for", "bob")),
            Stamp(stamped=True, user="ann", client="c", behalf="bob"),
        ),
        ((("penstock-aip", "p"),), Stamp(purposes=PurposeSet.of(["p"]))),
        ((("penstock-aip", "not//one"),), Stamp(purposes=PurposeSet())),
    ],
)
def test_a_stamp_says_who_published_and_what_for(
    pairs: tuple[tuple[str, str], ...], stamp: Stamp
) -> None:
    reader = StampReader()
    assert reader.read(pairs) == stamp
    assert reader.read(pairs) == stamp, "the second time from memory"


def test_long_stamps_are_read_and_not_remembered() -> None:
    reader = StampReader()
    for number in range(100):
        named = [f"{number}-{'p' * 200}{it}" for it in range(4)]
        assert reader.read((("penstock-aip", ",".join(named)),)).purposes == PurposeSet.of(named)
    assert not reader._known
