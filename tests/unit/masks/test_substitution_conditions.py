from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from penstock.errors import InvalidError
from penstock.masks import Chain, Field, read_masks
from tests.support.masks.single_mask import mask_one, problems_of, supply

SCHEMA = {
    "rank": Field.of("string", optional=True),
    "salary": Field.of("int", optional=True),
    "email": Field.of("string", optional=True),
    "ins. no.": Field.of("string", optional=True),
    "born": Field.of("date", optional=True),
    "score": Field.of("double", optional=True),
}


def replace(**more: Any) -> dict[str, Any]:
    return {"anonymizer": "conditional_substitution", **more}


def apply(record: dict[str, Any], **more: Any) -> dict[str, Any]:
    outcome = Chain(read_masks([replace(**more)]), SCHEMA, supply()).apply(record)
    assert isinstance(outcome, dict)
    return outcome


@pytest.mark.parametrize(
    ("rank", "expected"),
    [("Worker", "62000"), ("Manager", "*"), ("manager", "62000"), (None, "*")],
)
def test_a_match_on_another_field(rank: str | None, expected: str) -> None:
    masked = apply(
        {"rank": rank, "salary": 62000},
        keys=["salary"],
        condition_map={"rank": {"match_value": "Manager"}},
        substitution_list=["*"],
        **{"as": "text"},
    )
    assert masked["salary"] == expected
    assert masked["rank"] == rank


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (45, "45"),
        (7, "minor"),
        (0, "minor"),
        (18, "minor"),
        (19, "19"),
        (-1, "-1"),
        (None, "minor"),
    ],
)
def test_a_range_on_the_field_itself(age: int | None, expected: str) -> None:
    spec = replace(
        condition_map={"match_range": [0, 18]}, substitution_list=["minor"], **{"as": "text"}
    )
    assert mask_one("int", spec, age) == expected


def test_ends_of_ranges() -> None:
    spec = replace(condition_map={"match_range": [17.5, 35.1]}, substitution_list=[0])
    assert [mask_one("int", spec, age) for age in (17, 18, 35, 36)] == [17, 0, 0, 36]
    spec = replace(condition_map={"match_range": [None, 18]}, substitution_list=[0])
    assert [mask_one("long", spec, age) for age in (-(2**63), 18, 19)] == [0, 0, 19]
    spec = replace(condition_map={"match_range": [0.5, 1]}, substitution_list=[-1])
    assert [mask_one("double", spec, it) for it in (0.4, 0.5, 1.0, 1.1)] == [0.4, -1, -1, 1.1]
    assert mask_one("double", spec, float("nan")) == -1, "what cannot be decided is not shown"


def test_a_regular_expression_on_another_field() -> None:
    for email, expected in [("a@example.com", 0), ("a@mail.org", 150), ("", 150), (None, 0)]:
        masked = apply(
            {"email": email, "salary": 150},
            keys=["salary"],
            condition_map={"email": {"match_regex": r"@example\.com"}},
            substitution_list=[0],
        )
        assert masked["salary"] == expected


def test_all_conditions_have_to_be_met() -> None:
    conditions = {
        "rank": {"match_value": ["Manager", "Boss"]},
        "salary": {"match_range": [100, None]},
    }
    for rank, salary, expected in [
        ("Boss", 100, 1),
        ("Boss", 99, 99),
        ("Worker", 100, 100),
        ("Worker", None, None),
        ("Boss", None, 1),
    ]:
        masked = apply(
            {"rank": rank, "salary": salary},
            keys=["salary"],
            condition_map=conditions,
            substitution_list=[1],
        )
        assert masked["salary"] == expected


def test_an_expression() -> None:
    for rank, salary, expected in [("Boss", 5, 5), ("Boss", 50, 0), ("Worker", 50, 50)]:
        masked = apply(
            {"rank": rank, "salary": salary},
            keys=["salary"],
            expression='r.rank == "Boss" && r.salary > 10',
            substitution_list=[0],
        )
        assert masked["salary"] == expected


