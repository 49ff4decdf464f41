from __future__ import annotations

from typing import Any

import pytest

from penstock.definitions import DefinitionSet
from penstock.definitions.differential_privacy import DifferentialPrivacy
from penstock.definitions.views import plan_view
from penstock.errors import InvalidError
from penstock.model.document import Document
from penstock.model.kinds import Stream, View

FIELDS = [
    {"name": "pid", "type": "int"},
    {"name": "ward", "type": "string"},
    {"name": "age", "type": "int"},
    {"name": "at", "type": "long"},
]
COUNT = {"name": "patients", "mode": "count"}
AVERAGE = {"name": "mean_age", "mode": "average", "key": "age", "min": 0, "max": 120}
WARDS = [{"key": "ward", "values": ["east", "west"]}]


def _define(
    anonymizer: dict[str, Any], *, stream: dict[str, Any] | None = None, **view: Any
) -> DefinitionSet:
    settings: dict[str, Any] = {
        "aggregates": [COUNT],
        "epsilon": 1,
        "budget": 10,
        **anonymizer,
    }
    body = {
        "stream": "patients",
        "anonymizers": [{"anonymizer": "differential_privacy", **settings}],
        "window": {"size": "1h"},
        **view,
    }
    about = {"fields": FIELDS, "subject": "pid", "time": "at"} if stream is None else stream
    return DefinitionSet.build(
        [Document("stream", "patients", about), Document("view", "figures", body)]
    )


def _problems(anonymizer: dict[str, Any], **more: Any) -> str:
    with pytest.raises(InvalidError) as caught:
        _define(anonymizer, **more)
    return str(caught.value)


def test_the_view_has_times_groups_and_figures_and_nothing_else() -> None:
    built = _define({"aggregates": [COUNT, AVERAGE], "groups": WARDS})
    view, stream = built.get(View, "figures"), built.get(Stream, "patients")
    assert view is not None
    assert stream is not None
    output = plan_view(view, stream, {}).output
    assert {name: (str(field.type), field.optional) for name, field in output.items()} == {
        "window_start": ("timestamp", False),
        "window_end": ("timestamp", False),
        "ward": ("string", False),
        "patients": ("long", False),
        "mean_age": ("double", True),
    }


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -1}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"epsilon": 101}, "epsilon"),
        ({"budget": 0.5}, "budget 0.5 is below epsilon 1"),
        ({"budget": float("inf")}, "budget"),
        ({"contribution": 0}, "contribution"),
        ({"aggregates": []}, "aggregates"),
        ({"aggregates": [{"name": "n", "mode": "median"}]}, "mode"),
        ({"aggregates": [{**AVERAGE, "min": None}]}, "needs key, min and max"),
        ({"aggregates": [{**AVERAGE, "min": 120}]}, "is not below max"),
        ({"aggregates": [{**AVERAGE, "max": float("inf")}]}, "max"),
        ({"aggregates": [{**COUNT, "min": 0}]}, "a count has no bounds"),
        ({"aggregates": [{**AVERAGE, "key": "weight"}]}, "there is no field 'weight'"),
        ({"aggregates": [{**AVERAGE, "key": "ward"}]}, "does not take 'ward'"),
        ({"aggregates": [COUNT, {**COUNT, "name": "Patients"}]}, "two fields named 'Patients'"),
        ({"aggregates": [{**COUNT, "name": "window_end"}]}, "two fields named 'window_end'"),
        ({"groups": [{"key": "ward", "values": []}]}, "values"),
        ({"groups": [{"key": "ward", "values": ["a", "a"]}]}, "'a' is listed twice"),
        ({"groups": [{"key": "age", "values": ["1"]}]}, "make it a text by a mask before"),
        ({"groups": [*WARDS, *WARDS]}, "two fields named 'ward'"),
        ({"groups": [{"key": "floor", "values": ["1"]}]}, "there is no field 'floor'"),
        ({"renew": "90m"}, "renew is not a multiple of the window's size"),
        ({"delta": 1e-6}, "no such parameter"),
    ],
)
def test_wrong_parameters_are_told_before_anything_runs(
    settings: dict[str, Any], said: str
) -> None:
    assert said in _problems(settings)


def test_too_many_groups() -> None:
    many = [{"key": key, "values": [str(n) for n in range(200)]} for key in ("ward", "floor")]
    assert "a window would publish 40000 rows" in _problems({"groups": many})


def test_what_the_view_and_the_stream_must_have() -> None:
    nobody = {"fields": FIELDS, "time": "at"}
    assert "does not say whom a record is about" in _problems({}, stream=nobody)
    assert "needs a window" in _problems({}, window=None)
    assert "windows that overlap" in _problems({}, window={"size": "1h", "advance": "30m"})
    second = [{"anonymizer": "shuffling", "keys": ["age"]}]
    with pytest.raises(InvalidError, match="1 problem"):
        _define({}, anonymizers=[*_anonymizers(), *second])


def _anonymizers() -> list[dict[str, Any]]:
    return [
        {"anonymizer": "differential_privacy", "aggregates": [COUNT], "epsilon": 1, "budget": 1}
    ]


def test_budgets_are_counted_without_rounding() -> None:
    made = DifferentialPrivacy.model_validate(
        {"aggregates": [COUNT], "epsilon": 0.1, "budget": 0.3}
    )
    assert made.budget_units == 3 * made.cost
    third = DifferentialPrivacy.model_validate(
        {"aggregates": [COUNT], "epsilon": 1.0000000001, "budget": 2.0000000001}
    )
    assert third.budget_units < 2 * third.cost
