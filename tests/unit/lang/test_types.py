"""Types and their notation."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidError
from penstock.lang import (
    BOOL,
    INT,
    STRING,
    TIMESTAMP,
    ExpressionError,
    ListOf,
    MapOf,
    RecordType,
    build_scope,
    parse_record,
    parse_type,
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("string", STRING),
        (" list( int ) ", ListOf(INT)),
        ("map(list(bool))", MapOf(ListOf(BOOL))),
        ("record{}", RecordType(())),
        (
            "record{a: string, b: record{c: timestamp}}",
            RecordType((("a", STRING), ("b", RecordType((("c", TIMESTAMP),))))),
        ),
    ],
)
def test_a_notation_is_read_and_written_back(text: str, kind: Any) -> None:
    assert parse_type(text) == kind
    assert parse_type(str(kind)) == kind


def test_a_mapping_declares_a_record() -> None:
    declared = parse_record({"heart-rate": "int", "room": {"floor": "int"}})
    assert declared.field("heart-rate") == INT
    assert declared.field("room") == RecordType((("floor", INT),))
    assert declared.field("none") is None


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("strin", "did you mean 'string'?"),
        ("text", "types are bool, double"),
        ("", "a type expected"),
        ("list", "'(' expected here"),
        ("list(int", "')' expected here"),
        ("list(int))", "the end of the type expected here"),
        ("list[int]", "unexpected '[' in a type"),
        ("record{a int}", "':' expected here"),
        ("record{1: int}", "unexpected '1' in a type"),
        ("record{,}", "the name of a field expected here"),
        ("record{a: int, a: int}", "field 'a' is declared twice"),
        ("list(" * 20 + "int" + ")" * 20, "types nest deeper than 16 levels"),
        ("x" * 5000, "a type takes at most 4096 characters"),
        (3, "a type is text or a mapping of fields, not int"),
        ({1: "int"}, "cannot name a field"),
        ({"": "int"}, "cannot name a field"),
        ({"\ud800": "int"}, "cannot name a field"),
        ({"a": {"b": "nothing"}}, "unknown type 'nothing'"),
    ],
)
def test_a_wrong_declaration_is_refused_with_a_reason(declaration: Any, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_type(declaration)
    assert message in str(caught.value)


def test_deep_mappings_are_refused() -> None:
    declaration: Any = "int"
    for _ in range(2000):
        declaration = {"a": declaration}
    with pytest.raises(ExpressionError, match="deeper than 16"):
        parse_type(declaration)


def test_the_standard_scope_has_what_is_built_in_and_what_is_declared() -> None:
    scope = build_scope(e={"ward": "string", "time": "timestamp"}, payload={"x": "int"})
    assert scope.names == ("s", "o", "e", "t")
    environment, message = scope.root("e"), scope.root("t")
    assert environment is not None
    assert message is not None
    assert environment.field("ward") == STRING
    assert environment.field("purpose") == STRING
    assert message.field("payload") == RecordType((("x", INT),))
    assert scope.root("x") is None


def test_a_built_in_field_keeps_its_type() -> None:
    with pytest.raises(InvalidError, match=r"e\.time: declared as string, but it is built in"):
        build_scope(e={"time": "string"})
