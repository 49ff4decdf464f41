"""Requirements files as they are published: other words, other forms, and many flaws at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.definitions import DefinitionSet
from penstock.definitions.requirements import read_requirements
from penstock.errors import InvalidError
from penstock.model.kinds import Stream, View
from tests.support.pipeline.requirements_files import (
    BROKERS,
    DRAFT,
    FILES,
    K_ANONYMIZATION,
    make_anonymizer,
    make_view,
    write_file,
)


def _build(content: bytes, **more: Any) -> DefinitionSet:
    found = read_requirements(content, "dash.json", **more)
    return DefinitionSet.empty().change(
        found.documents, locate=found.locate, problems=found.problems
    )


def _problems(content: bytes, **more: Any) -> list[str]:
    with pytest.raises(InvalidError) as caught:
        _build(content, **more)
    return [str(problem) for problem in caught.value.problems]


def _import_one(*anonymizers: dict[str, Any]) -> list[dict[str, Any]]:
    built = _build(write_file(make_view("v", "TABLE_BASED", *anonymizers)))
    return [dict(it) for it in built.of(View)["v"].anonymizers]


@pytest.mark.parametrize("name", FILES)
def test_every_published_file_is_imported(name: str) -> None:
    built = _build(FILES[name])
    listed = json.loads(FILES[name])["streamProperties"]
    assert built.of(View).keys() == {item["applicationId"] for item in listed}


@pytest.mark.parametrize("name", FILES)
def test_a_broker_leads_to_kafka_and_topics(name: str) -> None:
    found = read_requirements(FILES[name], "dash.json")
    assert (found.at_kafka, found.brokers) == (True, BROKERS)
    built = _build(FILES[name])
    stream = built.of(Stream)["no-filter"]
    assert stream.source is not None
    assert stream.source.kafka is not None
    assert stream.format == "json"
    for view in built.of(View).values():
        assert (view.format, view.topic) == ("topic", f"no-filter-{view.name}")


def test_where_records_are_can_be_said_otherwise() -> None:
    built = _build(FILES["default"], log="files")
    assert built.of(Stream)["no-filter"].source is None
    assert {view.format for view in built.of(View).values()} == {"parquet"}
    without = json.loads(FILES["default"])
    del without["globalConfig"]["bootstrapServer"]
    assert _build(json.dumps(without).encode()).of(Stream)["no-filter"].source is None
    at_kafka = _build(json.dumps(without).encode(), log="kafka")
    assert at_kafka.of(Stream)["no-filter"].source is not None


@pytest.mark.parametrize("word", ["schemaType", "type"])
def test_avro_at_kafka_is_binary(word: str) -> None:
    file = json.loads(FILES["default"])
    schema = file["globalConfig"]["dataSchema"]
    del schema["schemaType"]
    schema[word] = "AVRO"
    content = json.dumps(file).encode()
    assert _build(content).of(Stream)["no-filter"].format == "avro"
    assert _build(content, log="files").of(Stream)["no-filter"].format == "json"


def test_buckets_of_quasi_identifiers_become_bounds() -> None:
    (made,) = _import_one(K_ANONYMIZATION)
    assert made["quasi_identifiers"][:2] == [
        {"key": "zip", "min": 0, "max": 99999, "bucket_size": 500},
        {"key": "age", "min": 0, "max": 100, "bucket_size": 3},
    ]


def test_bucketing_is_bucketizing_from_where_the_range_begins() -> None:
    given = {"keys": ["age"], "bucketSize": "5", "range": [18, 100]}
    assert _import_one(make_anonymizer("bucketing", given)) == [
        {"anonymizer": "bucketizing", "keys": ["age"], "bucket_size": 5, "origin": 18}
    ]
    given["range"] = [0, 100]
    (made,) = _import_one(make_anonymizer("bucketing", given))
    assert "origin" not in made


def test_other_names_of_anonymizers_are_known() -> None:
    window = {"windowSize": 25, "keys": ["glucose"], "k": 20}
    for kind in ("univariate", "univariant"):
        view = make_view("v", "", make_anonymizer(f"{kind}_micro_aggregation", window))
        (made,) = _build(write_file(view)).of(View)["v"].anonymizers
        assert made["anonymizer"] == "univariate_microaggregation"
    noisy = make_anonymizer("noise_methods", {"keys": ["age"], "noise": "0.2"})
    (made,) = _import_one(noisy)
    assert made == {"anonymizer": "noise", "keys": ["age"], "noise": 0.2}


@pytest.mark.parametrize("category", ["VALUE_BASED", "TABLE_BASED", "layer 1", None, 7])
def test_a_category_decides_nothing(category: Any) -> None:
    mixed = make_view(
        "v",
        category,
        make_anonymizer("suppression", {"keys": ["name"]}),
        make_anonymizer("shuffling", {"keys": ["age"], "windowSize": 5}),
    )
    assert len(_build(write_file(mixed)).of(View)["v"].anonymizers) == 2


@pytest.mark.parametrize("name", ["substitution", "conditional_substitution"])
def test_text_for_a_number_makes_the_field_text(name: str) -> None:
    condition = {"conditionMap": {"age": {"matchRange": [18, 35.1]}}}
    more = condition if name == "conditional_substitution" else {}
    given = {"keys": ["age"], "substitutionList": ["young adult", 7], **more}
    (made,) = _import_one(make_anonymizer(name, given))
    assert (made["as"], made["substitution_list"]) == ("text", ["young adult", "7"])
    given["substitutionList"] = ["18", "19"]
    (made,) = _import_one(make_anonymizer(name, given))
    assert "as" not in made
    assert made["substitution_list"] == [18, 19]
    given |= {"keys": ["gender"], "substitutionList": ["x"]}
    (made,) = _import_one(make_anonymizer(name, given))
    assert "as" not in made


def test_regions_are_found_by_the_first_digit_of_a_postcode() -> None:
    (found,) = (it for it in _build(FILES["all"]).of(View)["generalization"].anonymizers)
    assert found["beginning"] == 1
    whole = make_anonymizer(
        "generalization", {"keys": ["zip"], "generalizationMap": {"10115": "B"}}
    )
    assert "beginning" not in _import_one(whole)[0]


def test_whole_numbers_may_stand_in_a_hierarchy_as_they_are() -> None:
    tree = {"value": "all", "children": [{"value": 7}, {"value": "8"}]}
    given = {"keys": [], "k": 2, "quasiIdentifiers": [{"key": "age", "hierarchy": tree}]}
    (made,) = _import_one(make_anonymizer("k_anonymization", given))
    assert made["quasi_identifiers"][0]["hierarchy"]["children"] == [{"value": "7"}, {"value": "8"}]


def test_a_hierarchy_of_numbers_has_each_number_once() -> None:
    tree = {"value": "all", "children": [{"value": "7"}, {"value": "07"}, {"value": "old"}]}
    given = {"keys": [], "k": 2, "quasiIdentifiers": [{"key": "age", "hierarchy": tree}]}
    view = make_view("v", "TABLE_BASED", make_anonymizer("k_anonymization", given))
    text = "\n".join(_problems(write_file(view)))
    assert "'07' and '7' are one number" in text or "'7' and '07' are one number" in text
    assert "'old' is no int, as 'age' is" in text


def test_that_records_are_counted_is_acknowledged_and_said() -> None:
    found = read_requirements(FILES["all"], "dash.json")
    assert _build(FILES["all"]).of(View)["k_anonymization"].accept_risk == ("no-subject",)
    (note,) = found.notes
    assert "'k_anonymization' counts records, not persons" in note
    assert "--subject" in note
    named = _build(FILES["all"], subject="id")
    assert named.of(Stream)["no-filter"].subject == "id"
    assert named.of(View)["k_anonymization"].accept_risk == ()
    assert read_requirements(FILES["all"], "dash.json", subject="id").notes == []


def test_all_flaws_of_a_draft_are_told_at_once() -> None:
    problems = _problems(DRAFT)
    text = "\n".join(problems)
    for wanted in (
        "there is no field 'diagnose'",
        "substitutionList) of view/level_1: the parameter is missing",
        "bucketSize) of view/level_1: write a number greater than 0",
        "noise does not take 'gender', which is string",
        "aggregationMode) of view/level_2: the parameter is missing",
        "there is no anonymizer 'averaging'",
        "quasiIdentifiers) of view/level_3: the parameter is missing",
        "quasiIdentifiers) of view/level_4: the parameter is missing",
        "sensitive) of view/level_4: the parameter is missing",
    ):
        assert wanted in text, text
    assert all(problem.startswith("dash.json:") for problem in problems), problems


def test_what_the_stream_lacks_hides_nothing_of_the_views() -> None:
    file = json.loads(DRAFT)
    file["globalConfig"] = {"bootstrapServer": 7, "dataSchema": {"fields": [{"name": "a"}]}}
    del file["streamProperties"][1]["applicationId"]
    text = "\n".join(_problems(json.dumps(file, indent=1).encode()))
    for wanted in (
        "bootstrapServer): this names no broker",
        "the topic is missing",
        "globalConfig.dataSchema.fields.0",
        "substitutionList",
        "applicationId is missing",
        "aggregationMode",
        "there is no anonymizer 'averaging'",
        "quasiIdentifiers",
    ):
        assert wanted in text, text


@pytest.mark.parametrize(
    "bucketing", [{}, {"bucketSize": 5}, {"range": [1]}, {"range": [0, 9], "size": 1}, 7, [0, 9]]
)
def test_bucketing_without_a_range_is_told_with_its_form(bucketing: Any) -> None:
    quasi = [{"key": "age", "bucketing": bucketing}, {"key": "high", "bucketing": bucketing}]
    given = {"keys": [], "k": 2, "quasiIdentifiers": quasi}
    view = make_view("v", "TABLE_BASED", make_anonymizer("k_anonymization", given))
    text = "\n".join(_problems(write_file(view)))
    assert "bucketing of 'age' has no range" in text
    assert "bucketing of 'high' has no range" in text
    assert "there is no field 'high'" in text
    assert '"range": [0, 100]' in text
