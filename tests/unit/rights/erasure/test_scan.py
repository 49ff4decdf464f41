"""The scan finds a name as a word, whatever file it stands in."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.rights.erasure.scan import LISTED, scan


def test_a_name_is_found_as_a_word_and_told_by_file(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b'{"pid":"ann"} anna joann ann_2 "ann" ann')
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.json").write_text('{"x":"\\u00e5se"}')
    (tmp_path / "empty").touch()
    pyarrow.parquet.write_table(
        pa.table({"pid": ["ann", "bob", None]}), tmp_path / "d.parquet", compression="zstd"
    )
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 ann")
    found = scan([tmp_path, tmp_path / "b"], "ann", lambda: None)
    assert found.places == {"a.log": 3, "d.parquet": 1, "torn.parquet": 1}
    assert (found.files, found.found) == (5, 5)
    assert scan([tmp_path], "åse", lambda: None).places == {"b/c.json": 1}
    assert scan([tmp_path], ".*", lambda: None).found == 0


def test_the_list_is_bounded(tmp_path: Path) -> None:
    for number in range(LISTED + 5):
        (tmp_path / str(number)).write_text("ann")
    found = scan([tmp_path], "ann", lambda: None)
    assert len(found.places) == LISTED
    assert found.found == LISTED + 5
