"""The Spark form: the examples, hostile rows, deep trees, and what inputs have to be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import InvalidError
from penstock.lang import (
    DOUBLE,
    TIMESTAMP,
    Expression,
    ListOf,
    MapOf,
    RecordType,
    Type,
    build_scope,
    compile_expression,
)
from penstock.lang.errors import MAX_STRING
from tests.support.lang.examples import EXAMPLES, MISSING, ROOTS, SCOPE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.needs("java")

SMALL = build_scope(
    s={"set": "list(string)"},
    o={
        "b": "bool",
        "i": "int",
        "d": "double",
        "x": "string",
        "at": "timestamp",
        "l": "list(string)",
        "ds": "list(double)",
        "ats": "list(timestamp)",
        "m": "map(int)",
        "r": {"x": "string"},
    },
)


def evaluate(frame: DataFrame, expressions: list[Expression]) -> list[list[Any]]:
    """Return the rows of one query with a column per expression."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from penstock.lang.spark import column  # noqa: PLC0415

    inputs = {name: F.col(name) for name in frame.columns}
    columns = [
        column(expression, inputs).alias(f"c{i}") for i, expression in enumerate(expressions)
    ]
    return [list(row) for row in frame.select(*columns).collect()]


def as_row(value: Any, kind: Type) -> Any:
    match kind:
        case _ if value is None:
            return None
        case RecordType(fields=fields):
            return {name: as_row(value.get(name), inner) for name, inner in fields}
        case ListOf(element=element):
            items = sorted(value) if isinstance(value, set) else value
            return [as_row(item, element) for item in items]
        case MapOf(value=inner):
            return {key: as_row(item, inner) for key, item in value.items()}
        case _:
            return float(value) if kind == DOUBLE else value


def as_value(value: Any, kind: Type) -> Any:
    if value is not None and kind == TIMESTAMP:
        return value.astimezone(UTC)
    return value.asDict() if isinstance(kind, RecordType) and value is not None else value


def test_the_examples_come_out_alike(spark: SparkSession) -> None:
    from penstock.lang.spark import spark_struct  # noqa: PLC0415

    row = {name: as_row(ROOTS[name], record) for name, record in SCOPE.roots}
    frame = spark.createDataFrame(
        [tuple(row.values())], spark_struct(RecordType(SCOPE.roots))
    ).cache()
    expressions = [compile_expression(text, SCOPE) for text, _ in EXAMPLES]
    (found,) = evaluate(frame, expressions)
    different = [
        (text, value, expected)
        for (text, expected), expression, raw in zip(EXAMPLES, expressions, found, strict=True)
        for value in [as_value(raw, expression.type)]
        if (value is not None if expected is MISSING else value != expected)
    ]
    assert different == []


def test_hostile_rows_are_missing_and_fail_no_job(spark: SparkSession) -> None:
    frame = spark.sql(
        """
        SELECT named_struct('set', array('eve', cast(X'FF' AS string))) AS s,
               named_struct(
                 'b', true, 'i', 9223372036854775807L, 'd', double('NaN'),
                 'x', cast(X'61EDA080' AS string),
                 'at', timestamp_micros(9223372036854775807L),
                 'l', array('a', cast(X'C3' AS string), cast(X'A9' AS string)),
                 'ds', array(1.0D, double('Infinity')),
                 'ats', array(timestamp_micros(-9223372036854775807L), timestamp_micros(0L)),
                 'm', map(cast(X'FF' AS string), 1L),
                 'r', named_struct('x', cast(X'FF' AS string))) AS o
        """
    ).cache()
    expected: dict[str, Any] = {
        "o.x": None,
        'o.x.startsWith("a")': None,
        'o.x.matches("a")': None,
        'o.x.includes("a/b")': None,
        "has(o.x)": False,
        "has(o.d)": False,
        "has(o.at)": False,
        "has(o.r.x)": False,
        "has(o.r)": True,
        "o.d > 0.0 || true": True,
        "o.d == o.d": None,
        "o.at.year()": None,
        '"a" in o.l': True,
        '"b" in o.l': None,
        '!("bob" in s.set)': None,
        "1.0 in o.ds": True,
        "2.0 in o.ds": None,
        "timestamp(0) in o.ats": True,
        "timestamp(1) in o.ats": None,
        "o.l.size()": 3,
        "o.l": ["a", None, None],
        "o.ds": [1.0, None],
        'o.l.exists(v, v.matches("^a$"))': True,
        'o.l.exists(v, v.matches("^b$"))': None,
        'o.ats.exists(v, v == timestamp(0) && "a".matches("a"))': True,
        "o.m": {},
        "o.i + 1": None,
        "o.i + 1 > 0": None,
        "(o.i + 1) - 1 == o.i": None,
        "((o.i - 1) + 2) + -9223372036854775807": None,
        "(o.i * 2) * 0": None,
    }
    (found,) = evaluate(frame, [compile_expression(text, SMALL) for text in expected])
    assert dict(zip(expected, found, strict=True)) == expected


