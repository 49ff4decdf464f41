import json
from pathlib import Path

import pytest

from penstock.cli.entry import penstock
from penstock.cli.privacy.audit import command

STREAM = "{kind: stream, name: s, fields: [{name: a, type: int}]}"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")


def tail(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    command.main(["tail", *arguments], standalone_mode=False)
    return capsys.readouterr().out.splitlines()


def test_an_empty_log_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert tail(capsys) == ["no entries yet"]
    assert tail(capsys, "--json") == []


def test_entries_stand_below_a_header_and_tell_the_time_alike(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "s.yaml").write_text(STREAM)
    penstock.main(["apply", "-f", "s.yaml"], standalone_mode=False)
    capsys.readouterr()
    header, line, *_ = tail(capsys)
    assert header.split() == ["entry", "time", "outcome", "event"]
    assert header.index("time") == line.index("20")
    assert header.index("outcome") == line.index(line.split()[2])
    document = json.loads(tail(capsys, "--json")[0])
    assert document["time"].startswith(line.split()[1].removesuffix("Z"))
    assert document["time"].endswith("Z")
    assert tail(capsys, "--outcome", "denied") == ["no entries that fit"]
