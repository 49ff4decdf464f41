"""The reference says what is so: every function stands in it, and its examples come out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock.lang import ExpressionError, build_scope, compile_expression
from penstock.lang.errors import MAX_DEPTH, MAX_NODES, MAX_PATTERN, MAX_STRING, MAX_TEXT, MAX_VISITS
from penstock.lang.operations import FUNCTIONS, METHODS, SPECIAL_FUNCTIONS, SPECIAL_METHODS
from penstock.lang.types import ENVIRONMENT, MESSAGE, SCALARS

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "expressions.md"
TEXT = REFERENCE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^(\S.*?) +→ (\S+.*)$", TEXT, re.MULTILINE)
SCOPE = build_scope(o={"patientId": "string"}, s={"pSet": "list(string)"})


def test_every_function_method_field_and_type_is_described() -> None:
    for name in (*FUNCTIONS, *SPECIAL_FUNCTIONS):
        assert f"`{name}(" in TEXT, name
    for name in (*METHODS, *SPECIAL_METHODS):
        assert f".{name}(" in TEXT, name
    for name, kind in (*ENVIRONMENT.items(), *MESSAGE.items()):
        assert f"`{name}: {kind}`" in TEXT, name
    for name in SCALARS:
        assert f"| `{name}` |" in TEXT, name


def test_the_bounds_are_those_of_the_code() -> None:
    for bound in (MAX_TEXT, MAX_NODES, MAX_DEPTH, MAX_PATTERN, MAX_STRING, MAX_VISITS):
        assert f" {bound:,}" in TEXT


@pytest.mark.parametrize(("text", "shown"), EXAMPLES, ids=[text for text, _ in EXAMPLES])
def test_an_example_comes_out_as_shown(text: str, shown: str) -> None:
    outcome = compile_expression(text, SCOPE).evaluate(s={}, o={}, e={}, t={})
    if shown == "missing":
        assert outcome.missing
    else:
        assert outcome.value == json.loads(shown)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 15


def test_the_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(code, str(REFERENCE), "exec"), {})  # noqa: S102 - our own documentation


def test_the_error_is_shown_as_it_is() -> None:
    (shown,) = re.findall(r"```text\n(expression: .*?)\n```", TEXT, re.DOTALL)
    with pytest.raises(ExpressionError) as caught:
        compile_expression('o.patientID in s.pSet && t.topic.contain("x")', SCOPE)
    assert str(caught.value) == shown
