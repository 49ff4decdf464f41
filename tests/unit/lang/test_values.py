"""Inputs, moments, strings and patterns: the rules at the edge of the language."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.lang import STRING, ListOf, Type, parse_type, prepare
from penstock.lang.errors import MAX_DURATION
from penstock.lang.interpreter import SEMANTICS
from penstock.lang.operations import OPERATIONS, SET_OPERATIONS, ZONED
from penstock.lang.python import CALLED, RANGED, TOTAL
from penstock.lang.scalars import (
    LOWER,
    RegexError,
    compile_regex,
    count_units,
    from_seconds,
    includes,
    is_text,
    lower,
    read_duration,
    read_timestamp,
)
from penstock.lang.values import MissingError, TextList, conform, export

ROME = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (3, "double", 3.0),
        (2**53, "double", float(2**53)),
        (-(2**53), "double", -float(2**53)),
        (datetime(2026, 1, 1, 1, tzinfo=ROME), "timestamp", datetime(2026, 1, 1, tzinfo=UTC)),
        ({"b", "a"}, "list(string)", ["a", "b"]),
        (frozenset({2, "x"}), "list(int)", [2, None]),
        (MAX_DURATION, "duration", MAX_DURATION),
    ],
)
def test_a_value_that_fits_is_taken(value: Any, kind: str, expected: Any) -> None:
    assert conform(value, parse_type(kind)) == expected


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        (None, "int", "is missing"),
        (2**53 + 1, "double", "is an int without an exact double"),
        (2**63, "int", "is not within the values of int"),
        (True, "int", "is declared int, but holds bool"),
        (1, "bool", "is declared bool, but holds int"),
        (float("inf"), "double", "is not within the values of double"),
        ("\udfff", "string", "is not within the values of string"),
        (datetime(2026, 1, 1), "timestamp", "is not within the values of timestamp"),  # noqa: DTZ001
        (timedelta.max, "duration", "is not within the values of duration"),
        ("x", "list(string)", "is declared list(string), but holds string"),
        ([], "map(int)", "is declared map(int), but holds a list"),
        ({}, "list(int)", "is declared list(int), but holds a map"),
        (object(), "int", "is declared int, but holds something else"),
    ],
)
def test_a_value_that_does_not_fit_is_missing_with_a_reason(
    value: Any, kind: str, reason: str
) -> None:
    with pytest.raises(MissingError) as caught:
        conform(value, parse_type(kind))
    assert caught.value.reason == reason


def test_results_hold_none_for_each_part_that_is_missing() -> None:
    kind = parse_type("record{a: list(int), m: map(string), r: record{x: int}}")
    value = {"a": [1, True, None], "m": {"k": 1, 2: "x", "\ud800": "y"}, "r": 3, "more": 1}
    assert export(value, kind) == {"a": [1, None, None], "m": {"k": None}, "r": None}


def test_prepared_lists_of_strings_answer_without_a_search() -> None:
    texts: Type = ListOf(STRING)
    prepared = prepare({"b", "a"}, texts)
    assert type(prepared) is TextList
    assert list(prepared) == ["a", "b"]
    assert prepared.members == {"a", "b"}
    assert prepare(["b", "a", "b"], texts) == ("b", "a", "b")
    assert prepare(["a", 1], texts) == ["a", None]
    assert prepare("a", texts) is None
    assert prepare({"l": ["a"], "i": True}, parse_type("record{l: list(string), i: int}")) == {
        "l": ("a",),
        "i": None,
    }


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01T08:00:00",
        "2026-03-01 08:00:00Z",
        "2026-03-01T08:00:00z",
        "2026-03-01T08:00Z",
        "2026-03-01T08:00:00.Z",
        "2026-03-01T08:00:00.1234567Z",
        "2026-03-01T24:00:00Z",
        "2026-03-01T08:00:60Z",
        "2026-13-01T08:00:00Z",
        "2025-02-29T08:00:00Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "2026-03-01T08:00:00+18:01",
        "2026-03-01T08:00:00+1800",
        "٢026-03-01T08:00:00Z",
        "2026-03-01T08:00:00Z\n",
        "",
    ],
)
def test_what_is_no_timestamp_is_refused(text: str) -> None:
    assert read_timestamp(text) is None


def test_timestamps_are_read_in_utc() -> None:
    moment = read_timestamp("2026-03-01T08:00:00.5+18:00")
    assert moment == datetime(2026, 2, 28, 14, 0, 0, 500_000, tzinfo=UTC)
    assert moment.tzinfo is UTC
    assert read_timestamp("9999-12-31T23:59:59.999999Z") == datetime.max.replace(tzinfo=UTC)
    assert from_seconds(-62135596800) == datetime.min.replace(tzinfo=UTC)
    assert from_seconds(-62135596801) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1d2h3m4s5ms6us", timedelta(1, 4, 6, 5, 3, 2)),
        ("-1h30m", timedelta(hours=-1.5)),
        ("0.5d", timedelta(hours=12)),
        ("1.000001s", timedelta(seconds=1, microseconds=1)),
        ("3652500d", timedelta(days=3652500)),
        ("3652500d1us", None),
        ("0.5us", None),
        ("1", None),
        ("h", None),
        ("-", None),
        ("", None),
        ("1h 30m", None),
        ("--1h", None),
        ("1w", None),
        ("1e3s", None),
        ("9" * 30 + "s", None),
    ],
)
def test_durations_are_numbers_with_units(text: str, expected: timedelta | None) -> None:
    assert read_duration(text) == expected


def test_units_of_a_duration_are_counted_towards_zero() -> None:
    hour = timedelta(hours=1)
    assert [count_units(timedelta(minutes=m), hour) for m in (-61, -60, -59, 0, 59, 60)] == [
        -1,
        -1,
        0,
        0,
        0,
        1,
    ]


def test_lower_replaces_letter_by_letter() -> None:
    assert lower("ÀΣ Ж") == "à\u03c3 ж"
    assert all(len(lower(chr(code))) == 1 for code in LOWER)
    assert all(lower(lower(chr(code))) == lower(chr(code)) for code in LOWER)
    assert lower("İ") == "İ"  # its small letter is two code points
    assert lower("\u1e9e") == "\u1e9e"  # younger than Unicode 3.2
    assert set(map(chr, LOWER)) >= set("ABCXYZÀÉÑÜŠΩЯ")


def test_the_table_of_small_letters_is_the_same_on_every_python() -> None:
    table = json.dumps(sorted(LOWER.items())).encode()
    assert hashlib.sha256(table).hexdigest()[:16] == "18dfa2b9def41f93"


def test_text_has_no_surrogates() -> None:
    assert is_text("aé😀\0")
    assert not is_text("a\ud83d")
    assert not is_text("\udc00")


@pytest.mark.parametrize(
    ("topic", "word", "expected"),
    [
        ("a/temperature", "temperature", True),
        ("a/bodytemperature/b", "temperature", True),
        ("a/temp/erature", "temperature", False),
        ("a/b", "a/b", False),
        ("", "", True),
    ],
)
def test_includes_looks_into_each_level(topic: str, word: str, *, expected: bool) -> None:
    assert includes(topic, word) is expected
    assert SEMANTICS["includes"](topic, word) is expected


def test_patterns_search_anywhere_in_characters_not_bytes() -> None:
    assert compile_regex("^.$").search("é")
    assert compile_regex("^.$").search("😀")
    assert not compile_regex("^.$").search("ab")
    assert compile_regex("b").search("abc")
    assert not compile_regex(".").search("\n")
    assert compile_regex("a") == compile_regex("a")
    with pytest.raises(RegexError, match="at most 512"):
        compile_regex("a" * 513)


def test_every_form_knows_every_operation() -> None:
    apart = {"in_list", *SET_OPERATIONS}  # need the tree, in every form
    assert set(SEMANTICS) == OPERATIONS - apart
    assert set(TOTAL) | set(RANGED) | set(CALLED) == OPERATIONS - apart
    assert len(TOTAL) + len(RANGED) + len(CALLED) == len(OPERATIONS - apart)


def test_spark_knows_every_operation() -> None:
    from penstock.lang.spark import operations  # noqa: PLC0415 - here alone pyspark is wanted

    apart = {"in_list", "div_double", "double_from_string", *SET_OPERATIONS, *ZONED}
    tables = (operations.ONCE, operations.REPEATED, operations.LOOSE)
    assert set().union(*tables) == OPERATIONS - apart
    assert sum(map(len, tables)) == len(OPERATIONS - apart)


def test_expressions_need_no_spark() -> None:
    code = (
        "import sys, penstock.lang; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
