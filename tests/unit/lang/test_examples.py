"""The examples and the truth tables, asked of the interpreter and of the generated form."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.lang import compile_expression
from tests.support.lang.examples import EXAMPLES, MISSING, ROOTS, SCOPE


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
