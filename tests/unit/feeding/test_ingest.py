from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest

from penstock.definitions.views import schema_of
from penstock.errors import UsageError
from penstock.eventlog import Topic
from penstock.feeding.dialects import Dialect
from penstock.feeding.ingest import CsvOptions, FedFiles, feed
from penstock.masks.fields import avro_schema
from penstock.model.kinds import Stream

STREAM = Stream.model_validate(
    {
        "name": "patients",
        "fields": [
            {"name": "pid", "type": "int"},
            {"name": "ins. co.", "type": "string"},
            {"name": "hba1c", "type": "double", "optional": True},
            {"name": "well", "type": "boolean", "optional": True},
        ],
    }
)


def _records(topic: Topic) -> list[Any]:
    return [json.loads(record.value) for record in topic.read()]


def test_csv_becomes_json_of_the_streams_types(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text(
        'hba1c,pid,ins. co.,well,unknown\n7.5,1,"say ""TK""\\",true,x\n'
        ',007,"two\nlines",,x\nhigh,2,,maybe,x\n5e1,-3,\x01,false,x\n'
    )
    topic = Topic(tmp_path / "log")
    assert feed(path, STREAM, topic) == (4, Dialect())
    assert _records(topic) == [
        {"pid": 1, "ins. co.": 'say "TK"\\', "hba1c": 7.5, "well": True},
        # 007 is not JSON number: the record will be a dead letter, not another number.
        {"pid": "007", "ins. co.": "two\nlines", "hba1c": None, "well": None},
        {"pid": 2, "ins. co.": "", "hba1c": "high", "well": "maybe"},
        {"pid": -3, "ins. co.": "\x01", "hba1c": 50.0, "well": False},
    ]


def test_json_lines_parquet_and_avro_hold_the_same(tmp_path: Path) -> None:
    wanted = [
        {"pid": 1, "ins. co.": "TK", "hba1c": 7.5, "well": True},
        {"pid": 2, "ins. co.": "", "hba1c": None, "well": None},
    ]
    lines = tmp_path / "p.jsonl"
    lines.write_text("\n\n".join(json.dumps(row, indent=None) for row in wanted) + "\n")
    table = tmp_path / "p.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist(wanted), table)
    records = tmp_path / "p.avro"
    schema = fastavro.parse_schema(avro_schema(schema_of(STREAM)))
    with records.open("wb") as file:
        fastavro.writer(file, schema, [{**row, "ins__co_": row["ins. co."]} for row in wanted])
    for number, path in enumerate((lines, table, records)):
        topic = Topic(tmp_path / str(number))
        assert feed(path, STREAM, topic)[0] == 2
        assert _records(topic) == wanted


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", "pid,hba1c\n1,2\n", "has no column 'ins. co.'"),
        ("p.csv", "pid,ins. co.\n1\n", "1 of its lines are no records"),
        ("p.csv", "", "has no column 'pid'"),
        ("p.parquet", "rubbish", "no well-formed Parquet file"),
        ("p.avro", "rubbish", "no well-formed Avro file"),
        ("p.json", "{}\n" + "x" * (1 << 20) + "x", "1 of its lines"),
        ("p.csv", "pid,pid\n1,2\n", "stands twice"),
        ("p.xls", "", "unsupported file type .xls"),
    ],
)
def test_files_that_cannot_be_fed_are_told(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        feed(path, STREAM, Topic(tmp_path / "log"))
    assert Topic(tmp_path / "log").next_offset == 0


def test_a_file_in_another_encoding_is_told_with_the_fix(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes("pid,ins. co.\n1,Müller\n".encode("latin-1"))
    with pytest.raises(UsageError, match="is not written in utf-8") as caught:
        feed(path, STREAM, Topic(tmp_path / "log"), CsvOptions("utf-8"))
    assert "--encoding" in (caught.value.fix or "")
    assert "ller" not in str(caught.value), "no content is told"
    assert Topic(tmp_path / "log").next_offset == 0


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        feed(tmp_path / "no.csv", STREAM, Topic(tmp_path / "log"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"format": "avro"}, "are avro, and rows of files are fed as JSON"),
        ({"source": {"files": {"folder": "/in", "format": "csv"}}}, "reads files by itself"),
    ],
)
def test_streams_that_would_not_read_it_are_not_fed(
    more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "p.json"
    path.write_text("{}")
    body = {"name": "s", "fields": [{"name": "n", "type": "int"}], **more}
    with pytest.raises(UsageError, match=message):
        feed(path, Stream.model_validate(body), Topic(tmp_path / "log"))


ROWS = [{"pid": 1, "ins. co.": "Müller", "hba1c": 7.5, "well": True}]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_csv_is_read_as_it_is_written(tmp_path: Path, encoding: str, delimiter: str) -> None:
    lines = [["pid", "ins. co.", "hba1c", "well"], ["1", "Müller", "7.5", "true"]]
    text = "".join(delimiter.join(cells) + "\r\n" for cells in lines)
    path = tmp_path / "p.CSV"
    path.write_bytes(text.encode(encoding))
    fed, dialect = feed(path, STREAM, topic := Topic(tmp_path / "log"))
    assert (fed, dialect) == (1, Dialect(encoding, delimiter))
    assert _records(topic) == ROWS


def test_a_file_without_header_is_fed_when_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("1;Müller;7.5;true\n")
    topic = Topic(tmp_path / "log")
    with pytest.raises(UsageError, match="names no field of the stream") as refused:
        feed(path, STREAM, topic)
    assert "--no-header" in (refused.value.fix or "")
    assert feed(path, STREAM, topic, CsvOptions(header=False))[0] == 1
    assert _records(topic) == ROWS
    with pytest.raises(UsageError, match="is not written in ascii"):
        path.write_bytes(b"\xfc;\n") and feed(path, STREAM, topic, CsvOptions("ascii"))
    with pytest.raises(UsageError, match="'martian' is not an encoding"):
        feed(path, STREAM, topic, CsvOptions("martian"))


def test_objects_without_a_required_field_are_refused_and_not_fed(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"pid": 1, "ins": {" co.": "TK"}, "hba1c": 1}\n' * 3)
    topic = Topic(tmp_path / "log")
    with pytest.raises(
        UsageError, match=r"no record of 'p\.jsonl' has the field 'ins\. co\.'"
    ) as told:
        feed(path, STREAM, topic)
    assert "nested in an object" in str(told.value)
    path.write_text('{"pid": 1}\n')
    with pytest.raises(UsageError, match="which the stream requires") as told:
        feed(path, STREAM, topic)
    assert told.value.fix == "fields there are pid"
    assert topic.next_offset == 0


def test_a_file_that_was_fed_is_known_by_what_it_holds(tmp_path: Path) -> None:
    path, copy = tmp_path / "p.csv", tmp_path / "copy.csv"
    path.write_text("pid\n1\n")
    copy.write_bytes(path.read_bytes())
    fed = FedFiles(tmp_path, "patients")
    fed.note(path, fed.refuse(path), 1)
    for again in (path, copy):
        with pytest.raises(UsageError, match="already, with 1 record"):
            FedFiles(tmp_path, "patients").refuse(again)
    path.write_text("pid\n2\n")
    assert FedFiles(tmp_path, "patients").refuse(path)
    assert FedFiles(tmp_path, "others").refuse(copy)


def test_a_path_into_an_object_is_refused_when_the_stream_is_declared() -> None:
    body = {"name": "visits", "fields": [{"name": "address.zip", "type": "string"}]}
    assert Stream.model_validate(body).fields[0].name == "address.zip"  # as a column of CSV
    for source in (
        {"from": ["visits/#"]},
        {"source": {"files": {"folder": "/x", "format": "json"}}},
    ):
        with pytest.raises(ValueError, match=r"'address\.zip' looks like a path into an object"):
            Stream.model_validate({**body, **source})
