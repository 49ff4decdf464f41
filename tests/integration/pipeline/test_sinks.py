"""Every sink gets the records of a view, whichever way they come."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock.definitions import DefinitionSet
from penstock.eventlog import EventLog
from penstock.model.document import Document
from penstock.model.kinds import Stream
from penstock.pipeline.sinks.commits import ViewFolder
from penstock.pipeline.sinks.published import read_published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java")

FORMATS = ("parquet", "json", "avro", "delta", "console", "topic")
STREAM = Document(
    "stream",
    "visits",
    {
        "fields": [
            {"name": "ins. co.", "type": "string", "category": "identifier"},
            {"name": "day", "type": "date"},
            {"name": "at", "type": "timestamp"},
            {"name": "fee", "type": "float", "optional": True},
            {"name": "age", "type": "int"},
        ],
        "time": "at",
    },
)
WINDOWED = {
    "anonymizers": [{"anonymizer": "aggregation", "keys": ["age"], "aggregation_mode": "max"}],
    "window": {"size": "1s"},
}


def test_every_sink_gets_every_record(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.pipeline.anonymizers.blueprint import Blueprint  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.sinks.formats import Sinks  # noqa: PLC0415
    from penstock.pipeline.sources.event_log import TopicSource  # noqa: PLC0415
    from penstock.pipeline.views.stream_runner import StreamRunner  # noqa: PLC0415
    from penstock.pipeline.views.view_runner import ViewRunner  # noqa: PLC0415

    views: dict[str, dict[str, Any]] = {form: {"format": form} for form in FORMATS}
    views["avro-windows"] = {**WINDOWED, "format": "avro"}
    documents = [Document("view", it, {"stream": "visits", **views[it]}) for it in views]
    definitions = DefinitionSet.build([STREAM, *documents])
    log = EventLog(tmp_path / "log")
    visit = {"ins. co.": "TK", "day": "2024-02-29", "at": "2024-02-29T10:00:00Z", "age": 7}
    log.topic("visits").append([json.dumps(visit).encode(), b"{}", json.dumps(visit).encode()])
    source = TopicSource(log.topic("visits"))
    runner = StreamRunner(spark, definitions.of(Stream)["visits"], source, tmp_path / "c", 100)
    for name in views:
        blueprint = Blueprint.find(definitions, name)
        sinks = Sinks(log.topic(blueprint.view.topic))
        runner.add(ViewRunner(spark, blueprint, tmp_path / name, bytes(32), sinks=sinks))
    runner.catch_up()
    assert runner.failures == {}
    runner.remove("avro-windows", flush=True)
    runner.stop()

    moment = datetime(2024, 2, 29, 10, tzinfo=UTC)
    wanted = {"ins. co.": "TK", "day": date(2024, 2, 29), "at": moment, "fee": None, "age": 7}
    for name in ("parquet", "delta", "console"):
        assert _read(tmp_path / name) == [wanted] * 2
    named = {key.replace("ins. co.", "ins__co_"): value for key, value in wanted.items()}
    for name in ("avro", "avro-windows"):
        assert _read(tmp_path / name) == [named] * 2
    text = {**visit, "at": "2024-02-29T10:00:00.000Z", "fee": None}
    assert _read(tmp_path / "json") == [text] * 2
    carried = [json.loads(record.value) for record in log.topic("visits-topic").read()]
    assert carried == [text] * 2
    assert "visits-console, batch 0" in capsys.readouterr().out
    table = DeltaTable(str(tmp_path / "delta" / "data")).to_pyarrow_table()
    assert table.to_pylist() == [wanted] * 2


def _read(folder: Path) -> list[dict[str, Any]]:
    return list(read_published(ViewFolder(folder)))
