from __future__ import annotations

import pytest

from penstock.gateway.authorization.message_purposes import as_properties, narrow, read_purposes
from penstock.model.purposes import PurposeSet, parse_purposes


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
