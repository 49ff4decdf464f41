"""The way in: what an Expression offers, and how its problems are shown."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidError, Problem
from penstock.lang import BOOL, DOUBLE, INT, ExpressionError, build_scope, compile_expression

SCOPE = build_scope(
    s={"pSet": "list(string)"},
    o={"patientId": "string", "age": "int", "scores": "list(int)"},
    payload={"pulse": "int", "labels": "map(string)"},
)


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(ExpressionError) as caught:
        compile_expression(text, SCOPE)
    return caught.value.problems


def test_references_are_the_longest_paths_read() -> None:
    text = (
        't.payload.pulse > 3 || t.payload.labels["x"] == o.patientId || s.pSet.exists(p, p == "a")'
    )
    expression = compile_expression(text, SCOPE)
    assert expression.references == {"t.payload.pulse", "t.payload.labels", "o.patientId", "s.pSet"}
    assert expression.type == BOOL
    assert expression.text == text


def test_the_expected_type_is_asked_for_and_an_int_may_stand_for_a_double() -> None:
    assert compile_expression("o.age", SCOPE, DOUBLE).evaluate(o={"age": 3}).value == 3.0
    assert compile_expression("o.age", SCOPE, INT).type == INT
    with pytest.raises(ExpressionError, match="bool is asked for here, but this is int"):
        compile_expression("o.age", SCOPE, BOOL)


def test_all_type_errors_are_shown_at_once_under_the_text() -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_expression('o.patientID in s.pSet &&\n  t.topc.contain("x")', SCOPE)
    assert str(caught.value) == (
        "expression: 3 problems\n"
        "  line 1, column 3: o has no field 'patientID'\n"
        "    o.patientID in s.pSet &&\n"
        "      ^^^^^^^^^ → did you mean 'patientId'?\n"
        "  line 2, column 5: t has no field 'topc'\n"
        '      t.topc.contain("x")\n'
        "        ^^^^ → did you mean 'topic'?\n"
        "  line 2, column 10: unknown method 'contain'\n"
        '      t.topc.contain("x")\n'
        "             ^^^^^^^ → did you mean 'contains'?"
    )
    assert isinstance(caught.value, InvalidError)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("o.age == null", "there is no null", "has(o.field)"),
        ("o.age = 3", "unexpected character '='", "=="),
        ("o.age > 3 and true", "found 'and'", "&&"),
        ("o.age > 3 & true", "unexpected character '&'", "&&"),
        ("1 < 2 < 3", "cannot be chained", "a < b && b < c"),
        ("o.age + ", "a value expected, but the expression ends here", ""),
        ("(o.age", "')' expected, but the expression ends here", "close the '('"),
        ("[1, 2", "',' or ']' expected", "close the '['"),
        ('{"a": 1', "',' or '}' expected", "close the '{'"),
        ("{1: 2}", "a key of a map is a string literal", ""),
        ('{"a": 1, "a": 2}', "key 'a' stands twice", ""),
        ("[]", "an empty list has no type", "size(…) == 0"),
        ("{}", "an empty map has no type", "size(…) == 0"),
        ('"abc', "the string does not end", 'close it with "'),
        ('"a\nb"', "the string does not end on its line", ""),
        (r'"\q"', "unknown escape", r"\n"),
        (r'"\ud83d"', "is not a character", r"\U0001F600"),
        (r'"\U00110000"', "is not a character", ""),
        (r'"\u12"', "followed by 4 hexadecimal digits", ""),
        ("“a”", "unexpected character", "straight quotes"),
        ("o.age ∈ [1]", "unexpected character", "write in"),
        ("12abc", "cannot be followed by", "suffixes"),
        ("1e999", "beyond the range of double", ""),
        ("9223372036854775808", "beyond the range of int", ""),
        ("99999999999999999999", "beyond the range of int", ""),
        ("9" * 4400, "a number has at most 64 characters", ""),
        ("o.age > 9007199254740993 + 0.5", "has no exact double", "as a double"),
        ("patientId", "unknown name 'patientId'", '"patientId"'),
        ("o.age.contains(1)", "contains of int does not take (int)", "string.contains(string)"),
        ("contains(o.patientId)", "unknown function 'contains'", "value.contains(…)"),
        ("o.age.int()", "unknown method 'int'", "write int(…)"),
        ("o.patientId.size", "string has no fields", ".size(…)"),
        ("o.patientId[0]", "string cannot be indexed", ".levels()"),
        ("t[o.patientId]", "a record is indexed by a string literal", "map(…)"),
        ("o.scores == [1]", "== does not take list(int) and list(int)", ".exists(x, …)"),
        ('o.age == "3"', "== does not take int and string", "int(…)"),
        ("true < false", "< does not take bool and bool", "no order"),
        ('"a" in o.patientId', "in does not take string and string", "text.contains(word)"),
        ('"a" in o.scores', "in does not take string and list(int)", "one scalar type"),
        ("1.5 in o.scores", "in does not take double and list(int)", ""),
        ('true ? 1 : "a"', "? : gives int or string", "one type"),
        ("o.age ? 1 : 2", "? asks for bool, but this is int", "has(…)"),
        ("o.age && true", "&& joins bool, but this is int", "has(…)"),
        ("!o.age", "! does not take int", ""),
        ("5.5 % 2.0", "% does not take double and double", ""),
        ("has(1 + 1)", "has asks for a field", "has(o.field)"),
        ("has()", "has asks for a field", "has(o.field)"),
        ('t.topic.matches("(a")', "not a pattern: missing )", "RE2"),
        (r't.topic.matches(r"(.)\1")', "not a pattern: invalid escape", "RE2"),
        ("t.topic.matches(o.patientId)", "a pattern as a literal", ".matches("),
        ('timestamp("yesterday")', "'yesterday' is not a timestamp", "2026-03-01T08:00:00Z"),
        ('duration("1 hour")', "'1 hour' is no duration", "1h30m"),
        ("duration(o.age)", "duration takes a literal", "o.days * duration"),
        ("o.scores.exists(x)", "exists takes a variable and a condition", "list.exists(x"),
        ("o.scores.exists(o, o == 1)", "'o' is taken", "otherwise"),
        ("o.age.exists(x, true)", "exists looks into a list or map, not int", ""),
        ("o.scores.exists(x, x)", "exists asks for bool, but this is int", ""),
        (
            "o.scores.all(a, o.scores.all(b, o.scores.all(c, true)))",
            "exists and all nest at most 2 deep",
            "",
        ),
        ('[1, "a"]', "this is string, those before it are int", ""),
    ],
)  # fmt: skip
def test_a_problem_says_what_is_wrong_and_how_to_mend_it(text: str, message: str, fix: str) -> None:
    (problem,) = problems_of(text)
    assert message in problem.message
    assert fix in (problem.fix or "")


def test_at_most_twenty_problems_are_shown() -> None:
    assert len(problems_of(" && ".join(f"x{i}" for i in range(100)))) == 20


def test_a_long_line_is_cut_around_the_mark() -> None:
    (problem,) = problems_of("true && " * 500 + "unknown && " + "true && " * 300 + "true")
    lines = problem.message.splitlines()
    assert max(map(len, lines)) < 200
    assert lines[1][lines[2].index("^") :].startswith("unknown")


def test_control_characters_of_a_text_are_not_shown() -> None:
    (problem,) = problems_of('"\x1b[31m" + 1')
    assert "\x1b" not in problem.message