def test_names_and_values_that_need_quoting() -> None:
    value = 'a"b\\c\nd'
    masked = apply(
        {"ins. no.": value},
        keys=["ins. no."],
        condition_map={"ins. no.": {"match_value": value}},
        substitution_list=["*"],
    )
    assert masked["ins. no."] == "*"


def test_dates() -> None:
    for born, expected in [
        (date(1949, 12, 31), "1949-12-31"),
        (date(1950, 1, 1), "old"),
        (date(2000, 12, 31), "old"),
        (date(2001, 1, 1), "2001-01-01"),
    ]:
        masked = apply(
            {"born": born},
            keys=["born"],
            condition_map={"match_range": ["1950-01-01", "2000-12-31"]},
            substitution_list=["old"],
            **{"as": "text"},
        )
        assert masked["born"] == expected


def test_conditions_see_the_record_before_any_key_is_replaced() -> None:
    masked = apply(
        {"rank": "Boss", "email": "Boss"},
        keys=["rank", "email"],
        condition_map={"rank": {"match_value": "Boss"}},
        substitution_list=["*"],
    )
    assert (masked["rank"], masked["email"]) == ("*", "*")


def test_of_several_substitutes_the_value_chooses() -> None:
    spec = replace(condition_map={"match_regex": "."}, substitution_list=["a", "b", "c"])
    drawn = [mask_one("string", spec, f"name {n}") for n in range(60)]
    assert drawn == [mask_one("string", spec, f"name {n}", "other") for n in range(60)]
    assert set(drawn) == {"a", "b", "c"}


def test_numbers_match_as_numbers() -> None:
    for written in (18, 18.0, "18"):
        spec = replace(condition_map={"match_value": written}, substitution_list=[0])
        assert [mask_one("int", spec, it) for it in (18, 19)] == [0, 19]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({}, "exactly one of both"),
        (
            {"condition_map": {"match_regex": "a("}},
            r"condition_map.match_regex: it is not a regular",
        ),
        (
            {"condition_map": {"match_regex": "(a)\\1"}},
            r"condition_map.match_regex: it is not a regular",
        ),
        (
            {"condition_map": {"match_range": [None, None]}},
            r"condition_map.match_range: a range has",
        ),
        ({"condition_map": {"match_range": [1]}}, r"condition_map.match_range"),
        ({"condition_map": {"matchValue": 1}}, r"'matchValue' is no name .* → write match_value"),
        ({"condition_map": {"a": {"matchRegex": "b"}}}, r"'matchRegex' .* → write match_regex"),
        ({"conditionMap": {"match_value": 1}}, r"'conditionMap' .* → write condition_map"),
        ({"condition_map": {"match_value": []}}, r"condition_map.match_value: write 1 to 200"),
        ({"condition_map": {}}, r"condition_map"),
        ({"condition_map": 5}, r"condition_map: '5': write \{match_value"),
        ({"condition_map": {"rank": {"is": 3}}}, r"condition_map.rank"),
        ({"condition_map": {"match_value": 1, "match_range": [0, 1]}}, "write exactly one of"),
    ],
)
def test_wrong_parameters(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidError, match=problem):
        read_masks([replace(keys=["x"], substitution_list=["*"], **more)])


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"condition_map": {"match_range": [0, 1]}}, "'x' is string, which has no ranges"),
        ({"condition_map": {"n": {"match_value": "a"}}}, "a value is no int, as 'n' is"),
        ({"condition_map": {"n": {"match_value": 1.5}}}, "a value is no int, as 'n' is"),
        ({"condition_map": {"n": {"match_regex": "a"}}}, "a regular expression needs text"),
        ({"condition_map": {"y": {"match_value": "a"}}}, "there is no field 'y'"),
        ({"expression": "r.y == 1"}, "r has no field 'y'"),
        ({"expression": "r.n + 1"}, "bool is asked for here"),
        ({"condition_map": {"match_value": "a"}, "substitution_list": [1]}, "'1' is no string"),
    ],
)
def test_what_does_not_fit_the_schema(more: dict[str, Any], problem: str) -> None:
    spec = {**replace(keys=["x"], substitution_list=["*"]), **more}
    (found,) = problems_of(spec, x="string", n="int")
    assert problem in found
