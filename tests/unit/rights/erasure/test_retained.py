"""Which topics are asked for what they retain about a person."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.model.kinds import Stream
from penstock.rights.erasure.retained import list_filters

FIELDS = [{"name": "pid", "type": "string"}, {"name": "n", "type": "int"}]


def stream(**body: Any) -> Stream:
    return Stream.model_validate({"name": "s", "fields": FIELDS, **body})


@pytest.mark.parametrize("person", ["a/b", "+", "#", "a#", "", "a\0"])
def test_a_name_that_no_level_can_have_is_not_put_into_a_filter(person: str) -> None:
    declared = stream(subject="pid", **{"from": ["home/+pid/pulse"]})
    assert list_filters([declared], person) == []


def test_a_level_that_names_the_person_narrows_the_filter() -> None:
    by_level = stream(subject="pid", **{"from": ["home/+pid/pulse", "x/+/y"]})
    assert list_filters([by_level], "ann") == ["home/ann/pulse", "x/+/y"]
    # A number has several spellings: 7 and 07 are one person.
    by_number = stream(subject="n", **{"from": ["home/+n/pulse"]})
    assert list_filters([by_number], "7") == ["home/+/pulse"]
    assert list_filters([stream(**{"from": ["home/+pid/pulse"]})], "ann") == []
