"""Files as a source, as far as no Spark session is needed: blocks, the index, the readers."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config import defaults
from penstock.errors import InvalidError, UnavailableError
from penstock.model.document import Document
from penstock.model.kinds import Stream
from penstock.pipeline.records.columns import OFFSET, PROBLEM, VALUE
from penstock.pipeline.sources import blocks
from penstock.pipeline.sources.files import FileReader, FileStreamReader
from penstock.pipeline.sources.index import ChangedFileError, FileIndex
from penstock.pipeline.sources.offsets import index_folder, next_offset_of
from tests.support.scale import scaled

FIELDS = [{"name": "n", "type": "int"}, {"name": "text", "type": "string", "optional": True}]
STREAM = Stream.model_validate({"name": "s", "fields": FIELDS})
NO_TEXT = "the record is not text in UTF-8"


def _options(index: Path, source: Path, form: str, **more: int) -> dict[str, str]:
    fields = json.dumps([field.model_dump(mode="json") for field in STREAM.fields])
    options = {"index": str(index), "source": str(source), "form": form, "fields": fields}
    return options | {name: str(value) for name, value in more.items()}


def _read(index: Path, source: Path, form: str, start: int, end: int) -> list[Any]:
    """Return what a stretch holds: a record, or what is wrong with it."""
    reader = FileReader(_options(index, source, form, start=start, end=end))
    rows = [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    assert [row[OFFSET] for row in rows] == list(range(start, start + len(rows)))
    return [row[PROBLEM] or json.loads(row[VALUE]) for row in rows]


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)


@settings(max_examples=scaled(100), deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(-9, 9), CELLS.map(lambda text: f"x{text}")), max_size=30),
    files=st.integers(1, 3),
    block=st.integers(8, 80),
    form=st.sampled_from(["csv", "json", "avro", "parquet"]),
    data=st.data(),
)
def test_any_stretch_reads_the_same_whatever_the_blocks(
    rows: list[tuple[int, str]],
    files: int,
    block: int,
    form: str,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("files")
    (root / "in").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", block)
        index = FileIndex(root / "index", root / "in", form)
        for number in range(files):
            _write(root / "in" / f"{number}.{form}", form, rows)
            assert index.take_in() == len(rows) * (number + 1)
        wanted = [{"n": number, "text": text} for number, text in rows] * files
        start = data.draw(st.integers(0, len(wanted)))
        end = data.draw(st.integers(start, len(wanted) + 1))
        assert _read(root / "index", root / "in", form, start, end) == wanted[start:end]


def _write(path: Path, form: str, rows: list[tuple[int, str]]) -> None:
    records = [{"n": number, "text": text} for number, text in rows]
    match form:
        case "csv":
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([("n", "text"), *rows])
        case "json":
            path.write_text("".join(json.dumps(record) + "\n\n" for record in records))
        case "parquet":
            schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
            table = pa.Table.from_pylist(records, schema)
            pyarrow.parquet.write_table(table, path, row_group_size=4)
        case _:
            fields = [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}]
            avro = {"type": "record", "name": "R", "fields": fields}
            with path.open("wb") as file:
                fastavro.writer(file, fastavro.parse_schema(avro), records, sync_interval=20)


def _take(tmp_path: Path, form: str, **contents: bytes) -> list[Any]:
    source = tmp_path / "in"
    source.mkdir(exist_ok=True)
    for name, content in contents.items():
        (source / f"{name}.{form}").write_bytes(content)
    end = FileIndex(tmp_path / "index", source, form).take_in()
    return _read(tmp_path / "index", source, form, 0, end)


def test_what_is_wrong_with_lines_of_csv(tmp_path: Path) -> None:
    content = (
        b'\xef\xbb\xbfother,n,text\n1,2\nx,1,"a ""b""\nc"\nx,2,\xff\nx,y,5" pipe\nx,,\n1,2,3,4\n'
    )
    assert _take(tmp_path, "csv", a=content) == [
        {"n": 1, "text": 'a "b"\nc'},
        NO_TEXT,
        {"n": "y", "text": '5" pipe'},
        {"n": None, "text": None},
        blocks.CELLS,
        blocks.CELLS,
    ]


def test_quotes_that_do_not_pair_up_lose_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 16)
    monkeypatch.setattr(blocks, "LONGEST", 64)
    rows = [f'{number},{number}" pipe' for number in range(0, 99, 3)]
    found = _take(tmp_path, "csv", a="\n".join(["n,text", *rows]).encode())
    assert found == [{"n": int(row.split(",")[0]), "text": row.split(",")[1]} for row in rows]


def test_what_is_wrong_with_lines_of_json(tmp_path: Path) -> None:
    long = b'{"n": "' + b"1" * (1 << 20) + b'"}'
    found = _take(tmp_path, "json", a=b'\xef\xbb\xbf{"n": 1}\n' + long + b'\n\n {"n": 2}')
    assert found == [{"n": 1}, blocks.TOO_LONG, {"n": 2}]


def test_a_first_line_without_names_is_told(tmp_path: Path) -> None:
    assert _take(tmp_path, "csv", a=b"\n1,2\n", b=b"", c=b"n,text\n") == [blocks.NO_NAMES]


def test_rows_that_are_too_long_are_told(tmp_path: Path) -> None:
    content = b"n,text\n1," + b"x" * (1 << 20) + b"\n2,y\n"
    assert _take(tmp_path, "csv", a=content) == [blocks.TOO_LONG, {"n": 2, "text": "y"}]


@pytest.mark.parametrize("form", ["avro", "parquet"])
def test_what_files_say_of_their_size_is_limited(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "MOST_ROWS", 1)
    (tmp_path / "in").mkdir()
    _write(tmp_path / "in" / f"a.{form}", form, [(1, "x"), (2, "y")])
    (found,) = _take(tmp_path, form)
    assert "was not read" in found


def test_a_file_that_cannot_be_opened_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("penstock.pipeline.sources.index.survey", refuse)
    with pytest.raises(UnavailableError, match=r"a\.json' cannot be read: Permission denied"):
        _take(tmp_path, "json", a=b"{}")


def test_a_file_that_grows_meanwhile_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def survey(path: Path, form: str) -> blocks.Survey:
        found = blocks.survey(path, form)
        with path.open("ab") as file:
            file.write(b'{"n": 2}\n')
        return found

    with monkeypatch.context() as patch:
        patch.setattr("penstock.pipeline.sources.index.survey", survey)
        assert _take(tmp_path, "json", a=b'{"n": 1}\n') == []
    assert _take(tmp_path, "json") == [{"n": 1}, {"n": 2}]


def test_lines_without_end_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 16)
    monkeypatch.setattr(blocks, "LONGEST", 64)
    assert _take(tmp_path, "json", a=b'{"n": 1}\n' + b"x" * 1000) == [{"n": 1}, blocks.NO_END]


@pytest.mark.parametrize("form", ["parquet", "avro"])
def test_damaged_files_are_told_and_the_rest_is_read(form: str, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    rows = [(number, "text" * 20) for number in range(8)]
    _write(source / f"a.{form}", form, rows)
    whole = (source / f"a.{form}").read_bytes()
    (source / f"b.{form}").write_bytes(b"rubbish")
    # Damage in the middle: the ends, which say what there is, are whole.
    middle = 40 if form == "parquet" else len(whole) - 60
    (source / f"c.{form}").write_bytes(whole[:middle] + b"\xff" * 8 + whole[middle + 8 :])
    for number, name in enumerate("abc"):
        os.utime(source / f"{name}.{form}", (number, number))
    end = FileIndex(tmp_path / "index", source, form).take_in()
    found = _read(tmp_path / "index", source, form, 0, end)
    assert found[:8] == [{"n": number, "text": text} for number, text in rows]
    assert "no well-formed" in found[8]
    rest = found[9:]
    assert len(rest) in {8, 9}
    told = [item for item in rest if isinstance(item, str)]
    assert told
    assert all("text" not in item for item in told)


def test_a_schema_that_changes_between_files(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    tables = [
        pa.table({"n": [1], "text": ["a"], "added": [1]}),
        pa.table({"text": ["removed"]}),
        pa.table({"n": ["changed"], "text": [[{"deep": 1}]]}),
        pa.table({"n": [float("nan")], "text": [b"\xff"]}),
        pa.table({"other": [1]}),
    ]
    for number, table in enumerate(tables):
        path = source / f"{number}.parquet"
        pyarrow.parquet.write_table(table, path)
        os.utime(path, (number, number))
    FileIndex(tmp_path / "index", source, "parquet").take_in()
    assert _read(tmp_path / "index", source, "parquet", 0, 5) == [
        {"n": 1, "text": "a"},
        {"text": "removed"},
        # As text, so that the field is named when records are parsed.
        {"n": "changed", "text": '[{"deep": 1}]'},
        NO_TEXT,
        {},
    ]


def test_files_keep_their_offsets_and_may_not_change(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "z.json").write_text('{"n": 1}\n')
    index = FileIndex(tmp_path / "index", source, "json")
    assert index.take_in() == 1
    # An older file that appears later comes after what was taken in.
    (source / "a.jsonl").write_text('{"n": 2}\n{"n": 3}\n')
    os.utime(source / "a.jsonl", (1, 1))
    for name in (".hidden.json", "_temporary.json", "b.csv", "b.json.partial"):
        (source / name).write_text('{"n": -1}\n')
    (source / "empty.json").touch()
    other = FileIndex(tmp_path / "index", source, "json")
    assert other.take_in() == 3
    assert index.next_offset == 3
    assert _read(tmp_path / "index", source, "json", 0, 9) == [{"n": 1}, {"n": 2}, {"n": 3}]
    index.check()
    index.check_stretch(0, 3)

    (source / "z.json").unlink()
    index.check()
    index.check_stretch(1, 3)
    with pytest.raises(ChangedFileError, match=r"z\.json' is gone, which held the records 0 to 0"):
        index.check_stretch(0, 3)
    with (source / "a.jsonl").open("a") as file:
        file.write('{"n": 4}\n')
    for check in (index.check, lambda: index.check_stretch(1, 2)):
        with pytest.raises(ChangedFileError, match="was changed after"):
            check()
    with pytest.raises(ChangedFileError):
        _read(tmp_path / "index", source, "json", 1, 3)


def test_a_torn_line_of_the_index_is_no_entry(tmp_path: Path) -> None:
    assert _take(tmp_path, "json", a=b'{"n": 1}\n') == [{"n": 1}]
    with (tmp_path / "index" / "files.jsonl").open("ab") as file:
        file.write(b'{"first":1,"rows":')
    assert _take(tmp_path, "json", b=b'{"n": 2}\n') == [{"n": 1}, {"n": 2}]


def test_batches_are_bounded_and_files_taken_in_as_needed(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(4):
        (source / f"{number}.json").write_text(f'{{"n": {number}}}\n' * 3)
    reader = FileStreamReader(_options(tmp_path / "index", source, "json", start=1, rows=2))
    assert reader.initialOffset() == {"offset": 1}
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset({"offset": 1}, limit)
    assert end == {"offset": 3}
    # One file is enough for that.
    assert FileIndex(tmp_path / "index", source, "json").next_offset == 3
    assert reader.latestOffset(end, limit) == {"offset": 5}
    parts = reader.partitions({"offset": 1}, {"offset": 5})
    values = [
        value for part in parts for it in reader.read(part) for value in it[VALUE].to_pylist()
    ]
    assert values == [b'{"n": 0}'] * 2 + [b'{"n": 1}'] * 2


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot be read: No such file"):
        FileIndex(tmp_path / "index", tmp_path / "no", "csv").take_in()


def test_how_far_a_stream_reaches_can_be_asked_without_spark(tmp_path: Path) -> None:
    config = defaults(tmp_path, {}).pipeline
    assert next_offset_of(STREAM, config) == 0
    (tmp_path / "in").mkdir()
    source = {"files": {"folder": str(tmp_path / "in"), "format": "json"}}
    stream = Stream.model_validate({"name": "s", "fields": FIELDS, "source": source})
    assert next_offset_of(stream, config) == 0
    assert stream.source is not None
    folder = index_folder("s", stream.source, config)
    (tmp_path / "in" / "a.json").write_text("{}\n{}\n")
    FileIndex(folder, tmp_path / "in", "json").take_in()
    assert next_offset_of(stream, config) == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"source": {"files": {"folder": "in", "format": "csv"}}}, "write the whole path"),
        ({"source": {"files": {"folder": "/a/../b", "format": "csv"}}}, "write the whole path"),
        ({"source": {"files": {"folder": "/a", "format": "xml"}}}, "'csv', 'json', 'parquet'"),
        (
            {"format": "avro", "source": {"files": {"folder": "/a", "format": "csv"}}},
            "rows of csv files are not written as avro",
        ),
        ({"format": "xml"}, "'json', 'avro' or 'connect'"),
    ],
)
def test_sources_are_checked_before_anything_runs(more: dict[str, Any], message: str) -> None:
    from penstock.definitions import DefinitionSet  # noqa: PLC0415

    with pytest.raises(InvalidError, match=message):
        DefinitionSet.build([Document("stream", "s", {"fields": FIELDS, **more})])
