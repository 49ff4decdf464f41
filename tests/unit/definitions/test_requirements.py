"""Requirements files become definitions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.definitions import DefinitionSet
from penstock.definitions.requirements import Requirements, check_owners, read_requirements
from penstock.errors import InvalidError
from penstock.model.kinds import Stream, View

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "int32"},
    {"name": "name", "type": "string"},
    {"name": "age", "type": "int32"},
    {"name": "phone", "type": ["string", "null"]},
]


def _file(*views: dict[str, Any], fields: list[dict[str, Any]] = FIELDS) -> bytes:
    return json.dumps(
        {
            "globalConfig": {
                "bootstrapServer": "kafka:9092",
                "topic": "no-filter",
                "dataSchema": {"schemaType": "KAFKA_STRUCT", "name": "Patient", "fields": fields},
            },
            "streamProperties": list(views),
        },
        indent=2,
    ).encode()


def _anonymizer(name: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    return {"anonymizer": name, "parameters": list(parameters)}


def _build(content: bytes) -> DefinitionSet:
    found = read_requirements(content, "dash.json")
    return DefinitionSet.empty().change(
        found.documents, locate=found.locate, problems=found.problems
    )


def _problems(content: bytes) -> list[str]:
    with pytest.raises(InvalidError) as caught:
        _build(content)
    return [str(problem) for problem in caught.value.problems]


def test_a_file_becomes_a_stream_and_its_views() -> None:
    built = _build(
        _file(
            {"applicationId": "baseline", "category": "TUPLE_BASED", "anonymizers": []},
            {
                "applicationId": "level_1",
                "category": "VALUE_BASED",
                "anonymizers": [
                    _anonymizer("blurring", {"keys": ["name"]}, {"nFields": 7}),
                    _anonymizer("noise_methods", {"keys": [{"key": "age"}]}, {"noise": "0.2"}),
                ],
            },
            {
                "applicationId": "level_3",
                "category": "ATTRIBUTE_BASED",
                "anonymizers": [
                    _anonymizer(
                        "shuffling",
                        {"windowSize": "7", "advanceTime": 2, "keys": ["name", "phone"]},
                        {"shuffleIndividually": True},
                    )
                ],
            },
        )
    )
    stream = built.get(Stream, "no-filter")
    assert stream is not None
    assert [(field.type, field.optional) for field in stream.fields] == [
        ("int", False),
        ("string", False),
        ("int", False),
        ("string", True),
    ]
    views = built.of(View)
    assert list(views) == ["baseline", "level_1", "level_3"]
    assert views["level_1"].topic == "no-filter-level_1"
    window = views["level_3"].window
    assert window is not None
    assert (window.size, window.advance) == (7, 2)


def test_keys_in_camel_case_become_those_of_definitions() -> None:
    view = {
        "applicationId": "v",
        "anonymizers": [
            _anonymizer("bucketizing", {"keys": ["age"]}, {"bucketSize": "10"}),
            _anonymizer(
                "conditional_substitution",
                {"keys": ["name"], "substitutionList": ["*"]},
                {"conditionMap": {"phone": {"matchRegex": "^0"}}},
            ),
            _anonymizer(
                "generalization", {"keys": ["name"], "generalizationMap": {"bucketSize": "x"}}
            ),
        ],
    }
    (stored,) = _build(_file(view)).of(View).values()
    assert [dict(it) for it in stored.anonymizers] == [
        {"anonymizer": "bucketizing", "keys": ["age"], "bucket_size": 10},
        {
            "anonymizer": "conditional_substitution",
            "keys": ["name"],
            "substitution_list": ["*"],
            "condition_map": {"phone": {"match_regex": "^0"}},
        },
        {
            "anonymizer": "generalization",
            "keys": ["name"],
            "generalization_map": {"bucketSize": "x"},
        },
    ]


def test_a_parameter_in_both_spellings_is_told() -> None:
    twice = _anonymizer("bucketizing", {"keys": ["age"], "bucketSize": 10, "bucket_size": 5})
    (problem,) = _problems(_file({"applicationId": "v", "anonymizers": [twice]}))
    assert "'bucket_size' is given twice" in problem


def test_a_problem_is_told_in_the_spelling_of_the_file() -> None:
    wrong = _anonymizer("bucketizing", {"keys": ["age"], "bucketSize": -1})
    (problem,) = _problems(_file({"applicationId": "v", "anonymizers": [wrong]}))
    assert "anonymizers.0.bucketSize" in problem


def test_all_that_is_wrong_is_told_with_its_line() -> None:
    problems = _problems(
        _file(
            {
                "applicationId": "bad name",
                "anonymizers": [_anonymizer("suppression", {"keys": ["diagnosis"]})],
            },
            {
                "applicationId": "mixed",
                "category": "VALUE_BASED",
                "anonymizers": [
                    _anonymizer("shuffling", {"keys": ["age"], "windowSize": 5}),
                    _anonymizer("shuffling", {"keys": ["name"], "windowSize": 6}),
                ],
            },
            {"applicationId": "short", "anonymizers": [_anonymizer("bucketizing", {"keys": []})]},
            {"anonymizers": []},
        )
    )
    text = "\n".join(problems)
    for wanted in (
        "a topic cannot have ' '",
        "its window differs from the others'",
        "bucketSize: the parameter is missing",
        "applicationId is missing",
    ):
        assert wanted.removeprefix("bucketSize: ") in text, problems
    assert all(problem.startswith("dash.json:") for problem in problems), problems


def test_an_unknown_field_is_told_with_the_fields_there_are() -> None:
    view = {
        "applicationId": "v",
        "anonymizers": [_anonymizer("suppression", {"keys": ["diagnosis"]})],
    }
    (problem,) = _problems(_file(view))
    assert "there is no field 'diagnosis'" in problem
    assert "id, name, age, phone" in problem


@pytest.mark.parametrize("content", [b"[]", b'{"globalConfig": 1}', b"", b"a: 1\n---\nb: 2\n"])
def test_what_is_no_requirements_file_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidError, match=r"dash\.json"):
        read_requirements(content, "dash.json")


def test_a_view_of_another_stream_is_not_overwritten() -> None:
    found: Requirements = read_requirements(_file({"applicationId": "nurse"}), "dash.json")
    check_owners(found, {"nurse": "no-filter"})
    assert found.problems == []
    check_owners(found, {"nurse": "patients"})
    assert [problem.message for problem in found.problems] == [
        "the stream 'patients' has a view of this name"
    ]
