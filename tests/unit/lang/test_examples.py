"""Examples of every operation: one table, asked of the interpreter and of the generated form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.lang import build_scope, compile_expression

SCOPE = build_scope(
    s={"pSet": "list(string)", "roles": "list(string)", "level": "string", "shift": "duration"},
    o={
        "patientId": "string",
        "age": "int",
        "weight": "double",
        "admitted": "timestamp",
        "alive": "bool",
        "scores": "list(int)",
        "doses": "list(double)",
        "labels": "map(string)",
        "visits": "list(record{room: string, at: timestamp, ids: list(int)})",
        "address": {"city": "string", "heart-rate": "int"},
    },
    payload={"temperature": "double"},
)
NOW = datetime(2026, 3, 1, 8, 30, 15, 123456, tzinfo=UTC)
ROOTS: dict[str, Any] = {
    "s": {
        "pSet": ["p1", "p2"],
        "roles": {"nurse", "staff"},
        "level": "gold",
        "shift": timedelta(hours=8),
    },
    "o": {
        "patientId": "p1",
        "age": 70,
        "weight": 61.5,
        "admitted": NOW,
        "alive": True,
        "scores": [3, 1, 2],
        "doses": [0.5, 1],
        "labels": {"ward": "A", "ΑΣ": "x", "void": None},
        "visits": [
            {"room": "101", "at": NOW, "ids": [1, 2]},
            {"room": "102", "at": NOW, "ids": [3]},
        ],
        "address": {"city": "Como", "heart-rate": 60},
    },
    "e": {"time": NOW + timedelta(hours=1), "purpose": "care"},
    "t": {
        "topic": "ward/bed 12/temperature",
        "qos": 1,
        "retain": False,
        "payload": {"temperature": 38.5},
    },
}
MISSING = object()

EXAMPLES: list[tuple[str, Any]] = [
    # the example of the design
    ('o.patientId in s.pSet && t.topic.contains("temperature")', True),
    # literals
    ("true", True),
    ("0xFF", 255),
    ("-9223372036854775808", -(2**63)),
    ("9223372036854775807", 2**63 - 1),
    ("1.5e3", 1500.0),
    ("1e-400", 0.0),
    (r'"a\n\t\r\\\"\'\x41\u00e9\U0001F600"', "a\n\t\r\\\"'Aé😀"),
    (r'r"\d+"', r"\d+"),
    ("'single'", "single"),
    ("[1, 2.5]", [1.0, 2.5]),
    ('{"a": 1, "b": 2}', {"a": 1, "b": 2}),
    ('timestamp("2026-03-01T10:30:15.123456+02:00")', NOW),
    ('duration("1h30m")', timedelta(minutes=90)),
    ('duration("-1.5d")', timedelta(hours=-36)),
    # a comment and white space
    ("1 + // one\n 1", 2),
    # int arithmetic
    ("7 / 2", 3),
    ("-7 / 2", -3),
    ("7 / -2", -3),
    ("-7 % 2", -1),
    ("7 % -2", 1),
    ("7 / 0", MISSING),
    ("7 % 0", MISSING),
    ("9223372036854775807 + 1", MISSING),
    ("-9223372036854775808 - 1", MISSING),
    ("-9223372036854775808 / -1", MISSING),
    ("-9223372036854775808 % -1", 0),
    ("-(-9223372036854775808)", MISSING),
    ("3037000500 * 3037000500", MISSING),
    ("2 + 3 * 4 - 6 / 3", 12),
    ("(2 + 3) * 4", 20),
    ("- -5", 5),
    # double arithmetic
    ("7.0 / 2", 3.5),
    ("1 / 2.0", 0.5),
    ("1.0 / 0.0", MISSING),
    ("0.0 / 0.0", MISSING),
    ("1.0 / -0.0", MISSING),
    ("1e308 * 10", MISSING),
    ("1e308 * 10 - 1e308 * 10", MISSING),
    ("1.0 / (1e308 * 10)", MISSING),
    ("-o.weight", -61.5),
    ("o.weight * 2 + 1", 124.0),
    # int and double together
    ("1 == 1.0", True),
    ("0.0 == -0.0", True),
    ("o.age > 69.5", True),
    ("o.weight < 62", True),
    ("(o.age + 9007199254740922) == 9007199254740992.0", True),
    ("(o.age + 9007199254740923) == 9007199254740992.0", MISSING),
    ("(o.age + 9007199254740923) + 0.5", MISSING),
    ("true ? 1 : 2.0", 1.0),
    # comparison
    ('"a" < "b"', True),
    ('"B" < "a"', True),
    ('"\\uffff" < "\\U00010000"', True),
    ('"" < "a"', True),
    ('"é" == "e\\u0301"', False),
    ("o.alive == true", True),
    ("o.alive != true", False),
    ("o.admitted < e.time", True),
    ('e.time - o.admitted >= duration("1h")', True),
    # logic
    ("!o.alive", False),
    ("!!o.alive", True),
    ("false || o.alive && true", True),
    ("o.alive ? 1 : 2", 1),
    ("!o.alive ? 1 : o.age > 100 ? 2 : 3", 3),
    # fields, entries, elements
    ("o.address.city", "Como"),
    ('o.address["heart-rate"]', 60),
    ('o.labels["ward"]', "A"),
    ("o.labels.ward", "A"),
    ("o.labels.nothing", MISSING),
    ("o.labels.void", MISSING),
    ("o.scores[0]", 3),
    ("o.scores[3]", MISSING),
    ("o.scores[-1]", MISSING),
    ("s.roles[0]", "nurse"),
    ("s.roles[1]", "staff"),
    ('{"gold": 3, "silver": 2}[s.level]', 3),
    ("[10, 20][o.scores[1]]", 20),
    ("o.visits[1].room", "102"),
    ("o.visits[0].ids[1]", 2),
    ("o.address", {"city": "Como", "heart-rate": 60}),
    ("o.scores", [3, 1, 2]),
    ("s.roles", ["nurse", "staff"]),
    ("o.labels", {"ward": "A", "ΑΣ": "x", "void": None}),
    # has
    ("has(o.age)", True),
    ("has(o.labels.ward)", True),
    ('has(o.labels["nothing"])', False),
    ("has(o.labels.void)", False),
    ("has(e.place)", False),
    ("has(o.scores[2])", True),
    ("has(o.scores[3])", False),
    ("has(o.address)", True),
    # in
    ('"p2" in s.pSet', True),
    ('"p3" in s.pSet', False),
    ('"nurse" in s.roles', True),
    ("o.age in [69, 70]", True),
    ("o.age in [69, 71]", False),
    ("o.age in [69, 1 / 0]", MISSING),
    ("o.age in [70, 1 / 0]", True),
    ("o.age in [70.0, 1.0]", True),
    ("o.weight in [61.5, 1]", True),
    ("1 in o.scores", True),
    ("9 in o.scores", False),
    ("1 in o.doses", True),
    ("1.0 in o.doses", True),
    ('"ward" in o.labels', True),
    ('"void" in o.labels', True),
    ('"none" in o.labels', False),
    ('"temperature" in t.topic.levels()', True),
    ('o.admitted in [timestamp("2026-03-01T08:30:15.123456Z")]', True),
    # quantifiers
    ("o.scores.exists(x, x > 2)", True),
    ("o.scores.exists(x, x > 3)", False),
    ("o.scores.all(x, x > 0)", True),
    ("o.scores.all(x, x > 1)", False),
    ("o.scores.exists(x, 1 / (x - 1) > 100)", MISSING),
    ("o.scores.exists(x, 1 / (x - 1) == 1)", True),
    ("o.scores.all(x, 6 / (x - 1) > 0)", MISSING),
    ("o.scores.all(x, 6 / (x - 1) > 3)", False),
    ('o.visits.exists(v, v.room == "102" && v.ids.exists(i, i == 3))', True),
    ("o.visits.all(v, v.ids.all(i, i in o.scores))", True),
    ('o.labels.exists(k, k == "ward")', True),
    ("s.roles.all(r, r.size() == 5)", True),
    ("[1, 2].all(x, x < 3)", True),
    # strings
    ('t.topic.startsWith("ward/")', True),
    ('t.topic.endsWith("/temperature")', True),
    ('t.topic.contains("")', True),
    ('"Äß ΑΣ İ 𐐀".lower()', "äß \u03b1\u03c3 İ 𐐨"),
    ('"😀é".size()', 2),
    ('size("")', 0),
    ("size(o.scores)", 3),
    ("o.labels.size()", 3),
    ('"a" + "b" + s.level', "abgold"),
    ('t.topic.matches("bed [0-9]+")', True),
    ('t.topic.matches(r"^\\w+$")', False),
    # topics
    ("t.topic.level(0)", "ward"),
    ("t.topic.level(2)", "temperature"),
    ("t.topic.level(3)", MISSING),
    ("t.topic.level(-1)", MISSING),
    ("t.topic.levels().size()", 3),
    ('"".levels()', [""]),
    ('"/a/".levels()', ["", "a", ""]),
    ('t.topic.includes("temp")', True),
    ('t.topic.includes("ward")', True),
    ('t.topic.includes("d/b")', False),
    ('t.topic.includes("pressure")', False),
    # conversions
    ("int(3.99)", 3),
    ("int(-3.99)", -3),
    ("int(9223372036854775807.0)", MISSING),
    ("int(-9223372036854775808.0)", -(2**63)),
    ('int("-007")', -7),
    ('int("9223372036854775808")', MISSING),
    ('int(" 1")', MISSING),
    ('int("1\\n")', MISSING),
    ('int("٣")', MISSING),
    ('int("+1")', MISSING),
    ("int(5)", 5),
    ('int(timestamp("1969-12-31T23:59:59.5Z"))', -1),
    ("double(7)", 7.0),
    ("double(9007199254740993)", MISSING),
    ('double("-1.5e2")', -150.0),
    ('double("1e999")', MISSING),
    ('double("NaN")', MISSING),
    ('double("1f")', MISSING),
    ("string(-12)", "-12"),
    ("string(o.alive)", "true"),
    ("timestamp(0)", datetime(1970, 1, 1, tzinfo=UTC)),
    ("timestamp(999999999999999)", MISSING),
    ('timestamp("2026-03-01T08:30:15.123456" + "Z") == o.admitted', True),
    ('timestamp("2026-02-30T00:00:00" + "Z")', MISSING),
    ('timestamp("2026-02-03 00:00:00" + "Z")', MISSING),
    # moments
    ("o.admitted.year()", 2026),
    ("o.admitted.month()", 3),
    ("o.admitted.day()", 1),
    ("o.admitted.hour()", 8),
    ("o.admitted.minute()", 30),
    ("o.admitted.second()", 15),
    ("o.admitted.millisecond()", 123),
    ("o.admitted.dayOfWeek()", 7),
    ("o.admitted.dayOfYear()", 60),
    ('(o.admitted + duration("24h")).dayOfWeek()', 1),
    ('duration("1h") + o.admitted == e.time', True),
    ('o.admitted - duration("1us") < o.admitted', True),
    ('timestamp("9999-12-31T23:59:59Z") + duration("1s")', MISSING),
    ('timestamp("0001-01-01T00:00:00Z") - duration("1us")', MISSING),
    ('duration("1h") * 3', timedelta(hours=3)),
    ('o.age * duration("1d")', timedelta(days=70)),
    ('duration("3652500d") * 2', MISSING),
    ('duration("1us") * 9223372036854775807', MISSING),
    ('duration("3652500d") + duration("1us")', MISSING),
    ('-duration("3652500d")', timedelta(days=-3652500)),
    ("s.shift.hours()", 8),
    ('duration("-90m").hours()', -1),
    ('duration("-1ms").seconds()', 0),
    ('duration("36h").days()', 1),
    ('duration("1.5s").milliseconds()', 1500),
    ('duration("90s").minutes()', 1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), EXAMPLES, ids=[text for text, _ in EXAMPLES])
def test_both_python_forms_give_the_value_that_the_reference_promises(
    text: str, expected: Any
) -> None:
    expression = compile_expression(text, SCOPE)
    outcome = expression.evaluate(**ROOTS)
    value = expression.function(*(ROOTS[name] for name in SCOPE.names))
    if expected is MISSING:
        assert outcome.missing
        assert outcome.reason
        assert outcome.span is not None
        assert value is None
    else:
        assert not outcome.missing
        assert (type(outcome.value), outcome.value) == (type(expected), expected)
        assert (type(value), value) == (type(expected), expected)


TRUE, FALSE, NONE = "o.alive", "!o.alive", "e.place == e.place"
TRUTH = [
    # one, other, and, or
    (TRUE, TRUE, True, True),
    (TRUE, FALSE, False, True),
    (TRUE, NONE, None, True),
    (FALSE, TRUE, False, True),
    (FALSE, FALSE, False, False),
    (FALSE, NONE, False, None),
    (NONE, TRUE, None, True),
    (NONE, FALSE, False, None),
    (NONE, NONE, None, None),
]


@pytest.mark.parametrize(("one", "other", "both", "either"), TRUTH)
def test_logic_is_three_valued(one: str, other: str, both: object, either: object) -> None:
    for text, expected in (
        (f"{one} && {other}", both),
        (f"{one} || {other}", either),
        (f"[1].exists(x, {one}) && {other}", both),
        (f"({one}) && ({other}) && true", both),
        (f"({one}) || ({other}) || false", either),
    ):
        expression = compile_expression(text, SCOPE)
        assert expression.evaluate(**ROOTS).value is expected, text
        assert expression.function(*ROOTS.values()) is expected, text


@pytest.mark.parametrize(
    ("operand", "negated", "chosen"),
    [(TRUE, False, "yes"), (FALSE, True, "no"), (NONE, None, None)],
)
def test_not_and_choice_pass_a_missing_value_on(
    operand: str, negated: object, chosen: object
) -> None:
    for text, expected in (
        (f"!({operand})", negated),
        (f'({operand}) ? "yes" : "no"', chosen),
    ):
        expression = compile_expression(text, SCOPE)
        assert expression.evaluate(**ROOTS).value == expected
        assert expression.function(*ROOTS.values()) == expected
