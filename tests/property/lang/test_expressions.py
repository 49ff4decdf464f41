"""The interpreter and the generated Python agree, on values and on junk; text never breaks."""

from __future__ import annotations

import ast
from random import Random
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lang import (
    BOOL,
    DOUBLE,
    INT,
    STRING,
    ExpressionError,
    ListOf,
    MapOf,
    Type,
    compile_expression,
    prepare,
    tree,
)
from penstock.lang.operations import OPERATIONS
from penstock.lang.python import generate
from tests.support.lang.generator import SCALARS, SCOPE, Expressions, Inputs
from tests.support.scale import scaled

RESULTS: list[Type] = [
    *[BOOL] * 6,
    *SCALARS,
    ListOf(STRING),
    ListOf(INT),
    ListOf(DOUBLE),
    MapOf(INT),
]
JUNK: list[Any] = [
    None, True, 0, 1, 2**63, -(2**70), 0.5, float("nan"), "", "1", "\ud800", b"a", [], [None],
    ["a"], [1], [True], {}, {"a": 1}, {1: 1}, (), ("a",), set(), {"a"}, {1, "a"},
    frozenset({1.0}), [[]], [{}],
]  # fmt: skip


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def spoil(value: Any, random: Random) -> Any:
    """Replace parts of an input by junk, and lists by tuples and sets."""
    if random.random() < 0.03:
        return random.choice(JUNK)
    if isinstance(value, dict):
        return {key: spoil(item, random) for key, item in value.items()}
    if isinstance(value, list):
        items = [spoil(item, random) for item in value]
        return tuple(items) if random.random() < 0.2 else items
    return value


# Hypothesis draws, and shrinks, the expression; a seed is enough for the rows.
RANDOMS = st.randoms(use_true_random=False)
SEEDS = st.integers(0, 2**32)


@settings(max_examples=scaled(500))
@given(RANDOMS, SEEDS)
def test_generated_python_agrees_with_the_interpreter(random: Random, seed: int) -> None:
    # 500 expressions on 24 rows each, half of them with junk: 12,000 pairs.
    text = Expressions(random).draw(random.choice(RESULTS), random.choice([2, 3, 4]))
    expression = compile_expression(text, SCOPE)
    rows = Random(seed)
    for _ in range(12):
        row = Inputs(rows).row()
        for roots in (row, {name: spoil(value, rows) for name, value in row.items()}):
            expected = expression.evaluate(**roots)
            assert same(expression.function(*roots.values()), expected.value), (text, roots)
            assert expected.missing == (expected.value is None)


@settings(max_examples=scaled(100))
@given(RANDOMS, SEEDS)
def test_prepared_inputs_mean_the_same(random: Random, seed: int) -> None:
    text = Expressions(random).draw(random.choice(RESULTS), 3)
    expression = compile_expression(text, SCOPE)
    rows = Random(seed)
    for _ in range(10):
        row = {name: spoil(value, rows) for name, value in Inputs(rows).row().items()}
        prepared = {name: prepare(row[name], record) for name, record in SCOPE.roots}
        assert same(expression.function(*prepared.values()), expression.function(*row.values())), (
            text,
            row,
        )


@settings(max_examples=scaled(150))
@given(RANDOMS)
def test_no_word_of_an_author_stands_in_the_generated_source(random: Random) -> None:
    text = Expressions(random).draw(BOOL, 4)
    source = generate(compile_expression(text, SCOPE).tree, SCOPE.names).source
    literals = {
        node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)
    }
    assert {value for value in literals if isinstance(value, str)} <= {"/"}
    numbers = {value for value in literals if isinstance(value, int | float)}
    assert numbers <= {0, 2**63, 2**63 - 1, 100, 1000, 10_000, True}


def test_the_generator_reaches_every_operation_and_every_node() -> None:
    random = Random(1)
    operations, nodes = set(), set()
    for _ in range(3000):
        text = Expressions(random).draw(random.choice(RESULTS), 3)
        for node in tree.walk(compile_expression(text, SCOPE).tree):
            nodes.add(type(node))
            if isinstance(node, tree.Apply):
                operations.add(node.operation)
    assert operations == OPERATIONS
    assert nodes == set(get_args(tree.Node))


WORDS = st.sampled_from(
    ["o", ".", "i", "(", ")", "[", "]", "{", "}", ",", "?", ":", "&&", "||", "!", "-", "+", "/",
     "==", "in", "has", "exists", "x", "1", "1.5", '"a"', "true", "s", "xs", "//", "\n", "'", "\\"]
)  # fmt: skip


@settings(max_examples=scaled(400))
@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=30).map(" ".join)))
def test_any_text_compiles_or_is_refused_with_a_place(text: str) -> None:
    problems = []
    try:
        expression = compile_expression(text, SCOPE)
    except ExpressionError as error:
        problems = error.problems
    if problems:
        assert all(problem.place.startswith("line ") for problem in problems)
        assert all("^" in problem.message for problem in problems)
    else:
        assert same(
            expression.function({}, {}, {}, {}), expression.evaluate(s={}, o={}, e={}, t={}).value
        )
