"""Masks over frames: what the frame must have, and what the plan must not show."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import InvalidError
from penstock.masks import Chain, Field, Supplies, read_masks
from penstock.masks.supplies import split_key
from tests.support.masks.single_mask import SECRET, supply

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java")

SCHEMA = {"name": Field.of("string"), "age": Field.of("int", optional=True)}
MASKS: list[dict[str, Any]] = [
    {"anonymizer": "tokenization", "keys": ["name"]},
    {"anonymizer": "noise", "keys": ["age"], "noise": 2, "mode": "additive"},
]


def test_no_key_is_shown_in_any_plan(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from penstock.masks.spark import mask_frame  # noqa: PLC0415

    chain = Chain(read_masks(MASKS), SCHEMA, supply())
    frame = spark.createDataFrame([("Hans", 40, "t/0/1")], "name string, age int, id string")
    masked = mask_frame(frame, chain, identity=F.col("id"))
    (row,) = masked.collect()
    execution = masked._jdf.queryExecution()
    plans = " ".join(
        [
            execution.toString(),
            execution.executedPlan().toString(),
            execution.optimizedPlan().toString(),
        ]
    ).lower()
    keys = [
        SECRET,
        chain.supplies.require_keys().derive("tokenization", "name", "pseudonym"),
        chain.supplies.require_keys().derive("noise", "age", "0", "0"),
    ]
    token = hmac.digest(keys[1], b"Hans", "sha256").hex()[:32]
    assert row["name"] == token, "these are the keys"
    for key in keys:
        for form in (key, *split_key(key)):
            assert form[:16].hex() not in plans


def test_rejected_rows_show_nothing_but_what_is_carried(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from penstock.masks.spark import mask_frame  # noqa: PLC0415

    chain = Chain([], SCHEMA, Supplies())
    bad = "CAST(X'48ff61' AS STRING)"
    frame = spark.range(3).select(
        F.expr(f"CASE id WHEN 0 THEN 'Hans' WHEN 1 THEN {bad} END").alias("name"),
        F.col("id").cast("int").alias("age"),
        F.col("id"),
    )
    rows = mask_frame(frame, chain, carry=["id"], rejection="why").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [
        ("Hans", 0, 0, None),
        (None, None, 1, "the field 'name' is declared string, and holds something else"),
        (None, None, 2, "the field 'name' is required, and missing"),
    ]


def test_frames_that_do_not_fit_are_refused_as_a_whole(spark: SparkSession) -> None:
    from penstock.masks.spark import mask_frame  # noqa: PLC0415

    chain = Chain(read_masks(MASKS), SCHEMA, supply())
    frame = spark.createDataFrame([(1, "x")], "age bigint, Rejected string")
    with pytest.raises(InvalidError) as caught:
        mask_frame(frame, chain, carry=["Rejected", "raw"])
    assert list(map(str, caught.value.problems)) == [
        "name: the frame has no such column for string",
        "age: the column is bigint → cast it to int",
        "raw: there is no such column to carry",
        (
            "rejected: two columns of the result would be called 'rejected' "
            "→ give rejection or the carried column another name"
        ),
        "identity: the masks draw chance, and need the records' identity",
    ]


def test_a_stream_gives_the_same_as_single_records(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415

    from penstock.masks.spark import mask_frame, spark_type  # noqa: PLC0415

    chain = Chain(read_masks(MASKS), SCHEMA, supply())
    records = [{"name": f"person {n}", "age": n} for n in range(5)]
    source = str(tmp_path / "in")
    shape = StructType([StructField(name, spark_type(it.type)) for name, it in SCHEMA.items()])
    spark.createDataFrame(records, shape).write.json(source)
    frame = spark.readStream.schema(shape).json(source)
    masked = mask_frame(frame, chain, identity=F.concat(F.lit("t/0/"), F.col("name")))
    query = (
        masked.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    rows = [row.asDict() for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    expected = []
    for record in records:
        outcome = chain.apply(record, f"t/0/{record['name']}")
        assert isinstance(outcome, dict)
        expected.append({**outcome, "rejected": None})
    assert sorted(rows, key=str) == sorted(expected, key=str)
