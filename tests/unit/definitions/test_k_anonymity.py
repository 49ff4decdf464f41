"""k-anonymity in definitions: how long records wait, outliers, algorithms, whole numbers."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.definitions import DefinitionSet
from penstock.definitions.views import plan_view
from penstock.errors import InvalidError
from penstock.model.document import Document
from penstock.model.kinds import Stream, View

FIELDS = [
    {"name": "pid", "type": "int", "category": "identifier"},
    {"name": "age", "type": "int", "category": "quasi-identifier"},
    {"name": "weight", "type": "double"},
    {"name": "illness", "type": "string"},
    {"name": "code", "type": "int"},
]
K = {
    "anonymizer": "k_anonymization",
    "keys": ["pid"],
    "quasi_identifiers": [{"key": "age", "min": 0, "max": 120}],
    "k": 5,
}
DIVERSE = {
    **K,
    "anonymizer": "l_diversity",
    "sensitive": [{"key": "illness", "values": ["E10", "E11"]}],
    "l": 2,
}


def _build(*anonymizers: dict[str, Any]) -> DefinitionSet:
    stream = Document("stream", "patients", {"fields": FIELDS, "subject": "pid"})
    view = Document("view", "v", {"stream": "patients", "anonymizers": list(anonymizers)})
    return DefinitionSet.build([stream, view])


def _parameters(anonymizer: dict[str, Any]) -> Any:
    built = _build(anonymizer)
    view, stream = built.get(View, "v"), built.get(Stream, "patients")
    assert view is not None
    assert stream is not None
    return plan_view(view, stream, {}).stateful[0]


def _problems(*anonymizers: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidError) as caught:
        _build(*anonymizers)
    return [str(it) for it in caught.value.problems]


def test_a_wait_has_a_unit_or_is_in_milliseconds() -> None:
    assert _parameters(K).max_wait is None
    assert _parameters({**K, "max_wait": "10m"}).max_wait == 600_000
    assert _parameters({**K, "max_wait": 250}).max_wait == 250


@pytest.mark.parametrize("wait", [0, "0s", -1, "soon", "10000d", 1.5])
def test_no_wait_is_refused(wait: Any) -> None:
    (problem,) = _problems({**K, "max_wait": wait})
    assert "anonymizers.0.max_wait" in problem


def test_an_algorithm_of_k_anonymity_alone_is_chosen_by_name() -> None:
    assert _parameters(K).algorithm == "partition"
    assert _parameters({**K, "algorithm": "castle"}).algorithm == "castle"
    (problem,) = _problems({**K, "algorithm": "mondrian"})
    assert "'mondrian' is not a choice" in problem
    (problem,) = _problems({**DIVERSE, "algorithm": "castle"})
    assert "castle counts persons, and knows nothing of l_diversity" in problem


def test_outliers_go_to_the_root_where_nobody_who_joins_breaks_a_rule() -> None:
    assert _parameters({**K, "outliers": "root"}).outliers == "root"
    assert _parameters({**DIVERSE, "outliers": "root"}).outliers == "root"
    close = {**DIVERSE, "anonymizer": "t_closeness", "t": 0.2}
    del close["l"]
    for refused in ({**DIVERSE, "method": "entropy"}, close):
        (problem,) = _problems({**refused, "outliers": "root"})
        assert "under the root, one more record could break" in problem


@pytest.mark.parametrize("form", ["hierarchy", "values"])
def test_whole_numbers_can_be_listed(form: str) -> None:
    tree = {"value": "all", "children": [{"value": "7"}, {"value": "8"}]}
    if form == "hierarchy":
        quasi = [*K["quasi_identifiers"], {"key": "code", "hierarchy": tree}]  # type: ignore[misc]
        assert _parameters({**K, "quasi_identifiers": quasi}).quasi_identifiers[1].key == "code"
    else:
        sensitive = [{"key": "code", "values": ["7", "8"]}]
        assert _parameters({**DIVERSE, "sensitive": sensitive}).sensitive[0].key == "code"


def test_listed_numbers_are_numbers_each_once() -> None:
    sensitive = [{"key": "code", "values": ["7", "07", "many"]}]
    text = "\n".join(_problems({**DIVERSE, "sensitive": sensitive}))
    assert "'07' and '7' are one number" in text
    assert "'many' is no int, as 'code' is" in text
    tree = {"value": "all", "children": [{"value": "7"}]}
    quasi = [{"key": "weight", "hierarchy": tree}]
    (problem,) = _problems({**K, "quasi_identifiers": quasi})
    assert "'weight' is double; only texts and whole numbers can be listed" in problem


def test_all_that_is_wrong_with_a_view_is_told_at_once() -> None:
    text = "\n".join(
        _problems(
            {"anonymizer": "bucketizing", "keys": ["illness"], "bucket_size": 5},
            {"anonymizer": "blurring", "keys": ["weight"]},
            {"anonymizer": "noise", "keys": ["age"]},
            # What these meet is not known: the step before them is none, or has problems.
            {"anonymizer": "generalization", "keys": ["age"], "generalization_map": {"x": "y"}},
            {"anonymizer": "bucketizing", "keys": ["illness", "gone"], "bucket_size": 5},
            {**K, "quasi_identifiers": [{"key": "code", "hierarchy": "codes"}]},
        )
    )
    for wanted in (
        "anonymizers.0.keys.0: bucketizing does not take 'illness'",
        "anonymizers.1.keys.0: blurring does not take 'weight'",
        "anonymizers.2.noise: the parameter is missing",
        "anonymizers.4.keys.1: there is no field 'gone'",
        "anonymizers.5.quasi_identifiers.0.hierarchy: there is no hierarchy 'codes'",
    ):
        assert wanted in text, text
    assert "anonymizers.3" not in text
    assert "anonymizers.4.keys.0" not in text


def test_behind_anonymizers_that_are_none_nothing_is_made_up() -> None:
    unknown = {key: value for key, value in K.items() if key != "k"}
    problems = _problems(
        unknown,
        {"anonymizer": "generalization", "keys": ["age"], "generalization_map": {"[0 - 9]": "y"}},
    )
    assert len(problems) == 1
    assert "anonymizers.0.k: the parameter is missing" in problems[0]


@pytest.mark.parametrize(
    ("quasi", "place", "message"),
    [
        ({"key": "age", "min": [1], "max": 9}, ".min", "write a number, or a date such as"),
        ({"key": "age", "min": True, "max": 9}, ".min", "write a number, or a date such as"),
        ({"key": "age", "hierarchy": 7}, ".hierarchy", "name a hierarchy, or write its tree"),
        (
            {"key": "age", "hierarchy": {"value": "*", "children": [{"value": 5}]}},
            ".hierarchy.children.0.value",
            "valid string",
        ),
        ({"key": "age", "min": "2000-01-01", "max": "2001-01-01"}, "", "'age' is int, and"),
        ({"key": "born", "min": 1, "max": 9}, "", "write min and max as dates"),
        ({"key": "born", "min": "2000-1-1", "max": "2001-01-01"}, "", "is not a date"),
        ({"key": "born", "min": "2000-01-01", "max": "1999-01-01"}, "", "is not below max"),
        (
            {
                "key": "born",
                "min": "2000-01-02",
                "max": "2001-01-01",
                "bucket_size": 1,
                "unit": "years",
            },
            "",
            "begin with 2000-01-01",
        ),
        ({"key": "age", "min": 0, "max": 9, "unit": "years"}, "", "unit years is for dates"),
    ],
)
def test_bounds_and_trees_are_refused_in_words_at_their_place(
    quasi: dict[str, Any], place: str, message: str
) -> None:
    born = {"name": "born", "type": "date", "category": "quasi-identifier"}
    stream = Document("stream", "patients", {"fields": [*FIELDS, born], "subject": "pid"})
    step = {**K, "quasi_identifiers": [quasi]}
    view = Document("view", "v", {"stream": "patients", "anonymizers": [step]})
    with pytest.raises(InvalidError) as caught:
        DefinitionSet.build([stream, view])
    told = [str(it) for it in caught.value.problems]
    assert any(message in it for it in told), told
    assert not any(word in it for it in told for word in ("float", "function", "(tree)", "check_"))
    assert any(f"quasi_identifiers.0{place}" in it for it in told), told
