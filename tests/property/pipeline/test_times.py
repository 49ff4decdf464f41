"""The times that records and events tell: in line, on Spark and by the rule, drawn at random."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from penstock.model.kinds import Stream
from tests.support.scale import scaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java")

NOW = 1_790_000_000_000
LEAST, MOST = -(2**63), 2**63 - 1
EVENT = """
{kind: vocabulary, name: v, payload: {at: int}}
---
{kind: event, name: Told, attributes: {},
 packet: {filters: [a], set: {}, time: t.payload.at, lateness: %d, ahead: %d}}
"""
bounds = st.sampled_from([0, 1, 1000, 86_400_000, 31_622_400_000])


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int | None]]]:
    """Return bounds, and when records arrived with what they tell, often near a bound."""
    ahead, behind = draw(bounds), draw(bounds)
    near = st.sampled_from([0, ahead, -behind]).flatmap(
        lambda edge: st.integers(edge - 2, edge + 2).map(lambda it: NOW + it)
    )
    told = st.one_of(near, st.integers(LEAST, MOST), st.sampled_from([LEAST, MOST]), st.none())
    times = st.tuples(st.integers(NOW - 5, NOW + 5), told)
    return ahead, behind, draw(st.lists(times, min_size=1, max_size=60))


def judge(told: int | None, arrived: int, ahead: int, behind: int) -> int | str | None:
    """Return when it happened by the rule; None where none is told, or a word for why not."""
    if told is None:
        return None
    if told - arrived > ahead:
        return "after"
    if arrived - told > behind:
        return "before"
    return min(told, arrived)


def judge_in_line(told: int | None, arrived: int, ahead: int, behind: int) -> int | str | None:
    """Return what the engine makes of an event that tells its time."""
    documents = read_text(EVENT % (behind, ahead)).documents
    engine = Engine(compile_program(DefinitionSet.build(documents).definitions))
    packet = Packet("a", {"topic": "a", "payload": {"at": told}})
    detected = engine.prepare(packet, arrived).commit().detected
    assert engine.now == arrived
    if detected:
        ((_, row),) = detected
        return row.at
    words = {"far_ahead": "after", "late": "before", "incomplete": None}
    (reason,) = engine.counts
    return words[reason]


def judge_on_spark(
    spark: SparkSession, times: list[tuple[int, int | None]], stream: Stream
) -> list[int | str | None]:
    """Return what the parser makes of records that tell their time."""
    from penstock.pipeline.records.columns import OFFSET, PROBLEM, TIME  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.records.parser import parse_records  # noqa: PLC0415
    from penstock.pipeline.sources.event_log import SCHEMA  # noqa: PLC0415

    rows = [
        (number, arrived, json.dumps({"at": told}).encode())
        for number, (arrived, told) in enumerate(times)
    ]
    parsed = parse_records(spark.createDataFrame(rows, SCHEMA), stream).toArrow()
    found: list[dict[str, Any]] = parsed.sort_by(OFFSET).to_pylist()
    return [
        row[TIME]
        if row[PROBLEM] is None
        else next(word for word in ("after", "before") if word in row[PROBLEM])
        for row in found
    ]


@settings(max_examples=scaled(15))
@given(cases())
def test_in_line_and_spark_agree_with_the_rule(
    spark: SparkSession, case: tuple[int, int, list[tuple[int, int | None]]]
) -> None:
    ahead, behind, times = case
    body = {
        "fields": [{"name": "at", "type": "long", "optional": True}],
        "time": "at",
        "tolerance": {"ahead": ahead, "behind": behind},
    }
    stream = Stream.model_validate({"name": "s", **body})
    expected = [judge(told, arrived, ahead, behind) for arrived, told in times]
    assert [judge_in_line(told, arrived, ahead, behind) for arrived, told in times] == expected
    assert judge_on_spark(spark, times, stream) == expected


def test_without_bounds_any_time_of_the_past_counts(spark: SparkSession) -> None:
    """So do files of last year, and no number stops a batch."""
    body = {"fields": [{"name": "at", "type": "long"}], "time": "at"}
    stream = Stream.model_validate({"name": "s", **body})
    year_one = -62_135_596_800_000
    told = [0, year_one, year_one - 1, LEAST, MOST, NOW + 86_400_000, NOW + 86_400_001]
    found = judge_on_spark(spark, [(NOW, it) for it in told], stream)
    assert found == [0, year_one, "before", "before", "after", NOW, "after"]
    live = Stream.model_validate({"name": "s", **body, "from": ["a/b"]})
    week = 7 * 86_400_000
    found = judge_on_spark(spark, [(NOW, NOW - week), (NOW, NOW - week - 1)], live)
    assert found == [NOW - week, "before"]
