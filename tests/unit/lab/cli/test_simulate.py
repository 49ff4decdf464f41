from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from penstock.definitions import DefinitionSet, read_paths
from penstock.errors import UsageError
from penstock_lab.cli.simulate import command
from penstock_lab.simulation import nursing_home as simulation


def run(*arguments: str) -> int:
    code = command.main(["nursing-home", *arguments], standalone_mode=False)
    assert isinstance(code, int)
    return code


def test_a_short_simulation_tells_its_tally(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--patients", "10", "--days", "2", "--rooms-every", "600", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["messages"]["physiological/saturation"] == 10 * 2 * 24
    assert (told["missing"], told["not_yet"]) == (0, 16)
    assert told["behind_seconds"] == 0
    assert len(told["transitions"]) == 23
    assert told["active_at_the_end"] > 0


def test_the_table_names_every_evolution(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # in fewer, long names are folded
    assert run("--patients", "10", "--days", "1", "--rooms-every", "600") == 0
    shown = capsys.readouterr().out
    assert "PositiveWithoutSymptoms" in shown
    assert "⊥" in shown
    assert "from day 10" in shown
    assert "23 evolutions cannot be expected with --days 1" in shown


def test_at_a_speed_the_simulation_waits(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--patients", "10", "--days", "1", "--speed", "200000", "--json") == 0
    assert json.loads(capsys.readouterr().out)["seconds"] >= 0.4  # a day, so much faster


class SlowClock:
    """A clock by which everything that happens takes its time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.25
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_who_falls_behind_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "time", SlowClock())
    assert run("--patients", "10", "--days", "1", "--rooms-every", "3600", "--speed", "8640") == 0
    out, err = capsys.readouterr()
    assert err.count("behind: messages take longer than they are apart;") == 1
    assert "it ended" in out
    run("--patients", "10", "--days", "1", "--rooms-every", "3600", "--speed", "8640", "--json")
    assert json.loads(capsys.readouterr().out)["behind_seconds"] > 100  # a day is to take 10


def test_who_keeps_the_pace_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "time", SlowClock())
    assert run("--patients", "10", "--days", "1", "--rooms-every", "3600", "--speed", "1") == 0
    out, err = capsys.readouterr()
    assert "behind" not in out + err


def test_an_evolution_that_is_missing_without_reason_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = simulation.Step("covid", "Symptomatic", "Negative", None)
    monkeypatch.setitem(simulation.SCRIPTED, late, 1)
    assert run("--patients", "10", "--days", "1", "--rooms-every", "3600") == 1
    assert "gone along, and were not: 1" in capsys.readouterr().out


@pytest.mark.parametrize("speed", ["0", "-1", "fast", "nan", "1e9"])
def test_a_wrong_speed_is_refused(speed: str) -> None:
    with pytest.raises(Exception, match=r"neither `max` nor a number"):
        run("--speed", speed)


@pytest.mark.parametrize("to", ["http://there", "mqtt://", "mqtt://host:99999", "nonsense"])
def test_a_wrong_address_is_refused(to: str) -> None:
    with pytest.raises(UsageError, match="is not an address of a gateway"):
        run("--patients", "10", "--to", to)


def test_prepare_writes_valid_definitions_and_private_passwords(tmp_path: Path) -> None:
    folder = tmp_path / "house"
    assert run("--patients", "20", "--speed", "60", "--prepare", str(folder)) == 0
    reading = read_paths([str(folder / "definitions.json")])
    definitions = DefinitionSet.build(reading.documents, reading.locate)
    text = (folder / "definitions.json").read_text()
    assert '"last": "2880000ms"' in text  # 2 days, 60 times as fast
    assert len(definitions.definitions) > 60
    for name in ("passwords", "password"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    users = {line.partition(":")[0] for line in (folder / "passwords").read_text().splitlines()}
    assert {
        "sensor-20",
        "dining-2",
        "physician-4",
        "laboratory",
        "specialist-1",
        "forecaster",
    } <= users
    with pytest.raises(UsageError, match="is there already"):
        run("--patients", "20", "--prepare", str(folder))
