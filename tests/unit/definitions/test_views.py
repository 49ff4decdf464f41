"""All that is wrong with views is told at once, each with its place and a fix."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.definitions import DefinitionSet
from penstock.errors import InvalidError, Problem
from penstock.model.document import Document

FIELDS = [{"name": "pid", "type": "int"}, {"name": "ward", "type": "string"}]


def _problems(*documents: Document) -> list[Problem]:
    with pytest.raises(InvalidError) as caught:
        DefinitionSet.build([Document("stream", "visits", {"fields": FIELDS}), *documents])
    return list(caught.value.problems)


def _of_view(**body: Any) -> dict[str, tuple[str, str | None]]:
    found = _problems(Document("view", "v", {"stream": "visits", **body}))
    return {it.place.removeprefix("view/v."): (it.message, it.fix) for it in found}


def test_a_wrong_field_of_a_view_hides_no_wrong_anonymizer() -> None:
    told = _of_view(
        format="xml",
        colour="red",
        window={"size": "soon"},
        anonymizers=[
            {"anonymizer": "bucketizing", "keys": ["pit"], "bucket_size": -1},
            {"anonymizer": "supression", "keys": ["pid"]},
            {"anonymizer": "k_anonymization", "keys": ["name"], "k": 0, "quasi_identifiers": []},
        ],
    )
    assert set(told) == {
        "format",
        "colour",
        "window.size",
        "anonymizers.0.bucket_size",
        "anonymizers.0.keys.0",
        "anonymizers.1",
        "anonymizers.2.k",
        "anonymizers.2.keys.0",
        "anonymizers.2.quasi_identifiers",
    }
    assert told["anonymizers.0.keys.0"][0] == "there is no field 'pit'"
    assert told["anonymizers.1"][1] == "did you mean 'suppression'?"
    assert told["anonymizers.2.k"] == ("'0' is too small", "write a number of at least 2")
    assert told["anonymizers.2.quasi_identifiers"] == ("'[]' is too short", "give at least 1")


def test_keys_in_camel_case_are_told_with_the_spelling_that_holds() -> None:
    told = _of_view(
        anonymizers=[
            {"anonymizer": "bucketizing", "keys": ["pid"], "bucketSize": 10},
            {"anonymizer": "k_anonymization", "k": 2, "quasiIdentifiers": []},
            {
                "anonymizer": "l_diversity",
                "k": 2,
                "l": 2,
                "quasi_identifiers": [{"key": "pid", "min": 0, "max": 9, "bucketSize": 3}],
            },
            {"anonymizer": "aggregation", "keys": ["pid"], "aggregationMode": "sum"},
        ]
    )
    fixes = {place: fix for place, (_, fix) in told.items()}
    assert fixes["anonymizers.0.bucketSize"] == "write bucket_size"
    assert fixes["anonymizers.1.quasiIdentifiers"] == "write quasi_identifiers"
    assert fixes["anonymizers.2.quasi_identifiers.0.bucketSize"] == "write bucket_size"
    assert fixes["anonymizers.3.aggregationMode"] == "write aggregation_mode"
    assert told["anonymizers.0.bucketSize"][0].startswith("'bucketSize' is no name of a parameter")


def test_what_a_wrong_window_leads_to_is_not_told() -> None:
    shuffled = [{"anonymizer": "shuffling", "keys": ["ward"]}]
    assert set(_of_view(window={"size": -1}, anonymizers=shuffled)) == {"window.size"}


def test_a_field_that_is_missing_is_told_behind_a_step_that_is_wrong() -> None:
    told = _of_view(
        anonymizers=[
            {"anonymizer": "noise", "keys": ["ward"], "noise": 1},
            {"anonymizer": "blurring", "keys": ["pid", "nobody"]},
        ]
    )
    assert set(told) == {"anonymizers.0.keys.0", "anonymizers.1.keys.1"}


def test_shards_divide_what_holds_records_back_and_have_enough_of_them() -> None:
    assert _of_view(shards=2)["shards"][0].startswith("no anonymizer holds records back")
    grouped = {
        "anonymizer": "k_anonymization",
        "quasi_identifiers": [{"key": "pid", "min": 0, "max": 9}],
        "k": 5,
        "delta": 100,
    }
    told = _of_view(shards=11, accept_risk=["no-subject"], anonymizers=[grouped])
    assert told["anonymizers.0.delta"] == (
        "delta 100 is too small to be shared by 11 shards",
        "make it at least 110, or use 10",
    )


def test_entries_that_are_wrong_do_not_make_their_list_too_short() -> None:
    found = _problems(Document("stream", "w", {"fields": [{"name": "a", "type": "integer"}]}))
    assert [it.place for it in found] == ["stream/w.fields.0.type"]


def test_noise_is_not_drawn_anew_for_each_window_that_a_record_lies_in() -> None:
    average = {"anonymizer": "aggregation", "keys": ["pid"], "aggregation_mode": "average"}
    fields = [*FIELDS, {"name": "sugar", "type": "double"}]
    noise = {"anonymizer": "noise", "keys": ["pid", "sugar"], "noise": 1}

    def view(*anonymizers: dict[str, Any], **window: str) -> list[Document]:
        body = {"stream": "s", "anonymizers": list(anonymizers), "window": {"size": "9s", **window}}
        return [Document("stream", "s", {"fields": fields}), Document("view", "v", body)]

    (told,) = _problems(*view(average, noise, advance="3s"))
    assert told.place == "view/v.anonymizers.1.keys.1"
    assert told.message == "'sugar' would get other noise in each window a record lies in"
    DefinitionSet.build(view(noise, average, advance="3s"))
    DefinitionSet.build(view(average, noise))
