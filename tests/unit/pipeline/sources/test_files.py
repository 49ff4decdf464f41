"""Files as a source, as far as no Spark session is needed: surveys, blocks, places of rows."""

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

from penstock.errors import InvalidError, UnavailableError
from penstock.model.document import Document
from penstock.model.kinds import Stream
from penstock.pipeline.records.columns import OFFSET, PROBLEM, VALUE
from penstock.pipeline.sources import blocks
from penstock.pipeline.sources.event_log import Position
from penstock.pipeline.sources.files import (
    ChangedFileError,
    FilesSource,
    forget_files,
    number_of,
    read_rows,
    seen_files,
    survey_file,
)
from tests.support.scale import scaled

FIELDS = [{"name": "n", "type": "int"}, {"name": "text", "type": "string", "optional": True}]
STREAM = Stream.model_validate({"name": "s", "fields": FIELDS})
NO_TEXT = "the record is not text in UTF-8"


def _read(source: Path, form: str) -> list[Any]:
    """Return what the files hold, one after another: records, or what is wrong with them."""
    found = []
    files = FilesSource(source, form, STREAM.fields)
    for path in sorted(source.iterdir()):
        entries = survey_file(path, form).to_pylist()
        rows = [
            row for entry in entries for row in read_rows(entry, form, STREAM.fields).to_pylist()
        ]
        first = number_of(path.name)
        assert [row[OFFSET] for row in rows] == list(range(first, first + len(rows)))
        for number, row in enumerate(rows):
            place = {"offset": first + number, "file": path.name, "row": number}
            assert files.locate(row[OFFSET]) == place
            found.append(row[PROBLEM] or json.loads(row[VALUE]))
    return found


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)


@settings(max_examples=scaled(100), deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(-9, 9), CELLS.map(lambda text: f"x{text}")), max_size=30),
    files=st.integers(1, 3),
    block=st.integers(8, 80),
    form=st.sampled_from(["csv", "json", "avro", "parquet"]),
)
def test_files_read_the_same_whatever_the_blocks(
    rows: list[tuple[int, str]],
    files: int,
    block: int,
    form: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    source = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", block)
        for number in range(files):
            _write(source / f"{number}.{form}", form, rows)
        assert _read(source, form) == [{"n": number, "text": text} for number, text in rows] * files


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
    return _read(source, form)


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

    monkeypatch.setattr("penstock.pipeline.sources.files.survey", refuse)
    with pytest.raises(UnavailableError, match=r"a\.json' cannot be read: Permission denied"):
        _take(tmp_path, "json", a=b"{}")


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
    found = _read(source, form)
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
        pyarrow.parquet.write_table(table, source / f"{number}.parquet")
    assert _read(source, "parquet") == [
        {"n": 1, "text": "a"},
        {"text": "removed"},
        # As text, so that the field is named when records are parsed.
        {"n": "changed", "text": '[{"deep": 1}]'},
        NO_TEXT,
        {},
    ]


def test_files_that_were_not_given_out_yet_are_counted(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for name in ("a.json", "b c%41.jsonl", "d.ndjson"):
        (source / name).write_text('{"n": 1}\n')
    for name in (".hidden.json", "_temporary.json", "b.csv", "b.json.partial"):
        (source / name).write_text('{"n": -1}\n')
    (source / "folder.json").mkdir()
    files = FilesSource(source, "json", STREAM.fields)
    assert files.count_behind(Position(tmp_path / "c", "")) == 3
    noted = tmp_path / "c" / "sources" / "0"
    noted.mkdir(parents=True)
    # As Spark writes it: paths as URLs.
    for number, name in enumerate(("a.json", "b%20c%2541.jsonl")):
        entry = {"path": f"file://{source}/{name}", "timestamp": 1, "batchId": number}
        (noted / str(number)).write_text(f"v1\n{json.dumps(entry)}")
    assert files.count_behind(Position(tmp_path / "c", '{"logOffset": 1}')) == 1


def _note(checkpoint: Path, number: int | str, *files: Path, batch: int | None = None) -> None:
    """Note files in a checkpoint, as Spark does."""
    noted = checkpoint / "sources" / "0"
    noted.mkdir(parents=True, exist_ok=True)
    entries = [
        {
            "path": path.as_uri(),
            "timestamp": path.stat().st_mtime_ns // 1_000_000,
            "batchId": number if batch is None else batch,
        }
        for path in files
    ]
    (noted / str(number)).write_text("\n".join(["v1", *map(json.dumps, entries)]))
    (noted / f".{number}.crc").touch()


def test_files_may_not_change_and_stay_until_they_were_read(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b c%41.json"
    for path in (first, second):
        path.write_text('{"n": 1}\n')
    checkpoint = tmp_path / "checkpoint"
    for number, path in enumerate((first, second)):
        _note(checkpoint, number, path)
    source = FilesSource(tmp_path, "json", STREAM.fields)
    nothing, half, all_of_it = (
        Position(checkpoint, it) for it in ("", '{"logOffset":0}', '{"logOffset":1}')
    )
    for position in (nothing, half, all_of_it):
        source.check(position)
    first.unlink()
    source.check(half)
    with pytest.raises(ChangedFileError, match=r"a\.json' is gone before it was read"):
        source.check(nothing)
    with second.open("a") as file:
        file.write('{"n": 2}\n')
    os.utime(second, ns=(0, second.stat().st_mtime_ns + 5_000_000))
    for position in (half, all_of_it):
        with pytest.raises(ChangedFileError, match=r"b c%41\.json' was changed after it was found"):
            source.check(position)


def test_a_file_that_grows_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"n": 1}\n')
    (entry,) = survey_file(path, "json").to_pylist()
    with path.open("a") as file:
        file.write('{"n": 2}\n')
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 5_000_000))
    with pytest.raises(ChangedFileError, match="was changed after it was found"):
        read_rows(entry, "json", STREAM.fields)


def test_files_of_a_batch_that_did_not_come_about_are_found_anew(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.json" for name in "abc"]
    for path in files:
        path.touch()
    checkpoint = tmp_path / "checkpoint"
    _note(checkpoint, "9.compact", *files[:2], batch=9)
    _note(checkpoint, 10, files[2])
    forget_files(checkpoint, '{"logOffset":9}')
    assert {it.path for it in seen_files(checkpoint)} == set(files[:2])
    assert not (checkpoint / "sources" / "0" / ".10.crc").exists()
    assert (checkpoint / "sources" / "0" / ".9.compact.crc").exists()
    forget_files(checkpoint, "")
    assert seen_files(checkpoint) == []


def test_another_checkpoint_goes_on_behind_the_files_that_were_read(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.json" for name in "abc"]
    before, made = tmp_path / "before", tmp_path / "made"
    for number, path in enumerate(files):
        path.touch()
        _note(before, number, path)
    source = FilesSource(tmp_path, "json", STREAM.fields)
    assert source.hand_over(Position(before, '{"logOffset":1}'), made) == '{"logOffset": 1}'
    assert {(it.path, it.number) for it in seen_files(made)} == {(it, 0) for it in files[:2]}


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no' cannot be read"):
        FilesSource(tmp_path / "no", "csv", STREAM.fields).identify()


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
