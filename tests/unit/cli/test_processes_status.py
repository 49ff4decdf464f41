import json
import time
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.cli.processes import COLOURS, show_seconds
from penstock.supervisor.parts import PartState
from penstock.supervisor.status import PartStatus, RunFolder, SupervisorStatus


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_CONFIG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "penstock.yaml").write_text("parts: [broker]")
    return tmp_path


def status(overall: str = "running", **part: object) -> SupervisorStatus:
    given = {
        "part": "broker",
        "state": "running",
        "pid": 4711,
        "since": time.time() - 3700,
        "address": "127.0.0.1:1884",
        **part,
    }
    return SupervisorStatus.model_validate(
        {
            "state": overall,
            "pid": 42,
            "version": "0",
            "since": time.time() - 100,
            "config": None,
            "monitor": "http://127.0.0.1:9464",
            "parts": [PartStatus.model_validate(given)],
        }
    )


def test_without_a_supervisor_all_is_down(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert run("status") == 3
    shown = capsys.readouterr().out
    assert "no supervisor runs" in shown
    assert "`penstock up` runs them" in shown
    assert run("status", "--json") == 3
    assert json.loads(capsys.readouterr().out) == {
        "state": "down",
        "data": str(here / "penstock-data"),
        "parts": [{"part": "broker", "state": "down"}],
    }


def test_running_parts_are_shown_with_exit_code_0(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    folder = RunFolder(here / "penstock-data")
    with folder.hold():
        folder.write(status())
        assert run("status") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("running  supervisor 42, up 1m 40s, http://127.0.0.1:9464/metr")
        assert " ".join(lines[1].split()) == "part state pid uptime restarts last exit address"
        assert " ".join(lines[2].split()) == "broker running 4711 1h 1m 0 - 127.0.0.1:1884"
        assert run("status", "--json") == 0
        (line,) = capsys.readouterr().out.splitlines()
        data = json.loads(line)
    assert data["state"] == "running"
    assert data["parts"][0]["pid"] == 4711
    assert 3700 <= data["parts"][0]["seconds"] < 3800


def test_a_part_that_is_down_makes_the_exit_code_3(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    folder = RunFolder(here / "penstock-data")
    with folder.hold():
        folder.write(
            status(
                "degraded", state="failed", pid=None, last_exit="exit 1", detail="ended with exit 1"
            )
        )
        assert run("status") == 3
    shown = capsys.readouterr().out
    assert "broker  failed" in shown
    assert "ended with exit 1" in shown


def test_every_state_has_a_colour() -> None:
    assert set(PartState) <= set(COLOURS)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0.4, "0s"),
        (59, "59s"),
        (60, "1m"),
        (3700, "1h 1m"),
        (86400 * 3 + 7200 + 60, "3d 2h"),
        (86400 + 5, "1d 5s"),
    ],
)
def test_lengths_of_time_are_short(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


def test_it_fits_80_columns_with_a_reason_below(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = RunFolder(here / "penstock-data")
    failed = {"state": "backoff", "pid": None, "restarts": 3, "last_exit": "exit code 3"}
    with folder.hold():
        folder.write(status("degraded", **failed, detail="ended with exit code 3"))
        run("status")
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[2].split()) == "broker backoff - - 3 exit code 3 127.0.0.1:1884"
    assert lines[3] == "broker: ended with exit code 3"
