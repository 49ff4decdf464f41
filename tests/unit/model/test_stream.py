from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from penstock.model.kinds import Hierarchy, Stream


def _stream(*fields: dict[str, Any], **more: Any) -> Stream:
    return Stream.model_validate({"name": "patients", "fields": list(fields), **more})


def test_field_lists_of_avro_and_kafka_connect_mean_the_same() -> None:
    avro = _stream(
        {"name": "pid", "type": "int"},
        {"name": "zip", "type": ["null", "long"], "default": None},
        {"name": "hba1c", "type": "float"},
        {"name": "born", "type": {"type": "int", "logicalType": "date"}},
        {"name": "seen", "type": "long", "logicalType": "timestamp-millis"},
    )
    connect = _stream(
        {"field": "pid", "type": "int32"},
        {"field": "zip", "type": "int64", "optional": True},
        {"field": "hba1c", "type": "float32"},
        {"field": "born", "type": "date"},
        {"field": "seen", "type": "timestamp"},
    )
    assert avro == connect
    assert [field.type for field in avro.fields] == ["int", "long", "float", "date", "timestamp"]
    assert [field.optional for field in avro.fields] == [False, True, False, False, False]


def test_what_is_stored_has_one_notation() -> None:
    document = _stream({"field": "pid", "type": "int32", "category": "identifier"}).document()
    assert document.body == {"fields": [{"name": "pid", "type": "int", "category": "identifier"}]}


@pytest.mark.parametrize(
    ("fields", "more", "message"),
    [
        ([{"name": "a", "type": "int"}, {"name": "A", "type": "int"}], {}, "have one name"),
        ([{"name": "a", "type": "int"}], {"subject": "b"}, "there is no field 'b'"),
        ([{"name": "a", "type": "int"}], {"time": "a"}, "name a timestamp"),
        ([{"name": "a", "type": "money"}], {}, "string"),
        ([{"name": "a", "type": ["int", "string"]}], {}, "string"),
        ([{"name": "a`b", "type": "int"}], {}, "printable"),
        ([{"name": "a", "type": "int"}], {"name": "a b"}, "a topic cannot have ' '"),
        ([], {}, "at least 1"),
    ],
)
def test_streams_that_make_no_sense_are_refused(
    fields: list[dict[str, Any]], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        _stream(*fields, **more)


def test_a_hierarchy_is_the_same_as_table_and_as_tree() -> None:
    table = Hierarchy.model_validate(
        {
            "name": "places",
            "values": {"Berlin": ["Germany", "Europe"], "Paris": ["France", "Europe"]},
        }
    )
    tree = {
        "value": "Europe",
        "children": [
            {"value": "Germany", "children": [{"value": "Berlin"}]},
            {"value": "France", "children": [{"value": "Paris"}]},
        ],
    }
    nested = Hierarchy.model_validate({"name": "places", "tree": tree})
    assert table.nested()["value"] == "Europe"
    assert [child["value"] for child in table.nested()["children"]] == ["Germany", "France"]
    assert [child["value"] for child in nested.nested()["children"]] == ["Germany", "France"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": ["x"], "b": ["y"]}, "ends at 'y', others at 'x'"),
        ({"a": ["g", "x"], "b": ["h", "x"], "c": ["g", "h", "x"]}, "lies below"),
        ({"a": []}, "has 0 generalizations"),
        ({"a": ["x"], "x": ["x"]}, "twice"),
        ({"a": ["b", "x"], "b": ["x"]}, "a value and a group"),
    ],
)
def test_tables_that_make_no_tree_are_refused(values: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Hierarchy.model_validate({"name": "h", "values": values})


def test_a_hierarchy_has_one_notation() -> None:
    with pytest.raises(ValidationError, match="exactly one of both"):
        Hierarchy.model_validate({"name": "h"})
