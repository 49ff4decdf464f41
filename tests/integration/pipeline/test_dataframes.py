"""`penstock.spark.anonymize`: a DataFrame in, the view's DataFrame out, in batches and streams."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.definitions import DefinitionSet
from penstock.errors import InvalidError, UsageError
from penstock.model.document import Document
from penstock.store.opt_outs import OptedOut, SubjectMarks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.needs("java")

KEY = bytes(range(32))
STREAM = Document(
    "stream",
    "visits",
    {
        "fields": [
            {"name": "pid", "type": "string", "category": "identifier"},
            {"name": "age", "type": "int", "category": "quasi-identifier"},
            {"name": "zip.code", "type": "string", "category": "quasi-identifier"},
            {"name": "pulse", "type": "double"},
            {"name": "at", "type": "long"},
        ],
        "subject": "pid",
        "time": "at",
    },
)
VIEWS: dict[str, list[dict[str, Any]]] = {
    "nurse": [
        {"anonymizer": "suppression", "keys": ["pid"]},
        {"anonymizer": "blurring", "keys": ["zip.code"], "n_fields": 2},
    ],
    "noisy": [{"anonymizer": "noise", "keys": ["pulse"], "noise": 5.0}],
    "research": [
        {
            "anonymizer": "k_anonymization",
            "keys": ["pid"],
            "quasi_identifiers": [{"key": "age", "min": 0, "max": 120}],
            "k": 5,
            "delta": 100,
        },
        {"anonymizer": "suppression", "keys": ["zip.code"]},
    ],
}
K, DELTA = 5, 100
ROWS = [(f"p{number % 700}", number * 7 % 121, f"{number:05}", 60.0 + number % 9, number)
        for number in range(2_000)]  # fmt: skip
MEAN = {"anonymizer": "aggregation", "keys": ["pulse"], "aggregation_mode": "average"}
AHEAD = 2**63 - 1
COLUMNS = "pid string, age int, `zip.code` string, pulse double, at bigint"


def define(**views: list[dict[str, Any]]) -> DefinitionSet:
    made = [
        Document(
            "view",
            name,
            {
                "stream": "visits",
                "anonymizers": steps,
                # By it the test knows whose record a published one was.
                "accept_risk": ["time:at"] if name == "research" else [],
            },
        )
        for name, steps in {**VIEWS, **views}.items()
    ]
    return DefinitionSet.build([STREAM, *made])


@pytest.fixture(scope="module")
def definitions() -> DefinitionSet:
    return define()


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of a Spark user, with the state store that Spark asks for."""
    from penstock.pipeline.dataframes.view import ROCKSDB  # noqa: PLC0415 - loads Spark

    own = spark.newSession()
    own.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    own.conf.set("spark.sql.shuffle.partitions", "2")
    return own


def row(at: int, pulse: float) -> tuple[Any, ...]:
    return "p1", 30, "12345", pulse, at


def visits(session: SparkSession, rows: list[Any] = ROWS) -> DataFrame:
    return session.createDataFrame(rows, COLUMNS)


def test_row_wise_views_are_what_their_masks_make(
    session: SparkSession, definitions: DefinitionSet
) -> None:
    from penstock.pipeline.anonymizers.blueprint import Blueprint  # noqa: PLC0415 - loads Spark
    from penstock.spark import anonymize  # noqa: PLC0415

    rows = [*ROWS[:50], (None, 3, "1", 1.0, 1), ("p", None, "12345", 2.0, 2)]
    chain, _ = Blueprint.find(definitions, "nurse").chains(KEY)
    names = ["pid", "age", "zip.code", "pulse", "at"]
    expected = []
    for row in rows:
        made = chain.apply(dict(zip(names, row, strict=True)))
        if isinstance(made, dict):
            expected.append(tuple(made.values()))
    found = anonymize(visits(session, rows), view="nurse", definitions=definitions, key=KEY)
    assert found.columns == names
    assert Counter(map(tuple, found.collect())) == Counter(expected)
    assert 0 < len(expected) < len(rows)


def test_rejected_records_come_with_their_place_and_reason_and_nothing_else(
    session: SparkSession, definitions: DefinitionSet
) -> None:
    from penstock.spark import anonymize  # noqa: PLC0415

    frame = visits(session, [("p", 3, "12345", 1.0, 1), ("q", None, "12345", 1.0, 2)])
    frame = frame.selectExpr("*", "at AS place")
    found = anonymize(
        frame, view="noisy", definitions=definitions, key=KEY, position="place", rejected="why"
    )
    good, bad = sorted(found.collect(), key=lambda row: row["why"] or "")
    assert (good["place"], good["why"], good["pid"]) == (None, None, "p")
    assert bad["place"] == 2
    assert "age" in bad["why"]
    assert [bad[name] for name in ("pid", "age", "zip.code", "pulse", "at")] == [None] * 5


