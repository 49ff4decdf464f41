"""Hostile texts and inputs: a clear error, or missing; never a crash, never without end."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest

from penstock.lang import ExpressionError, build_scope, compile_expression
from penstock.lang.errors import MAX_STRING

SCOPE = build_scope(
    s={"set": "list(string)", "ints": "list(int)"},
    o={
        "b": "bool",
        "i": "int",
        "j": "int",
        "d": "double",
        "x": "string",
        "ts": "timestamp",
        "du": "duration",
        "l": "list(string)",
        "m": "map(int)",
        "r": {"a": {"b": "int"}},
    },
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(" * 5000, "nests deeper than 32"),
        ("[" * 5000, "nests deeper than 32"),
        ("!" * 5000 + "true", "nests deeper than 32"),
        ("-" * 5000 + "1", "nests deeper than 32"),
        ("1" + " + 1" * 500, "nests deeper than 32"),
        ("true ? " * 1000 + "1", "expected"),
        ("true ? 1 : " * 500 + "1", "nests deeper than 32"),
        ("o" + ".r" * 3000, "nests deeper than 32"),
        ("o.l" + "[0]" * 2000, "nests deeper than 32"),
        ("has(" * 2000, "nests deeper than 32"),
        ("x" * 1_000_000, "at most 8192"),
        ('__import__("os").system("true")', "__import__"),
        ("(lambda: 1)()", "expected"),
        ("o.__class__", "__class__"),
        ("o.x.format(o)", "format"),
        ("[i for i in o.l]", "expected"),
        ("[" + "1," * 3000 + "1]", "more than 2000 parts"),
        ("\ud800", "unexpected character"),
        ('"\ud800"', "half of a surrogate pair"),
        ("\x00", "unexpected character"),
        ('o.x.matches("' + "a" * 600 + '")', "at most 512"),
        (r'o.x.matches(r"(\pL{100}){10}")', "not a pattern: pattern too large"),
        ('o.x.matches("((a{100}){100}){100}")', "not a pattern"),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_a_hostile_text_gets_a_clear_error(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_expression(text, SCOPE)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("sign", ["&&", "||"])
def test_a_long_chain_is_no_deep_tree(sign: str) -> None:
    text = f" {sign} ".join(["o.b"] * 900)
    expression = compile_expression(text, SCOPE)
    for value in (True, False):
        assert expression.evaluate(o={"b": value}).value is value
        assert expression.function({}, {"b": value}, {}, {}) is value


def test_the_deepest_tree_runs_in_all_python_forms() -> None:
    text = "o.i"
    for _ in range(30):
        text = f"({text} + 1)"
    nested = "o.b"
    for _ in range(30):
        nested = f"(o.b ? {nested} : false)"
    for source, expected in ((text, 30), (nested, True)):
        expression = compile_expression(source, SCOPE)
        assert expression.evaluate(o={"i": 0, "b": True}).value == expected
        assert expression.function({}, {"i": 0, "b": True}, {}, {}) == expected


def test_many_mistakes_among_many_names_are_found_in_bounded_time() -> None:
    scope = build_scope(o={f"attribute{number}": "int" for number in range(3000)})
    with pytest.raises(ExpressionError) as caught:
        compile_expression(" && ".join(f"o.atribute{n}" for n in range(400)), scope)
    assert 20 <= len(caught.value.problems) <= 21


def test_catastrophic_patterns_run_in_linear_time() -> None:
    for pattern in ("(a+)+$", "(a|aa)+$", "(x+x+)+y", "(.*a){20}$"):
        expression = compile_expression(f'o.x.matches("{pattern}")', SCOPE)
        assert expression.function({}, {"x": "a" * 100_000 + "!"}, {}, {}) is False


DEEP = json.loads("[" * 500 + "]" * 500)
JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 2**63, -(2**63) - 1, 10**4000, 0.5, float("nan"), float("inf"),
    "", "x", "\ud800", "1", b"x", [], [None], [1], ["x"], ["\ud800"], [[]], (), ("x",), {},
    {"a": 1}, {"a": {"b": "x"}}, {1: 2}, set(), {1}, {"x"}, frozenset({1, "x"}), DEEP, object(),
    Decimal(1), datetime(2026, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 1),  # noqa: DTZ001 - a time without a zone
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), timedelta.max, timedelta(1),
    1 + 2j, MappingProxyType({"a": {"b": 1}}), range(3), iter(()),
]  # fmt: skip

USES = {
    "b": ["o.b", "!o.b", "o.b && true", "o.b ? 1 : 2"],
    "i": ["o.i", "o.i + 1", "o.i == 1", "o.i in s.ints", "o.i < 0.5", "string(o.i)"],
    "d": ["o.d", "o.d * 2.0", "o.d > 0", "int(o.d)", "o.d in [0.5, 1.0]"],
    "x": [
        "o.x",
        'o.x + "a"',
        'o.x == "x"',
        "o.x in s.set",
        'o.x.matches(".")',
        "o.x.lower()",
        "o.x.level(0)",
        "int(o.x)",
        "timestamp(o.x)",
        "size(o.x)",
    ],
    "ts": ["o.ts", 'o.ts + duration("1h")', "o.ts > e.time", "o.ts.hour()"],
    "du": ["o.du", "o.du * 2", "o.du.hours()", 'o.du < duration("1h")'],
    "l": ["o.l", '"x" in o.l', '!("y" in o.l)', "o.l[0]", "size(o.l)", 'o.l.all(v, v == "x")'],
    "m": ["o.m", "o.m.a", '"a" in o.m', "size(o.m)", 'o.m.exists(k, k == "a")'],
    "r": ["o.r", "o.r.a", "o.r.a.b", "has(o.r)", "has(o.r.a.b)", "o.r.a.b == 1"],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in USES.items() for text in texts]
)
def test_a_value_of_a_wrong_type_is_missing_and_both_forms_agree(name: str, text: str) -> None:
    expression = compile_expression(text, SCOPE)
    here = {"set": ["x", "y"], "ints": [1, 2]}
    for value in JUNK:
        expected = expression.evaluate(s=here, o={name: value}).value
        assert expression.function(here, {name: value}, {}, {}) == expected, repr(value)[:80]


def test_a_root_that_is_no_mapping_is_missing() -> None:
    expression = compile_expression("o.b", SCOPE)
    for root in JUNK:
        assert expression.evaluate(o=root).missing
        assert expression.function({}, root, {}, {}) is None


def test_a_list_with_junk_never_turns_missing_into_an_allow() -> None:
    expression = compile_expression('!("eve" in s.set)', SCOPE)
    for junk in (None, 1, "\ud800", ["eve"], {"a": 1}):
        assert expression.function({"set": ["bob", junk]}, {}, {}, {}) is None
        assert expression.evaluate(s={"set": ["bob", junk]}).missing
    assert expression.function({"set": ["bob"]}, {}, {}, {}) is True


def test_a_bool_is_no_int_and_an_int_no_bool() -> None:
    assert compile_expression("1 in s.ints", SCOPE).function({"ints": [True]}, {}, {}, {}) is None
    assert compile_expression("o.i == 1", SCOPE).function({}, {"i": True}, {}, {}) is None
    assert compile_expression("o.b", SCOPE).function({}, {"b": 1}, {}, {}) is None


def test_a_string_cannot_grow_without_bound() -> None:
    text = "o.x"
    for _ in range(7):
        text = f"({text} + {text})"
    expression = compile_expression(f"size({text})", SCOPE)
    fits = {"x": "é" * (MAX_STRING // 128)}
    over = {"x": "é" * (MAX_STRING // 128 + 1)}
    assert expression.function({}, fits, {}, {}) == MAX_STRING
    assert expression.function({}, over, {}, {}) is None
    assert expression.evaluate(o=over).reason == "+ is longer than 65536 characters"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ('o.l.exists(v, v == "no")', 10_000),
        ("o.l.exists(v, s.set.exists(w, w == v))", 100),
        ("o.l.exists(v, v in s.set)", 100),
    ],
)  # fmt: skip
def test_a_quantifier_visits_a_bounded_number_of_elements(text: str, limit: int) -> None:
    expression = compile_expression(text, SCOPE)
    here = {"set": ["no"]}
    for size, expected in ((limit, False), (limit + 1, None)):
        inputs = {"l": ["yes"] * size}
        assert expression.function(here, inputs, {}, {}) is expected
        assert expression.evaluate(s=here, o=inputs).value is expected


def test_reasons_name_paths_and_types_but_no_values() -> None:
    person = "Maria Rossi"
    for text, expected in (
        ("o.i + 1", "o.i is declared int, but holds string"),
        ("o.r.a.b", "o.r is declared record{a: record{b: int}}, but holds string"),
        ('o.m["k"]', "o.m is declared map(int), but holds string"),
        ("o.x == o.l[0]", "o.l is declared list(string), but holds string"),
        ("int(o.x)", "int(…) reads no int"),
        ("e.place == o.x", "e.place is missing"),
        ("1 / (o.j - o.j)", "/ divides by zero"),
        ("o.j + 9223372036854775807 > 0", "+ is beyond the range of int (64 bits)"),
        ("o.x.level(3)", ".level(…) asks for a level that the topic does not have"),
    ):
        inputs = {**dict.fromkeys("irmxl", person), "j": 1}
        outcome = compile_expression(text, SCOPE).evaluate(o=inputs, e={})
        assert outcome.reason == expected
