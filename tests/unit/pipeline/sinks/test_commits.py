from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import UnavailableError
from penstock.pipeline.sinks.commits import Commit, Totals, ViewFolder, ViewWriter


def _publish(writer: ViewWriter, text: str) -> Commit:
    staged = writer.stage()
    (staged / "data").mkdir()
    (staged / "data" / "part-0.json").write_text(text)
    (staged / "data" / "_SUCCESS").touch()
    commit = Commit(writer.sequence, "plan", totals=Totals(read=1))
    return writer.commit(commit, [{"offset": writer.sequence}])


def _published(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted((folder / "data").iterdir())]


def test_what_is_committed_counts_and_comes_back(tmp_path: Path) -> None:
    writer = ViewWriter(tmp_path)
    assert writer.open() is None
    _publish(writer, "a")
    last = _publish(writer, "b")
    writer.close()
    again = ViewWriter(tmp_path)
    assert again.open() == last
    assert again.sequence == 2
    assert _published(tmp_path) == ["a", "b"]
    assert [letter["offset"] for letter in ViewFolder(tmp_path).dead_letters()] == [0, 1]
    assert [commit.sequence for commit in ViewFolder(tmp_path).commits()] == [0, 1]


def test_a_commit_of_an_earlier_version_has_a_batch_that_no_checkpoint_knows(
    tmp_path: Path,
) -> None:
    writer = ViewWriter(tmp_path)
    writer.open()
    _publish(writer, "a")
    writer.close()
    path = tmp_path / "commits.jsonl"
    line = json.loads(path.read_text())
    del line["batch"], line["shards"]
    path.write_text(json.dumps(line | {"next": 7}) + "\n")
    last = ViewFolder(tmp_path).last()
    assert last is not None
    assert (last.batch.checkpoint, last.batch.number, last.totals.read) == ("", 0, 1)


def test_what_is_not_for_readers_only_the_owner_can_read(tmp_path: Path) -> None:
    writer = ViewWriter(tmp_path / "view")
    writer.open()
    _publish(writer, "a")
    writer.close()
    hidden = [
        tmp_path / "view" / "commits.jsonl",
        *(tmp_path / "view" / "dead").iterdir(),
    ]
    assert len(hidden) == 2
    assert [path.stat().st_mode & 0o777 for path in hidden] == [0o600] * 2


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    writer = ViewWriter(tmp_path)
    writer.open()
    with pytest.raises(UnavailableError, match="another process"):
        ViewWriter(tmp_path).open()
    writer.close()
    ViewWriter(tmp_path).open()


class _Crash(Exception):  # noqa: N818 - it stands for a kill, not for an error
    pass


STEPS = ["stage", "sync", "line", "place", "rename"]


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_all_or_nothing(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop the second commit at each of its steps, as a kill would, and open again."""
    writer = ViewWriter(tmp_path)
    writer.open()
    _publish(writer, "a")

    def crash(*_: object, **__: object) -> None:
        raise _Crash

    with monkeypatch.context() as patch:
        if step == "stage":
            patch.setattr(ViewWriter, "commit", crash)
        elif step == "sync":
            patch.setattr("penstock.pipeline.sinks.commits.sync", crash)
        elif step == "rename":
            patch.setattr(Path, "rename", crash)
        elif step == "line":
            patch.setattr(Commit, "to_line", crash)
        else:
            patch.setattr(ViewWriter, "_place", crash)
        with pytest.raises(_Crash):
            _publish(writer, "b")
    writer.close()

    again = ViewWriter(tmp_path)
    last = again.open()
    assert last is not None
    counts = step in {"place", "rename"}  # only then was the line on the disk
    assert last.sequence == int(counts)
    assert _published(tmp_path) == (["a", "b"] if counts else ["a"])
    _publish(again, "c")
    assert _published(tmp_path)[-1] == "c"
    assert not (tmp_path / ".staging").exists()


def test_a_torn_line_does_not_count(tmp_path: Path) -> None:
    writer = ViewWriter(tmp_path)
    writer.open()
    _publish(writer, "a")
    writer.close()
    with (tmp_path / "commits.jsonl").open("ab") as file:
        file.write(b'{"sequence":1,"plan":9')
    again = ViewWriter(tmp_path)
    last = again.open()
    assert last is not None
    assert last.sequence == 0
    _publish(again, "b")
    assert [commit.sequence for commit in again.commits()] == [0, 1]


def test_long_commits_are_found_from_the_end(tmp_path: Path) -> None:
    lines = [
        Commit(n, "p", files=tuple(f"{n}-{i}" for i in range(2000))).to_line() for n in range(3)
    ]
    (tmp_path / "commits.jsonl").write_bytes(b"".join(lines))
    last = ViewFolder(tmp_path).last()
    assert last is not None
    assert last.sequence == 2