def check_groups(found: list[Any], rejected: int) -> None:
    """Whoever shares published values with somebody is at least one of k persons."""
    persons = {row[4]: row[0] for row in ROWS}
    groups = defaultdict(set)
    for row in found:
        assert row["pid"] == "*"
        assert row["zip.code"] == "*"
        groups[row["age"]].add(persons[row["at"]])
    assert groups
    assert min(map(len, groups.values())) >= K
    assert len(found) + rejected == len(ROWS)
    assert len({row["at"] for row in found}) == len(found)


@pytest.mark.parametrize("shards", [1, 2, 5, None])
def test_a_batch_is_k_anonymous_however_many_shards_there_are(
    session: SparkSession, definitions: DefinitionSet, shards: int | None
) -> None:
    from penstock.spark import anonymize  # noqa: PLC0415

    made = anonymize(
        visits(session).repartition(3),
        view="research",
        definitions=definitions,
        key=KEY,
        shards=shards,
        rejected="why",
    ).collect()
    found = [row for row in made if row["why"] is None]
    check_groups(found, len(made) - len(found))
    assert len(found) > len(ROWS) / 2


def stream(
    session: SparkSession, source: Path, target: Path, definitions: DefinitionSet, **more: Any
) -> None:
    """Run the view over all files that are there, and end."""
    from penstock.spark import anonymize  # noqa: PLC0415

    records = (
        session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(source))
    )
    made = anonymize(
        records, view="research", definitions=definitions, key=KEY, rejected="why", **more
    )
    query = (
        made.writeStream.format("parquet")
        .option("path", str(target))
        .option("checkpointLocation", str(target.with_name("checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_a_stream_is_k_anonymous_and_goes_on_from_its_checkpoint(
    session: SparkSession, definitions: DefinitionSet, tmp_path: Path
) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    for part in range(4):
        rows = ROWS[part * 500 : part * 500 + 500]
        visits(session, rows).coalesce(1).write.mode("append").parquet(str(source))
        if part % 2:
            stream(session, source, target, definitions, shards=2)
    made = session.read.parquet(str(target)).collect()
    found = [row for row in made if row["why"] is None]
    rejected = len(made) - len(found)
    held = len(ROWS) - len(made)
    assert 0 < held <= DELTA + 2 * K
    check_groups(found, rejected + held)


def test_what_waited_long_enough_leaves_a_stream_that_is_silent(
    session: SparkSession, tmp_path: Path
) -> None:
    from penstock.spark import anonymize  # noqa: PLC0415

    first, *rest = VIEWS["research"]
    limited = define(research=[first | {"delta": 10_000, "max_wait": "1s"}, *rest])
    source, target = tmp_path / "in", tmp_path / "out"
    visits(session, ROWS[:60]).coalesce(1).write.parquet(str(source))
    records = session.readStream.schema(COLUMNS).parquet(str(source))
    made = anonymize(
        records, view="research", definitions=limited, key=KEY, rejected="why", shards=2
    )
    query = (
        made.writeStream.format("parquet")
        .option("path", str(target))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    found: list[Any] = []
    end = time.monotonic() + 120
    try:
        while len(found) < 60:
            assert query.isActive, query.exception()
            assert time.monotonic() < end, "nothing leaves by the clock"
            time.sleep(0.2)
            if target.exists():
                found = session.read.schema(made.schema).parquet(str(target)).collect()
    finally:
        query.stop()
    published = [row for row in found if row["why"] is None]
    groups = Counter(row["age"] for row in published)
    assert len(found) == 60
    assert groups
    assert min(groups.values()) >= K


def test_state_of_other_definitions_is_refused(
    session: SparkSession, definitions: DefinitionSet, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - loads Spark

    source, target = tmp_path / "in", tmp_path / "out"
    visits(session, ROWS[:300]).coalesce(1).write.parquet(str(source))
    stream(session, source, target, definitions, shards=2)
    visits(session, ROWS[300:600]).coalesce(1).write.mode("append").parquet(str(source))
    first, *rest = VIEWS["research"]
    other = define(research=[first | {"k": 2}, *rest])
    with pytest.raises(StreamingQueryException, match="state of other definitions"):
        stream(session, source, target, other, shards=2)


def test_no_record_moves_the_windows_of_a_stream_beyond_the_present(
    session: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    window = {"stream": "visits", "anonymizers": [MEAN], "window": {"size": 10}}
    made = DefinitionSet.build([STREAM, Document("view", "research", window)])
    source, target = tmp_path / "in", tmp_path / "out"
    for rows in ([row(1, 60.0), row(AHEAD, 900.0)], [row(2, 80.0), row(11, 50.0)]):
        visits(session, rows).coalesce(1).write.mode("append").parquet(str(source))
        stream(session, source, target, made)
    found = session.read.parquet(str(target)).orderBy("at").collect()
    assert [(it["at"], it["pulse"], it["why"]) for it in found] == [
        (None, None, "the record tells a time more than 1d after its arrival"),
        *((1, 70.0, None), (2, 70.0, None)),
    ]

    # In a batch, with the word of who keeps the source.
    from penstock.spark import anonymize  # noqa: PLC0415

    live = Document("stream", "visits", {**STREAM.body, "tolerance": {"ahead": 5, "behind": 10}})
    frame = visits(session, [row(at, 60.0) for at in (89, 90, 105, 106, 107)])
    arrived = F.when(F.col("at") < 107, F.timestamp_millis(F.lit(100)))
    result = anonymize(
        frame.withColumn("arrived", arrived).withColumn("place", F.col("at")),
        view="research", definitions=made.change([live]), key=KEY,
        position="place", arrival="arrived", rejected="reason",
    )  # fmt: skip
    told = {it["place"]: it["reason"] for it in result.where("reason IS NOT NULL").collect()}
    assert told == {
        89: "the record tells a time more than 10ms before its arrival",
        106: "the record tells a time more than 5ms after its arrival",
        107: "nobody tells when the record arrived",
    }
    assert result.where("reason IS NULL").count() == 2


@pytest.mark.parametrize("view", ["nurse", "research"])
def test_people_who_opted_out_stay_out(
    session: SparkSession, definitions: DefinitionSet, view: str
) -> None:
    from penstock.spark import anonymize  # noqa: PLC0415

    marks = SubjectMarks(bytes(32))
    made = anonymize(
        visits(session),
        view=view,
        definitions=definitions,
        key=KEY,
        rejected="why",
        opted_out=OptedOut([marks.of("p3"), marks.of("p4")], marks),
    )
    told = made.where("why LIKE '%opted out%'").count()
    assert told == sum(row[0] in {"p3", "p4"} for row in ROWS)


def test_what_cannot_work_is_refused_at_once(
    session: SparkSession, spark: SparkSession, definitions: DefinitionSet
) -> None:
    from penstock.spark import anonymize  # noqa: PLC0415

    frame = visits(session)
    with pytest.raises(UsageError, match=r"no view 'nurses'"):
        anonymize(frame, view="nurses", definitions=definitions, key=KEY)
    with pytest.raises(UsageError, match=r"pass position="):
        anonymize(frame, view="noisy", definitions=definitions, key=KEY)
    with pytest.raises(UsageError, match="of type bigint"):
        anonymize(frame, view="noisy", definitions=definitions, key=KEY, position="pulse")
    with pytest.raises(UsageError, match="of type timestamp"):
        anonymize(frame, view="nurse", definitions=definitions, key=KEY, arrival="at")
    with pytest.raises(UsageError, match="field 'age' of its own"):
        anonymize(frame, view="nurse", definitions=definitions, key=KEY, rejected="age")
    with pytest.raises(UsageError, match="0 is not a number of shards"):
        anonymize(frame, view="research", definitions=definitions, key=KEY, shards=0)
    with pytest.raises(UsageError, match="11 shards are too many"):
        anonymize(frame, view="research", definitions=definitions, key=KEY, shards=11)
    with pytest.raises(InvalidError, match="cast it to int"):
        anonymize(
            frame.withColumn("age", frame["age"].cast("string")),
            view="nurse", definitions=definitions, key=KEY,
        )  # fmt: skip
    elsewhere = spark.newSession()
    elsewhere.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    with pytest.raises(UsageError, match="time zone"):
        anonymize(visits(elsewhere), view="nurse", definitions=definitions, key=KEY)


def test_python_loads_pyspark_as_it_is_installed(session: SparkSession) -> None:
    import pyarrow as pa  # type: ignore[import-untyped] # noqa: PLC0415 - only here
    import pyspark  # noqa: PLC0415 - only here

    def tell(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark  # noqa: PLC0415 - where the task runs

        for _ in batches:
            yield pa.record_batch({"path": [pyspark.__file__]})

    found = session.range(1).mapInArrow(tell, "path string").collect()
    assert {row["path"] for row in found} == {pyspark.__file__}


def test_each_shard_has_a_partition_of_its_own(session: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from penstock.pipeline.dataframes.shards import choose_keys  # noqa: PLC0415

    for partitions in (1, 2, 3, 8, 16):
        keys = choose_keys(session, partitions, partitions)
        frame = session.createDataFrame([(key,) for key in keys], "shard int")
        placed = frame.repartition(partitions, "shard").select(F.spark_partition_id()).collect()
        assert len(set(placed)) == partitions
