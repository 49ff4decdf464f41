"""Views by themselves, and views against their streams as a set checks them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from penstock.definitions import DefinitionSet
from penstock.definitions.views import hierarchies_of, plan_view
from penstock.errors import InvalidError
from penstock.model.document import Document, Key
from penstock.model.kinds import Stream, View

STREAM = Document(
    "stream",
    "patients",
    {
        "fields": [
            {"name": "pid", "type": "int", "category": "identifier"},
            {"name": "name", "type": "string", "category": "identifier"},
            {"name": "sex", "type": "string", "category": "quasi-identifier"},
            {"name": "age", "type": "int", "category": "quasi-identifier"},
            {"name": "gluc.", "type": "double", "category": "sensitive"},
        ],
        "subject": "pid",
    },
)
SEX = Document("hierarchy", "sex", {"values": {"M": ["*"], "F": ["*"], "D": ["*"]}})
TUMBLING = {"size": "10s"}
K = {
    "anonymizer": "k_anonymization",
    "keys": ["pid", "name"],
    "quasi_identifiers": [{"key": "age", "min": 0, "max": 120}, {"key": "sex", "hierarchy": "sex"}],
    "k": 5,
}


def _view(*anonymizers: dict[str, Any], **more: Any) -> Document:
    return Document("view", "v", {"stream": "patients", "anonymizers": list(anonymizers), **more})


def _problems(*documents: Document) -> list[str]:
    with pytest.raises(InvalidError) as caught:
        DefinitionSet.build([STREAM, SEX, *documents])
    return [str(problem) for problem in caught.value.problems]


def test_a_plan_follows_types_through_masks_and_stateful_steps() -> None:
    built = DefinitionSet.build(
        [
            STREAM,
            SEX,
            _view(
                {"anonymizer": "suppression", "keys": ["name"]},
                {"anonymizer": "aggregation", "keys": ["age"], "aggregation_mode": "average"},
                {"anonymizer": "noise", "keys": ["age"], "noise": 0.1},
                window=TUMBLING,
            ),
        ]
    )
    view, stream = built.get(View, "v"), built.get(Stream, "patients")
    assert view is not None
    assert stream is not None
    plan = plan_view(view, stream, hierarchies_of(built.definitions))
    assert [step.name for step in plan.before] == ["suppression"]
    assert [step.name for step in plan.stateful] == ["aggregation"]
    assert [step.name for step in plan.after] == ["noise"]
    assert plan.output["age"].type == "double"
    assert view.topic == "patients-v"
    assert view.window is not None
    assert view.window.size == 10_000


def test_a_k_anonymous_view_is_valid() -> None:
    assert DefinitionSet.build([STREAM, SEX, _view(K)]).of(View)


@pytest.mark.parametrize(
    ("anonymizers", "more", "wanted"),
    [
        ([{"anonymizer": "supression", "keys": ["pid"]}], {}, "there is no anonymizer"),
        ([{"anonymizer": "suppression", "keys": ["hba1c"]}], {}, "there is no field 'hba1c'"),
        ([{"anonymizer": "noise", "keys": ["sex"], "noise": 1}], {}, "does not take 'sex'"),
        ([{"anonymizer": "bucketizing", "keys": ["age"]}], {}, "bucket_size"),
        ([{"anonymizer": "bucketizing", "keys": ["age"], "bucket_size": 0}], {}, "bucket_size"),
        ([{"anonymizer": "shuffling", "keys": ["age"]}], {}, "needs a window"),
        ([], {"window": TUMBLING}, "no anonymizer uses the window"),
        (
            [{"anonymizer": "aggregation", "keys": ["name"], "aggregation_mode": "sum"}],
            {"window": TUMBLING},
            "aggregation does not take 'name'",
        ),
        ([K, {"anonymizer": "shuffling", "keys": ["age"]}], {"window": TUMBLING}, "a second step"),
        ([{**K, "k": 1}], {}, "at least 2"),
        ([{**K, "delta": 3}], {}, "no group is ever full"),
        (
            [{**K, "quasi_identifiers": [{"key": "age", "hierarchy": "sex"}]}],
            {},
            "'D' is no int, as 'age' is",
        ),
        (
            [{**K, "quasi_identifiers": [{"key": "sex", "hierarchy": "sexes"}]}],
            {},
            "there is no hierarchy 'sexes'",
        ),
        (
            [{**K, "quasi_identifiers": [{"key": "age", "min": 9, "max": 9}]}],
            {},
            "is not below max",
        ),
    ],
)
def test_what_a_view_cannot_do_is_told_with_its_place(
    anonymizers: list[dict[str, Any]], more: dict[str, Any], wanted: str
) -> None:
    problems = _problems(_view(*anonymizers, **more))
    assert any(wanted in problem for problem in problems), problems
    assert all(problem.startswith("view/v.") for problem in problems)


def test_all_problems_are_told_at_once() -> None:
    problems = _problems(
        _view(
            {"anonymizer": "bucketizing", "keys": ["age"]},
            {"anonymizer": "nonsense", "keys": ["age"]},
        ),
        Document("view", "w", {"stream": "patients", "anonymizers": [{"keys": []}]}),
    )
    assert len(problems) == 3


def test_a_changed_stream_is_checked_against_its_views() -> None:
    built = DefinitionSet.build([STREAM, _view({"anonymizer": "suppression", "keys": ["sex"]})])
    without = Document("stream", "patients", {"fields": [{"name": "pid", "type": "int"}]})
    with pytest.raises(InvalidError, match=r"view/v.anonymizers.0.keys.0: there is no field 'sex'"):
        built.change([without])
    with pytest.raises(InvalidError, match="still uses stream/patients"):
        built.change(delete=[Key("stream", "patients")])


def test_two_topics_never_have_one_name() -> None:
    other = Document("stream", "patients-v", {"fields": [{"name": "pid", "type": "int"}]})
    assert any("is the topic of stream/patients-v" in text for text in _problems(_view(), other))


@pytest.mark.parametrize(
    "window",
    [{"size": "0s"}, {"size": "5 weeks"}, {"size": 1, "advance": 2}, {"size": "1h", "advance": 1}],
)
def test_windows_that_make_no_sense_are_refused(window: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        View.model_validate({"name": "v", "stream": "s", "window": window})
