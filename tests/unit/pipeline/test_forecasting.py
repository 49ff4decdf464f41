"""Forecasts of a worsening, against plain Python over the same hours."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users call it

from penstock.errors import UnavailableError, UsageError
from penstock.eventlog import Topic
from penstock.model.kinds import Stream
from penstock.pipeline import forecasting
from penstock.pipeline.forecasting import (
    FEATURES,
    HORIZON,
    HOUR,
    QUIET,
    Model,
    Quality,
    read_lines,
    read_stream,
    split_people,
)
from penstock.pipeline.sources.event_log import TopicSource
from penstock.store.opt_outs import OptedOut, OptOuts, SubjectMarks
from penstock_lab.generate.nursing_home import House

pytestmark = pytest.mark.needs("java")
COLUMNS = ["patient", "hour", "temperature", "respiratory", "saturation"]
Row = tuple[str, int, float, float, float]
PLAIN = Model(dict.fromkeys(FEATURES, 0.0) | {"mean_respiratory_3": 1.0}, -17.0, 0.5)
"""Warns from 17 breaths a minute on, in the mean of three hours."""


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(House(12, 5, 4).signs())


@pytest.fixture(scope="module")
def signs(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(rows, COLUMNS).coalesce(1).cache()


def measure_plainly(rows: list[Row], warns: Callable[[list[Row]], bool]) -> Quality:
    """Go through all hours of all patients, one by one."""
    counts = dict.fromkeys(Quality.__slots__, 0)
    onsets, foreseen = set(), set()
    for patient in {row[0] for row in rows}:
        own = {row[1]: row for row in rows if row[0] == patient}
        crossed = {at for at, row in own.items() if row[3] > 25 or row[4] < 95}
        for hour in own:
            if any(at in crossed for at in range(hour - QUIET + 1, hour + 1)):
                continue
            ahead = [at for at in range(hour + 1, hour + HORIZON + 1) if at in crossed]
            if not ahead and hour + HORIZON > max(own):
                continue
            warned = warns([own[at] for at in range(hour - 2, hour + 1) if at in own])
            counts["hours"] += 1
            counts["warned"] += warned
            if ahead:
                counts["followed"] += 1
                counts["right"] += warned
                onsets.add((patient, ahead[0]))
                if warned:
                    foreseen.add((patient, ahead[0]))
    return Quality(**counts | {"onsets": len(onsets), "foreseen": len(foreseen)})


def test_quality_is_what_counting_hour_by_hour_comes_to(signs: DataFrame, rows: list[Row]) -> None:
    def warns(recent: list[Row]) -> bool:
        return sum(row[3] for row in recent) / len(recent) >= 17

    wanted = measure_plainly(rows, warns)
    assert wanted.onsets > 0
    assert 0 < wanted.warned < wanted.hours
    assert forecasting.measure(signs, forecasting.warns_by_model(PLAIN)) == wanted
    rule = measure_plainly(rows, lambda recent: recent[-1][3] >= 21 or recent[-1][4] <= 96.5)
    assert forecasting.measure(signs, forecasting.warns_by_rule()) == rule


def test_trends_are_slopes(spark: SparkSession) -> None:
    made = [("p", hour, 36.0 + hour / 10, 16.0, 98.0 - hour / 5) for hour in range(10)]
    last = forecasting.add_features(spark.createDataFrame(made, COLUMNS)).where("hour = 9").first()
    assert last is not None
    assert last["trend_temperature_6"] == pytest.approx(0.1)
    assert last["trend_saturation_3"] == pytest.approx(-0.2)
    assert last["trend_respiratory_12"] == pytest.approx(0.0)
    assert last["mean_saturation_3"] == pytest.approx(98 - 8 / 5)
    assert last["beyond_saturation_3"] == pytest.approx(97 - (98 - 8 / 5))


def test_a_forecast_is_made_for_the_last_hour_and_for_nobody_who_is_known(
    spark: SparkSession,
) -> None:
    hours = range(30)
    made = [("well", hour, 36.5, 15.0, 98.0) for hour in hours]
    made += [("rising", hour, 36.5, 15.0 + hour / 4, 98.0) for hour in hours]
    made += [("known", hour, 36.5, 26.0 if hour == 20 else 24.0, 98.0) for hour in hours]
    made += [("past", hour, 36.5, 24.0, 98.0) for hour in range(20)]
    (found,) = forecasting.forecast(spark.createDataFrame(made, COLUMNS), PLAIN)
    assert found["pid"] == "rising"
    assert found["hours"] == HORIZON
    assert 0.5 <= found["risk"] < 1


def test_training_finds_what_leads_to_a_worsening(spark: SparkSession) -> None:
    made: list[Row] = []
    for number in range(12):
        start = 26 + number % 5
        for hour in range(48):
            breaths = 15.0 + (number + hour) % 3
            if number % 2:
                breaths += max(0, min(hour - start, 14))
            made.append((f"p{number}", hour, 36.6, breaths, 98.0))
    signs = spark.createDataFrame(made, COLUMNS).coalesce(1)
    model = forecasting.train(signs)
    quality = forecasting.measure(signs, forecasting.warns_by_model(model))
    assert quality.onsets == 6
    assert quality.foresight == 1.0
    assert quality.precision > 0.7
    assert quality.recall > 0.5
    with pytest.raises(UsageError, match="only 0 hours before a worsening"):
        forecasting.train(signs.where(F.col("hour") < 20))


FIELDS: list[dict[str, Any]] = [
    {"name": "pid", "type": "string", "category": "identifier"},
    {"name": "at", "type": "long"},
    *({"name": sign, "type": "double", "optional": True} for sign in COLUMNS[2:]),
]


def make_stream(**more: Any) -> Stream:
    body = {"name": "signs", "fields": FIELDS, "subject": "pid", "time": "at", **more}
    return Stream.model_validate(body)


def test_a_stream_comes_to_the_worst_of_each_hour(spark: SparkSession, tmp_path: Path) -> None:
    draw = random.Random(2)
    records: list[dict[str, Any]] = []
    worst: dict[tuple[str, int], dict[str, float]] = {}
    for _ in range(300):
        at = draw.randrange(5 * HOUR)
        pid, sign = draw.choice(["ann", "bob"]), draw.choice(COLUMNS[2:])
        value = float(draw.randrange(10, 40))
        records.append({"pid": pid, "at": 400_000 * HOUR + at, sign: value})
        held = worst.setdefault((pid, 400_000 + at // HOUR), {})
        choose = min if sign == "saturation" else max
        held[sign] = choose(held.get(sign, value), value)
    # Without all three signs there is no hour; what is no record does not count.
    records.append({"pid": "cid", "at": 1, "temperature": 40.0, "respiratory": 15.0})
    topic = Topic(tmp_path / "log")
    topic.append([json.dumps(it).encode() for it in records] + [b"{", b'{"pid":"bob","at":"x"}'])
    found = read_stream(spark, make_stream(), TopicSource(topic)).collect()
    assert {(row["patient"], row["hour"]): row.asDict() for row in found} == {
        (pid, hour): {"patient": pid, "hour": hour, **signs}
        for (pid, hour), signs in worst.items()
        if len(signs) == 3
    }
    assert len(found) == 10


def test_who_opted_out_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    signs = {"at": 400_000 * HOUR, "temperature": 37.0, "respiratory": 15.0, "saturation": 97.0}
    topic = Topic(tmp_path / "log")
    topic.append([json.dumps({"pid": pid, **signs}).encode() for pid in ("ann", "bob")])
    chosen = OptOuts.of(1, [("ann", "research/sleep")], SubjectMarks(bytes(32)))

    def find(refusing: OptedOut) -> list[str]:
        found = read_stream(spark, make_stream(), TopicSource(topic), refusing=refusing).collect()
        return sorted(row["patient"] for row in found)

    assert find(chosen.refusing(["care"])) == ["ann", "bob"]
    assert find(chosen.refusing(["research"])) == ["bob"]
    assert find(chosen.refusing_any()) == ["bob"]


def test_streams_without_signs_or_people_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = TopicSource(Topic(tmp_path / "log"))
    with pytest.raises(UsageError, match="has no number 'saturation'"):
        read_stream(spark, make_stream(fields=FIELDS[:-1]), source)
    with pytest.raises(UsageError, match="does not say whom"):
        read_stream(spark, make_stream(subject=None), source)


def test_people_are_held_out_as_a_whole(spark: SparkSession, signs: DataFrame) -> None:
    learned, unseen = split_people(signs)
    one, other = ({row["patient"] for row in it.collect()} for it in (learned, unseen))
    assert one.isdisjoint(other)
    assert one
    assert other
    again = [("p", 1, 1.0, 1.0, 1.0), ("p", 2, 1.0, 1.0, 1.0)]
    assert sorted(it.count() for it in split_people(spark.createDataFrame(again, COLUMNS))) == [
        0,
        2,
    ]


def test_lines_with_gaps_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "signs.jsonl"
    whole = {"patient": "p", "hour": 3, "temperature": 36.0, "respiratory": 15, "saturation": 98}
    path.write_text(json.dumps(whole) + "\n" + json.dumps({**whole, "saturation": None}) + "\n")
    assert [row["hour"] for row in read_lines(spark, path).collect()] == [3]


def test_qualities_add_up() -> None:
    one, other = Quality(10, 4, 3, 2, 1, 1), Quality(30, 4, 1, 0, 3, 0)
    assert one + other == Quality(40, 8, 4, 2, 4, 1)
    assert (one + other).precision == 0.5


def test_a_model_is_kept_as_weights_and_nothing_else_is_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    PLAIN.save(path)
    assert Model.load(path) == PLAIN
    data = json.loads(path.read_text())
    for wrong in (
        "[]",
        "no JSON",
        json.dumps(data | {"version": 2}),
        json.dumps(data | {"intercept": "much"}),
        json.dumps(data | {"weights": {"mean_temperature_6": 1.0}}),
        json.dumps(data | {"threshold": float("nan")}),
    ):
        path.write_text(wrong)
        with pytest.raises(UsageError, match="is not a model of this version"):
            Model.load(path)
    with pytest.raises(UnavailableError, match="cannot be read"):
        Model.load(tmp_path / "none.json")
