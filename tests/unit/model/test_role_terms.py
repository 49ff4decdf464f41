"""How roles with parameters are written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.role_terms import (
    VALUE_LIMIT,
    Constant,
    Path,
    RoleTerm,
    Variable,
    parse_subject,
    parse_term,
)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("nurse", RoleTerm("nurse")),
        ("ward-3/nurse.b", RoleTerm("ward-3/nurse.b")),
        ("nurse()", RoleTerm("nurse", ())),
        ("treats(doctor, p)", RoleTerm("treats", (Variable("doctor"), Variable("p")))),
        ("treats( _ , o.patientId )", RoleTerm("treats", (Variable("_"), Path("o.patientId")))),
        ("a('x, y')", RoleTerm("a", (Constant("x, y"),))),
        ('a("it\'s", \'say "hi"\')', RoleTerm("a", (Constant("it's"), Constant('say "hi"')))),
        ('a("\\u0041)")', RoleTerm("a", (Constant("A)"),))),
    ],
)
def test_terms_are_read(text: str, term: RoleTerm) -> None:
    assert parse_term(text) == term


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot name a role"),
        ("(a)", "cannot name a role"),
        ("a b", "cannot name a role"),
        ("a(b", "not closed"),
        ("a(b) c", "not closed"),
        ("a(b c)", "comma"),
        ("a(b,)", "argument 2"),
        ("a(+)", "argument 1"),
        ("a(#)", "argument 1"),
        ("a(b(c))", "comma"),
        ('a("b)', "argument 1"),
        ('a("\\q")', "escape"),
        ('a("")', "1 to 256"),
        (f'a("{"x" * (VALUE_LIMIT + 1)}")', "1 to 256"),
        ('a("\\u0000")', "printed"),
        (f"a({','.join(['b'] * 17)})", "at most 16"),
    ],
)
def test_what_is_no_term_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_term(text)


@given(st.text(min_size=1, max_size=VALUE_LIMIT).filter(str.isprintable))
def test_a_value_is_text_whatever_is_in_it(value: str) -> None:
    term = parse_term(f"a({json.dumps(value)}, b)")
    assert term.arguments == (Constant(value), Variable("b"))


def test_subjects_name_roles_with_their_prefix() -> None:
    assert parse_subject("user:ann") is None
    assert parse_subject('role:a("x", _)') == RoleTerm("a", (Constant("x"), Variable("_")))
    assert parse_term("a(b, _, o.c.d)").variables == ("b",)
    assert parse_term("a(b, _, o.c.d)").paths == ("o.c.d",)
    assert parse_term("a('b', _)").is_plain
    assert not parse_term("a(b)").is_plain
