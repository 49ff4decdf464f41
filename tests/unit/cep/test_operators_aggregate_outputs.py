from __future__ import annotations

import pytest

from penstock.cep.operators import can_fall, can_rise
from penstock.lang import Scope, compile_expression, parse_record

SCOPE = Scope((("it", parse_record({"high": "double", "low": "double", "n": "int", "s": "int"})),))
FUNCTIONS = {"high": "max", "low": "min", "n": "count", "s": "sum"}


@pytest.mark.parametrize(
    ("text", "rises", "falls"),
    [
        ("it.high >= 38.0", False, True),
        ("it.high < 38.0", True, False),
        ("38.0 > it.high", True, False),
        ("it.low < 95.0", False, True),
        ("it.low >= 95.0", True, False),
        ("it.n > 3", False, True),
        ("it.n == 3", True, True),
        ("it.s > 3", True, True),
        ("it.high > it.low", False, True),
        ("it.high - it.low > 1.0", True, True),
        ("it.high >= 38.0 || it.low < 95.0", False, True),
        ("it.high < 38.0 && it.low >= 95.0", True, False),
        ("it.high < 38.0 || it.n > 2", True, True),
        ("true", False, False),
        ("!(it.high < 38.0)", True, True),
    ],
)
def test_conditions_turn_by_time_alone(text: str, rises: bool, falls: bool) -> None:  # noqa: FBT001
    tree = compile_expression(text, SCOPE).tree
    assert can_rise(tree, FUNCTIONS) is rises  # type: ignore[arg-type]
    assert can_fall(tree, FUNCTIONS) is falls  # type: ignore[arg-type]
