"""Paths of other file systems; what needs one is in `integration/pipeline/test_cluster.py`."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from penstock import hadoop
from penstock.config import Config
from penstock.config.installation import PipelineSettings
from penstock.config.settings import folders
from penstock.errors import UnavailableError
from penstock.eventlog import EventLog
from penstock.hadoop import HadoopPath, copy_folder, is_remote, read_path, write_new

ROOT = "hdfs://namenode:8020/penstock"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (ROOT, ROOT),
        ("s3a://bucket", "s3a://bucket"),
        ("s3a://bucket/a b/c:d", "s3a://bucket/a b/c:d"),
        ("file:///var/x", "/var/x"),
        ("file:/var/x", "/var/x"),
        ("/var/hdfs:/x", "/var/hdfs:/x"),
        ("views", "views"),
    ],
)
def test_a_scheme_tells_where_a_path_is(text: str, told: str) -> None:
    path = read_path(text)
    assert str(path) == told
    assert read_path(path) == path == read_path(str(path))
    assert is_remote(path) == ("://" in told)


def test_such_a_path_is_made_of_others_as_any_is() -> None:
    path = read_path(ROOT) / "views" / "a.json"
    assert isinstance(path.parent, HadoopPath)
    assert (path.name, path.suffix, str(path.parent)) == ("a.json", ".json", f"{ROOT}/views")
    assert str(path.with_name("b")) == f"{ROOT}/views/b"
    assert {path, read_path(str(path))} == {path}
    assert pickle.loads(pickle.dumps(path)) == path  # noqa: S301 - our own
    assert path.absolute() == path


def test_nothing_takes_it_for_a_path_of_this_machine(tmp_path: Path) -> None:
    path = read_path(ROOT)
    for use in (open, os.listdir, os.stat, os.unlink):
        with pytest.raises(TypeError, match="no path of this machine"):
            use(path)
    with pytest.raises(OSError, match="written as a whole"):
        path.open("ab")
    with pytest.raises(TypeError, match="elsewhere"):
        path.rename(tmp_path)


def test_without_java_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hadoop._Hadoop, "connect", None)
    with pytest.raises(UnavailableError, match="through Spark, which does not run here"):
        EventLog(read_path(ROOT)).topic("t").append([b"x"])


def _settings(base: Path, **pipeline: str) -> PipelineSettings:
    return Config.model_validate({"pipeline": pipeline}, context=folders(base)).pipeline


def test_settings_name_stores_where_tasks_reach_them_and_nowhere_else(tmp_path: Path) -> None:
    settings = _settings(tmp_path, store=ROOT, event_log=f"{ROOT}/log")
    assert (str(settings.files), str(settings.event_log)) == (ROOT, f"{ROOT}/log")
    assert not is_remote(settings.folder)
    assert _settings(tmp_path).files == _settings(tmp_path).folder
    with pytest.raises(ValidationError, match="no folder of this machine"):
        _settings(tmp_path, folder=ROOT)


def test_a_new_file_replaces_none_and_folders_are_copied(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    write_new(tmp_path / "a" / "b" / "c", b"1")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "a" / "b" / "c", b"2")
    copy_folder(tmp_path / "a", tmp_path / "z")
    assert (tmp_path / "z" / "b" / "c").read_bytes() == b"1"
