"""Suppression, blurring, substitution, generalization: masks that look at one value."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidError
from penstock.masks import Hierarchy, Rejected, read_masks
from tests.support.masks.single_mask import chain_of, mask_one, problems_of, supply

NAMES = ["Ada", "Grace", "Alan", "Edsger", "Barbara"]


@pytest.mark.parametrize(
    ("kind", "spec", "value", "expected"),
    [
        ("string", {}, "Hans", "*"),
        ("string", {}, None, "*"),
        ("int", {}, 7, None),
        ("double", {}, 7.5, None),
        ("int", {"as": "text"}, 7, "*"),
        ("boolean", {"as": "text"}, None, "*"),
    ],
)
def test_suppression(kind: str, spec: dict[str, Any], value: Any, expected: Any) -> None:
    assert mask_one(kind, {"anonymizer": "suppression", **spec}, value) == expected


def test_suppression_declares_its_output() -> None:
    def output(kind: str, **more: str) -> tuple[str, bool]:
        field = chain_of(kind, {"anonymizer": "suppression", **more}).output["x"]
        return field.type, field.optional

    assert output("string") == ("string", False)
    assert output("int") == ("int", True)
    assert output("int", **{"as": "text"}) == ("string", False)


@pytest.mark.parametrize(
    ("spec", "value", "expected"),
    [
        ({"n_fields": 13}, "1234567890123313", "XXXXXXXXXXXXX313"),
        ({}, "secret", "XXXXXX"),
        ({"keep_length": False}, "secret", "X"),
        ({"keep_length": False}, "", "X"),
        ({}, "", ""),
        ({"n_fields": 9}, "abc", "XXX"),
        ({"n_fields": 2, "from": "end"}, "abcd", "abXX"),
        ({"n_fields": 2, "from": "end", "keep_length": False}, "abcd", "abX"),
        ({"n_fields": 1}, "\U0001f600é", "Xé"),
        ({"n_fields": 2}, None, None),
    ],
)
def test_blurring(spec: dict[str, Any], value: str | None, expected: str | None) -> None:
    assert mask_one("string", {"anonymizer": "blurring", **spec}, value) == expected


def test_blurring_of_a_number_is_text() -> None:
    chain = chain_of("int", {"anonymizer": "blurring", "n_fields": 3})
    assert chain.output["x"].type == "string"
    assert chain.apply({"x": -12345}) == {"x": "XXX345"}


def substitution(**more: Any) -> dict[str, Any]:
    return {"anonymizer": "substitution", "substitution_list": NAMES, **more}


def test_substitution_is_consistent_within_a_view_only() -> None:
    values = [f"person {number}" for number in range(200)]
    one = chain_of("string", substitution())
    other = chain_of("string", substitution(), supplies=supply("other view"))
    masked = [one.apply({"x": value}, "1") for value in values]
    assert masked == [one.apply({"x": value}, "2") for value in values]
    assert masked != [other.apply({"x": value}, "1") for value in values]
    assert {str(it["x"]) for it in masked if isinstance(it, dict)} == set(NAMES)


def test_substitution_in_a_shared_domain_is_the_same_everywhere() -> None:
    chains = [
        chain_of("string", substitution(domain="people"), supplies=supply(view))
        for view in ("one", "two")
    ]
    for number in range(50):
        record = {"x": f"person {number}"}
        assert chains[0].apply(record) == chains[1].apply(record)


def test_random_substitution_follows_the_record_and_repeats_on_replay() -> None:
    chain = chain_of("string", substitution(random=True))
    drawn = [chain.apply({"x": "Hans"}, f"t/0/{offset}") for offset in range(100)]
    assert drawn == [chain.apply({"x": "Hans"}, f"t/0/{offset}") for offset in range(100)]
    assert {str(it["x"]) for it in drawn if isinstance(it, dict)} == set(NAMES)
    assert chain.apply({"x": "Hans"}) == Rejected(
        "the record has no identity, from which chance is drawn"
    )


def test_substitutes_have_the_type_of_the_field() -> None:
    spec = {"keys": ["x"], **substitution(substitution_list=["Ada", 1, 1.5, True])}
    found = problems_of(spec, x="int")
    assert [text.split(":")[0] for text in found] == [
        f"anonymizers[0].substitution_list[{index}]" for index in (0, 2, 3)
    ]
    (found_one,) = problems_of({"keys": ["x"], **substitution(substitution_list=[1.5])}, x="double")
    assert "no consistent substitute → set random: true" in found_one


def test_empty_list_of_substitutes() -> None:
    with pytest.raises(InvalidError, match="substitution_list: the list is empty"):
        read_masks([{"keys": ["x"], **substitution(substitution_list=[])}])


def generalization(**more: Any) -> dict[str, Any]:
    return {"anonymizer": "generalization", **more}


def test_generalization_by_map() -> None:
    spec = generalization(generalization_map={"Berlin": "Germany", "Paris": "France"})
    assert mask_one("string", spec, "Berlin") == "Germany"
    assert mask_one("string", spec, None) is None
    assert mask_one("string", spec, "Rome") == Rejected(
        "generalization of 'x': the value is not in the map or hierarchy, and there is no default"
    )
    assert mask_one("string", {**spec, "default": "elsewhere"}, "Rome") == "elsewhere"


def test_numbers_match_as_numbers() -> None:
    spec = generalization(generalization_map={"07": "seven", "-1": "minus one"})
    assert mask_one("int", spec, 7) == "seven"
    assert mask_one("long", spec, -1) == "minus one"
    (found,) = problems_of(
        {"keys": ["x"], **generalization(generalization_map={"7": "a", "07": "b"})}, x="int"
    )
    assert "'07' is there twice" in found


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", 10115, "east"),
        ("int", 20095, "north"),
        ("int", 2, "north"),
        ("string", "01067", "south"),
        ("string", "1", "east"),
    ],
)
def test_generalization_by_how_values_begin(kind: str, value: Any, expected: str) -> None:
    table = {"0": "south", "1": "east", "2": "north"}
    spec = generalization(generalization_map=table, beginning=1)
    assert mask_one(kind, spec, value) == expected
    assert isinstance(mask_one("int", spec, 30159), Rejected)
    assert mask_one("int", {**spec, "default": "elsewhere"}, 30159) == "elsewhere"


def test_what_no_value_begins_with_is_refused() -> None:
    with pytest.raises(InvalidError, match=r"'101' has more than 2 characters"):
        read_masks(
            [{**generalization(generalization_map={"101": "x"}, beginning=2), "keys": ["x"]}]
        )
    with pytest.raises(InvalidError, match="beginning is for generalization_map"):
        read_masks([{**generalization(hierarchy="places", level=1, beginning=2), "keys": ["x"]}])


def test_substitutes_of_a_number_may_be_text() -> None:
    spec = {"anonymizer": "substitution", "substitution_list": NAMES}
    assert "declare as: text" in problems_of({"keys": ["x"], **spec}, x="int")[0]
    chain = chain_of("int", {**spec, "as": "text"})
    assert chain.output["x"].type == "string"
    assert mask_one("int", {**spec, "as": "text"}, 7) in NAMES
    same = {mask_one("int", {**spec, "as": "text"}, 7) for _ in range(3)}
    assert len(same) == 1


@pytest.mark.parametrize(
    ("level", "value", "expected"),
    [(1, "Berlin", "Germany"), (2, "Berlin", "Europe"), (9, "Berlin", "Europe")],
)
def test_generalization_by_hierarchy(level: int, value: str, expected: str) -> None:
    assert mask_one("string", generalization(hierarchy="places", level=level), value) == expected
    assert mask_one("string", generalization(hierarchy="places", level=level), "Monaco") == "Europe"
    refused = mask_one("string", generalization(hierarchy="places", level=level), "Germany")
    assert isinstance(refused, Rejected), "groups are no values of records"


def test_hierarchy_written_in_place() -> None:
    tree = {"value": "any", "children": [{"value": "m"}, {"value": "f"}]}
    assert mask_one("string", generalization(hierarchy=tree, level=1), "m") == "any"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({}, "exactly one of both"),
        ({"generalization_map": {"a": "b"}, "hierarchy": "places", "level": 1}, "exactly one"),
        ({"hierarchy": "places"}, "hierarchy and level go together"),
        ({"hierarchy": "places", "level": 0}, r"anonymizers\[0\].level"),
        ({"hierarchy": 3, "level": 1}, "name a hierarchy, or write its tree"),
        (
            {"hierarchy": {"value": "a"}, "level": 1},
            r"anonymizers\[0\].hierarchy: it has no values",
        ),
        ({"generalization_map": {"a": 1}}, r"anonymizers\[0\].generalization_map.a"),
        ({"generalization_map": {}}, r"anonymizers\[0\].generalization_map"),
    ],
)
def test_wrong_parameters_of_generalization(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidError, match=problem):
        read_masks([{"keys": ["x"], **generalization(**spec)}])


def test_unknown_hierarchy() -> None:
    (found,) = problems_of(
        {"keys": ["x"], **generalization(hierarchy="diseases", level=1)}, x="string"
    )
    assert found == (
        "anonymizers[0].hierarchy: there is no hierarchy 'diseases' → hierarchies are places"
    )


def test_a_hierarchy_holds_each_value_once_and_has_an_end() -> None:
    with pytest.raises(ValueError, match="'b' stands in the hierarchy twice"):
        Hierarchy.model_validate(
            {
                "value": "a",
                "children": [{"value": "b"}, {"value": "c", "children": [{"value": "b"}]}],
            }
        )
    tree: dict[str, Any] = {"value": "leaf"}
    for depth in range(40):
        tree = {"value": f"node {depth}", "children": [tree]}
    with pytest.raises(ValueError, match="deeper than 32 levels"):
        Hierarchy.model_validate(tree)
