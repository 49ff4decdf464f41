from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest

from penstock.errors import UnavailableError
from penstock_lab.generate.hospital import SCHEMA, generate
from penstock_lab.generate.writers import to_json_lines, write


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_every_format_holds_the_same_records(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"patients.{form}"
    assert write(generate(50, 3), SCHEMA, form, str(path)) == 50
    wanted = pa.Table.from_batches(generate(50, 3)).to_pylist()
    if form == "parquet":
        assert pyarrow.parquet.read_table(path).to_pylist() == wanted
    elif form == "json":
        assert [json.loads(line) for line in path.read_text().splitlines()] == wanted
    else:
        rows = list(csv.DictReader(io.StringIO(path.read_text())))
        assert rows == [{key: str(value) for key, value in row.items()} for row in wanted]
    assert list(tmp_path.iterdir()) == [path]


def test_json_escapes_and_writes_null() -> None:
    batch = pa.record_batch(
        {'a"b': pa.array(['say "x"\\', None]), "n": pa.array([1, None], pa.int64())}
    )
    lines = [json.loads(line) for line in to_json_lines(batch).to_pylist()]
    assert lines == [{'a"b': 'say "x"\\', "n": 1}, {'a"b': None, "n": None}]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot be written"):
        write(generate(1), SCHEMA, "csv", str(tmp_path / "no" / "file.csv"))


def test_the_command_writes_to_standard_output(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    from penstock_lab.cli.generate import command  # noqa: PLC0415 - the verb, before it is listed

    command.main(["hospital", "--rows", "2", "--format", "json"], standalone_mode=False)
    lines = capsysbinary.readouterr().out.splitlines()
    assert [json.loads(line)["pid"] for line in lines] == [1, 2]
