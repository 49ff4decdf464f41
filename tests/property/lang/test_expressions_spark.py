"""All three forms agree on random expressions and random rows, in one Spark query per batch."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any

import pytest

from penstock.lang import (
    BOOL,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    ListOf,
    MapOf,
    RecordType,
    Type,
    compile_expression,
)
from tests.support.lang.generator import SCALARS, SCOPE, Expressions, Inputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES, EXPRESSIONS, ROWS = 3, 40, 100  # 12,000 pairs
RESULTS: list[Type] = [
    *[BOOL] * 8,
    *SCALARS,
    ListOf(STRING),
    ListOf(INT),
    ListOf(DOUBLE),
    MapOf(INT),
]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_number(value: Any, kind: Type) -> Any:
    """Return moments as microseconds: pyspark cannot collect the first and last of them."""
    return (value - _EPOCH) // timedelta(microseconds=1) if kind == TIMESTAMP and value else value


@pytest.mark.needs("java")
def test_the_three_forms_agree(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from penstock.lang.spark import check_inputs, column, spark_struct  # noqa: PLC0415

    seed = 1 if os.environ.get("CI") == "true" else SystemRandom().getrandbits(32)
    random = Random(seed)
    rows = [Inputs(random).row() for _ in range(ROWS)]
    frame = (
        spark.createDataFrame(
            [tuple(row.values()) for row in rows], spark_struct(RecordType(SCOPE.roots))
        )
        .coalesce(1)
        .cache()
    )
    inputs = {name: F.col(name) for name in SCOPE.names}
    pairs = 0
    for _ in range(QUERIES):
        texts = [
            Expressions(random).draw(random.choice(RESULTS), random.choice([2, 3, 4]))
            for _ in range(EXPRESSIONS)
        ]
        expressions = [compile_expression(text, SCOPE) for text in texts]
        columns = [column(expression, inputs) for expression in expressions]
        shown = [
            F.unix_micros(made) if expression.type == TIMESTAMP else made
            for made, expression in zip(columns, expressions, strict=True)
        ]
        found = frame.select(*(it.alias(f"c{i}") for i, it in enumerate(shown))).collect()
        for index, expression in enumerate(expressions):
            for row, answer in zip(rows, found, strict=True):
                outcome = as_number(expression.evaluate(**row).value, expression.type)
                generated = as_number(expression.function(*row.values()), expression.type)
                answers = (outcome, generated, answer[index])
                assert len({type(it) for it in answers}) == 1, (seed, expression.text, answers, row)
                assert answers[0] == answers[1] == answers[2], (seed, expression.text, answers, row)
                pairs += 1
        check_inputs(expressions[0], inputs, frame)
    assert pairs >= 10_000

    # As a filter, where the optimizer may take NULL for false.
    conditions = [compile_expression(Expressions(random).draw(BOOL, 3), SCOPE) for _ in range(5)]
    for condition in conditions:
        kept = frame.where(column(condition, inputs)).count()
        expected = sum(condition.evaluate(**row).holds for row in rows)
        assert kept == expected, (seed, condition.text)