def test_lower_is_the_same_letter_by_letter(spark: SparkSession) -> None:
    letters = "".join(chr(code) for code in range(1, 0x11000) if not 0xD800 <= code < 0xE000)
    frame = spark.createDataFrame([((letters,),)], "o struct<x: string>")
    expression = compile_expression("o.x.lower()", SMALL)
    assert evaluate(frame, [expression]) == [[expression.evaluate(o={"x": letters}).value]]


def nest(template: str, inner: str, levels: int) -> str:
    for _ in range(levels):
        inner = template.format(inner)
    return inner


def test_deep_wide_and_catastrophic_expressions_run(spark: SparkSession) -> None:
    frame = spark.sql(
        """
        SELECT named_struct('b', true, 'i', 1L, 'd', 1.5D, 'x', concat(repeat('a', 100000), '!'),
                            'at', timestamp_micros(0L)) AS o
        """
    ).cache()
    expected = {
        nest("({} + 1)", "o.i", 30): 31,
        nest("(9 / {})", "o.i", 30): 1,
        nest("(1.0 / {})", "o.d", 30): 1.5,
        nest('({} + "a")', 'o.x.level(1) + "b"', 28): None,
        nest('({} + duration("1s"))', "o.at", 28) + ".second()": 28,
        nest("({} ? o.b : false)", "o.b", 30): True,
        nest("!({})", "o.b", 30): True,
        " && ".join(["o.b"] * 500): True,
        " || ".join(["o.d > 9.0"] * 400): False,
        'o.x.matches("(a+)+$")': False,
        '["!"].exists(v, (o.x.level(0) + v).matches("(a+)+$"))': None,
        'o.x.matches("(a|aa)+!$")': True,
    }
    expressions = [compile_expression(text, SMALL) for text in expected]
    (found,) = evaluate(frame, expressions)
    assert dict(zip(expected, found, strict=True)) == expected
    assert MAX_STRING < 100_000


@pytest.mark.parametrize(
    ("zone", "ansi"), [("America/New_York", "false"), ("Asia/Kolkata", "true")]
)
def test_the_settings_of_the_session_have_no_influence(
    spark: SparkSession, zone: str, ansi: str
) -> None:
    saved = {
        key: spark.conf.get(key) for key in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
    }
    try:
        spark.conf.set("spark.sql.session.timeZone", zone)
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        frame = spark.sql(
            """
            SELECT named_struct('i', 9223372036854775807L, 'x', '2023-10-29T00:30:00Z',
                                'at', timestamp_micros(1698539400000000L), 'l', array('a'),
                                'd', double('Infinity')) AS o
            """
        ).cache()
        expected = {
            "o.at.hour()": 0,
            "o.at.day()": 29,
            "timestamp(o.x) == o.at": True,
            'o.at + duration("1d") - o.at == duration("24h")': True,
            "o.i + 1": None,
            "o.i / 0": None,
            "o.l[5]": None,
            "int(o.x)": None,
            "int(o.d)": None,
            "size(s.set)": None,
        }
        extended = frame.selectExpr("named_struct('set', cast(NULL AS array<string>)) AS s", "o")
        (found,) = evaluate(extended, [compile_expression(text, SMALL) for text in expected])
        assert dict(zip(expected, found, strict=True)) == expected
    finally:
        for key, value in saved.items():
            if value is not None:
                spark.conf.set(key, value)


def test_roots_may_be_given_field_by_field_and_are_checked(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from penstock.lang.spark import check_inputs, column  # noqa: PLC0415

    frame = spark.createDataFrame([("p1", 3), ("p2", 4)], "pid string, n bigint")
    expression = compile_expression('o.x == "p1" && o.i == 3', SMALL)
    inputs = {"o": {"x": F.col("pid"), "i": F.col("n")}}
    check_inputs(expression, inputs, frame)
    assert [row.pid for row in frame.where(column(expression, inputs)).collect()] == ["p1"]
    wrong = {"o": {"x": F.col("n")}}
    with pytest.raises(InvalidError) as caught:
        check_inputs(expression, wrong, frame)
    assert [str(problem) for problem in caught.value.problems] == [
        "o.i: the frame has no such column for int",
        "o.x: the column is bigint → cast the column to string",
    ]


def test_durations_and_moments_come_out_as_spark_types(spark: SparkSession) -> None:
    frame = spark.sql("SELECT named_struct('at', timestamp_micros(1000000L)) AS o")
    expressions = [
        compile_expression(text, SMALL)
        for text in ("o.at - timestamp(0)", "o.at", '[duration("-1us")]', "[o.at]")
    ]
    (found,) = evaluate(frame, expressions)
    moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert found[0] == timedelta(seconds=1)
    assert found[1].astimezone(UTC) == moment
    assert found[2] == [timedelta(microseconds=-1)]
    assert [item.astimezone(UTC) for item in found[3]] == [moment]
