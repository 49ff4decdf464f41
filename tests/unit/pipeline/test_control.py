from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.eventlog import Topic
from penstock.pipeline import control as histories
from penstock.pipeline.control import (
    ACTIONS,
    FRESH_SECONDS,
    RISKS,
    Condition,
    Control,
    RiskMoment,
    describe,
    note_risk,
    read_risks,
)
from penstock.pipeline.sinks.commits import Batch, Commit, Totals


def test_wishes_survive_and_lead_through_the_states(tmp_path: Path) -> None:
    for action, state in [
        ("initialize", "initialized"),
        ("start", "running"),
        ("start", "running"),
        ("pause", "paused"),
        ("resume", "running"),
        ("stop", "stopped"),
        ("start", "running"),
    ]:
        assert Control(tmp_path).change("nurse", action) == state
        assert Control(tmp_path).wanted("nurse").state == state


@pytest.mark.parametrize(
    ("before", "action", "fix"),
    [
        ((), "pause", "initialize or start it"),
        ((), "stop", "initialize or start it"),
        (("start",), "initialize", "pause or stop it"),
        (("start", "pause"), "start", "resume or stop it"),
        (("start", "stop"), "resume", "start it"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_does(
    before: tuple[str, ...], action: str, fix: str, tmp_path: Path
) -> None:
    control = Control(tmp_path)
    for earlier in before:
        control.change("nurse", earlier)
    with pytest.raises(UsageError) as caught:
        control.change("nurse", action)
    assert caught.value.fix == fix


def test_every_state_has_a_way_on() -> None:
    targets = {target for target, _ in ACTIONS.values()}
    sources = frozenset().union(*(known for _, known in ACTIONS.values()))
    assert targets <= sources


def test_a_condition_counts_while_its_runner_lives(tmp_path: Path) -> None:
    control = Control(tmp_path)
    now = time.time()
    control.report("nurse", Condition("running", os.getpid(), now, 12.0))
    found = control.condition("nurse")
    assert found is not None
    assert found.rate == 12.0
    control.report("nurse", Condition("running", os.getpid(), now - FRESH_SECONDS - 1))
    assert control.condition("nurse") is None
    control.report("nurse", Condition("running", 2**22 + 1, now))
    assert control.condition("nurse") is None


def test_a_view_is_described_from_its_commits(tmp_path: Path) -> None:
    control = Control(tmp_path)
    log = Topic(tmp_path / "log")
    log.append([b"{}"] * 7)
    assert describe("nurse", "patients", control, log, coarse=False)["lag"] == 7
    # Of other sources, Spark tells it to who runs the view.
    control.report("nurse", Condition("running", os.getpid(), time.time(), lag=5))
    assert describe("nurse", "patients", control, None, coarse=False)["lag"] == 5
    control.report("nurse", Condition("running", 2**22 + 1, time.time()))
    log.append([b"{}"] * 7)
    control.change("nurse", "start")
    totals = Totals(read=10, published=8, rejected=2, loss=2.0)
    batch = Batch("c", 3, '{"offset": 10}')
    line = Commit(0, "p", batch, held=1, totals=totals).to_line()
    (tmp_path / "nurse" / "commits.jsonl").write_bytes(line)
    assert describe("nurse", "patients", control, log, coarse=False) == {
        "view": "nurse",
        "stream": "patients",
        "wanted": "running",
        "state": "waiting",
        "rate": 0.0,
        "lag": 4,
        "read": 10,
        "published": 8,
        "rejected": 2,
        "held": 1,
        "loss": 0.25,
        "error": None,
        "coarse": False,
    }


def test_a_history_of_risk_has_a_moment_a_minute(tmp_path: Path) -> None:
    assert read_risks(tmp_path) == []
    moments = [RiskMoment(at, 0.25, 0.5, 2, 0.1) for at in (0.0, 59.0, 60.0, 200.0)]
    for it in moments:
        note_risk(tmp_path, it)
    assert [it.at for it in read_risks(tmp_path)] == [0.0, 60.0, 200.0]
    # A clock that was set back does not end the history, nor does a line that was cut off.
    note_risk(tmp_path, RiskMoment(10.0, 0.2, 0.2, 5, 0.1))
    with (tmp_path / RISKS).open("a") as file:
        file.write('{"at": 1')
    assert read_risks(tmp_path)[-1] == RiskMoment(10.0, 0.2, 0.2, 5, 0.1)
    note_risk(tmp_path, RiskMoment(70.0, 0.2, 0.2, 5, 0.1))
    assert [it.at for it in read_risks(tmp_path)] == [0.0, 60.0, 200.0, 10.0, 70.0]


def test_of_a_long_history_the_newest_half_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "_RISKS_LIMIT", 2_000)
    for number in range(100):
        note_risk(tmp_path, RiskMoment(60.0 * number, 0.1, 0.2, 5, 0.0))
    found = [it.at for it in read_risks(tmp_path)]
    assert (tmp_path / RISKS).stat().st_size < 2_500
    assert found == [60.0 * it for it in range(100 - len(found), 100)]
    assert len(found) > 5
