"""Delivery of what counts, as far as no Spark session is needed."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from rich.console import Console

from penstock.errors import UnavailableError, UsageError
from penstock.eventlog import Topic
from penstock.pipeline.sinks.commits import Commit, ViewWriter
from penstock.pipeline.sinks.files import SHOWN, ConsoleSink, Sink
from penstock.pipeline.sinks.formats import DeltaSink, Sinks, TopicSink
from penstock.pipeline.sinks.published import read_published


class _Crash(Exception):  # noqa: N818 - it stands for a kill, not for an error
    pass


def _stage(writer: ViewWriter, name: str, content: bytes | pa.Table) -> None:
    folder = writer.stage() / "data"
    folder.mkdir()
    if isinstance(content, bytes):
        (folder / name).write_bytes(content)
    else:
        pyarrow.parquet.write_table(content, folder / name)


def _publish(writer: ViewWriter, sink: Sink, name: str, content: bytes | pa.Table) -> None:
    _stage(writer, name, content)
    writer.commit(Commit(writer.sequence, "p", begin=sink.begin()))


def _numbers(topic: Topic) -> list[int]:
    return [json.loads(record.value)["n"] for record in topic.read()]


@pytest.mark.parametrize("arrived", [0, 1, 2, 3])
def test_a_topic_gets_each_record_once_whenever_the_process_dies(
    arrived: int, tmp_path: Path
) -> None:
    topic = Topic(tmp_path / "log" / "patients-nurse")
    sink = TopicSink(topic)
    writer = ViewWriter(tmp_path / "view", sink.deliver)
    writer.open()
    _publish(writer, sink, "part-0.json", b'{"n":1}\n{"n":2}\n')
    writer.close()
    assert _numbers(topic) == [1, 2]
    assert list(writer.data.iterdir()) == []

    def die_at_once(commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        if again:
            return
        # Somebody else's record is not taken for one of the view's.
        topic.append([b'{"n":-1}'], [b"0"])
        topic.append(files[0].read_bytes().splitlines()[:arrived], [b"1"] * arrived)
        raise _Crash

    broken = ViewWriter(tmp_path / "view", die_at_once)
    broken.open()
    with pytest.raises(_Crash):
        _publish(broken, sink, "part-0.json", b'{"n":3}\n{"n":4}\n{"n":5}\n')
    broken.close()
    for _ in range(2):
        writer.open()
        assert _numbers(topic) == [1, 2, -1, 3, 4, 5]
        assert list(writer.data.iterdir()) == []
        writer.close()


def test_a_delta_table_has_each_batch_once(tmp_path: Path) -> None:
    sink = DeltaSink()
    writer = ViewWriter(tmp_path, sink.deliver)
    writer.open()
    for number in range(3):
        table = pa.table({"n": [number, None], "name": ["*", "*"]})
        _publish(writer, sink, "part-0.parquet", table)
    assert writer.newest is not None
    files = [writer.data / name for name in writer.newest.files]
    sink.deliver(writer.newest, files, again=True)
    writer.close()
    found = DeltaTable(str(tmp_path / "data"))
    assert sorted(found.to_pyarrow_table()["n"].drop_null().to_pylist()) == [0, 1, 2]
    assert found.version() == 2
    writer = ViewWriter(tmp_path, sink.deliver)
    writer.open()
    with pytest.raises(UsageError, match="differ from the view's"):
        _publish(writer, sink, "part-0.parquet", pa.table({"other": [1]}))
    writer.close()


def test_without_the_package_for_delta_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match="pip install deltalake"):
        DeltaSink()


def test_the_console_shows_each_batch_once(tmp_path: Path) -> None:
    shown = io.StringIO()
    sink = ConsoleSink("patients-nurse", Console(file=shown, width=80))
    writer = ViewWriter(tmp_path, sink.deliver)
    writer.open()
    table = pa.table({"age [years]": list(range(SHOWN + 1)), "name": ["[red]*"] * (SHOWN + 1)})
    _publish(writer, sink, "part-0.parquet", table)
    writer.close()
    writer.open()
    text = shown.getvalue()
    assert text.count("patients-nurse, batch 0, the first of them") == 1
    assert "age [years]" in text
    assert text.count("[red]*") == SHOWN
    assert len(list(read_published(writer))) == SHOWN + 1


def test_every_format_of_the_model_has_a_sink(tmp_path: Path) -> None:
    from penstock.model.kinds import View  # noqa: PLC0415

    sinks = Sinks(Topic(tmp_path / "t"))
    for form in View.model_json_schema()["properties"]["format"]["enum"]:
        assert sinks.find(form) is not None
    with pytest.raises(UsageError, match="is not a format"):
        sinks.find("xml")
