"""kill -9 at random moments: every record is published once, or a dead letter, never both.

Half of the kills fall anywhere, also while Spark starts or a view is opened; the others fall
while views advance, after one of Spark's Python processes was killed and the views went on without
anybody's help. What readers can see is looked at after each kill, and must still be there at the
end as it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.definitions import DefinitionSet, read_text
from penstock.eventlog import Topic
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.sinks.commits import ViewFolder
from penstock.pipeline.sinks.published import read_published
from tests.support.scale import scaled

pytestmark = pytest.mark.needs("java")

KILLS = scaled(2, long=100)
RECORDS = max(6000, 2000 * KILLS)
LONGEST_START = 12.0
DEFINITIONS = """\
kind: stream
name: patients
fields:
  - {name: pid, type: int, category: identifier}
  - {name: age, type: int, category: quasi-identifier}
  - {name: glucose, type: double, category: sensitive}
  - {name: number, type: int}
  - {name: at, type: long}
subject: pid
time: at
---
{kind: view, name: noisy, stream: patients, anonymizers: [
  {anonymizer: suppression, keys: [pid]},
  {anonymizer: noise, keys: [glucose], noise: 0.5}]}
---
{kind: view, name: research, stream: patients, accept_risk: [time:at], anonymizers: [
  {anonymizer: k_anonymization, keys: [pid], k: 5, delta: 100,
   quasi_identifiers: [{key: age, min: 0, max: 120}]}]}
---
{kind: view, name: mean, stream: patients, window: {size: 50}, anonymizers: [
  {anonymizer: suppression, keys: [pid]},
  {anonymizer: aggregation, keys: [glucose], aggregation_mode: average}]}
"""
VIEWS = ("noisy", "research", "mean")
SETTINGS = "pipeline: {batch: 400, interval: 50ms, memory: 1g, monitor_port: 0}\n"


def _penstock(folder: Path, *arguments: str) -> None:
    code = f"from penstock.cli.streams.views import command; command.main({list(arguments)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)


def _start(folder: Path) -> subprocess.Popen[bytes]:
    code = "from penstock.cli.streams.views import command; command.main(['run'])"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    # The whole session at once: the Java process that Spark started goes with its driver.
    os.killpg(process.pid, 9)
    process.wait()


def _kill_python(process: subprocess.Popen[bytes], draw: random.Random) -> None:
    """Kill one of Spark's Python processes: a task's, what makes these, or what plans state."""
    while True:
        found = psutil.Process(process.pid).children(recursive=True)
        draw.shuffle(found)
        for it in found:
            # Some have ended by the time that they are looked at.
            with contextlib.suppress(psutil.Error):
                if it.name() != "java" and any("pyspark" in part for part in it.cmdline()):
                    it.kill()
                    return


def _progress(folder: Path) -> int:
    last = [ViewFolder(folder / "penstock-data" / "views" / name).last() for name in VIEWS]
    return min(commit.totals.read if commit else 0 for commit in last)


def _wait_for(folder: Path, offset: int, process: subprocess.Popen[bytes]) -> None:
    last, moved = -1, time.monotonic()
    while (now := _progress(folder)) < offset:
        assert process.poll() is None, "the runner ended by itself"
        if now > last:
            last, moved = now, time.monotonic()
        assert time.monotonic() < moved + 240, "the views stand still"
        time.sleep(0.02)


@pytest.mark.timeout(400 + 200 * KILLS)
def test_nothing_is_lost_or_published_twice(tmp_path: Path) -> None:
    from penstock.cli import main  # noqa: PLC0415 - only here

    draw = random.Random(2024)
    (tmp_path / "penstock.yaml").write_text(SETTINGS)
    (tmp_path / "d.yaml").write_text(DEFINITIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with pytest.raises(SystemExit) as ended:
            main(["apply", "-f", "d.yaml"])
        assert ended.value.code == 0
    topic = Topic(tmp_path / "penstock-data" / "eventlog" / "patients")
    records = [
        {"pid": n // 3, "age": n * 7 % 90, "glucose": 100.0 + n % 50, "number": n, "at": n}
        for n in range(RECORDS)
    ]
    topic.append([json.dumps(record).encode() for record in records])
    _penstock(tmp_path, "start", "--all")

    views = tmp_path / "penstock-data" / "views"
    seen: dict[str, dict[int, Any]] = {name: {} for name in VIEWS}
    for kill in range(KILLS):
        runner = _start(tmp_path)
        try:
            if kill % 2:
                time.sleep(draw.random() * LONGEST_START)
                assert runner.poll() is None, "the runner ended by itself"
            else:
                _wait_for(tmp_path, RECORDS * (kill + 1) // (KILLS + 2), runner)
                time.sleep(draw.random())
                _kill_python(runner, draw)
                _wait_for(tmp_path, _progress(tmp_path) + 1, runner)
        finally:
            _kill(runner)
        assert _progress(tmp_path) < RECORDS, "the views were done before the kill"
        for name in VIEWS:
            rows = list(read_published(ViewFolder(views / name)))
            seen[name] |= _check_kept(seen[name], rows)
            if name == "research":
                _check_persons(rows)
    runner = _start(tmp_path)
    try:
        _wait_for(tmp_path, RECORDS, runner)
    finally:
        runner.terminate()
        runner.wait(240)
    _penstock(tmp_path, "stop", "--all")
    _penstock(tmp_path, "run", "--once")
    _check(views, records)
    for name in VIEWS:
        _check_kept(seen[name], list(read_published(ViewFolder(views / name))))
    _check_noise(tmp_path, records)


def _check_kept(before: dict[int, Any], rows: list[dict[str, Any]]) -> dict[int, Any]:
    """What was there once is there still, once, with the same draw; returns what is there."""
    now = {row["number"]: row for row in rows}
    assert len(now) == len(rows)
    assert before.items() <= now.items()
    return now


def _check_persons(rows: list[dict[str, Any]]) -> None:
    persons: dict[str, set[int]] = {}
    for row in rows:
        persons.setdefault(row["age"], set()).add(row["number"] // 3)
    assert min(map(len, persons.values()), default=5) >= 5


def _check_noise(folder: Path, records: list[dict[str, Any]]) -> None:
    """The draw of each record is the one that its place in the stream has, no other."""
    definitions = DefinitionSet.build(read_text(DEFINITIONS).documents)
    secret = (folder / "penstock-data" / "keys" / "masks.key").read_bytes()
    chain, _ = Blueprint.find(definitions, "noisy").chains(secret)
    for row in read_published(ViewFolder(folder / "penstock-data" / "views" / "noisy")):
        number = row["number"]
        assert row == chain.apply(records[number], f"patients/{number}")


def _check(folder: Path, records: list[dict[str, Any]]) -> None:
    published = {name: list(read_published(ViewFolder(folder / name))) for name in VIEWS}
    for name in VIEWS:
        dead = [letter["offset"] for letter in ViewFolder(folder / name).dead_letters()]
        numbers = [row["number"] for row in published[name]]
        assert sorted(numbers + dead) == list(range(RECORDS)), name
        last = ViewFolder(folder / name).last()
        assert last is not None
        assert last.held == 0
        assert last.totals.read == RECORDS
        assert all(row["pid"] is None for row in published[name])
    _check_persons(published["research"])
    for row in published["mean"]:
        window = range(row["number"] // 50 * 50, row["number"] // 50 * 50 + 50)
        mean = sum(records[number]["glucose"] for number in window) / 50
        assert row["glucose"] == pytest.approx(mean)
    noise = Counter(
        round(row["glucose"] / records[row["number"]]["glucose"], 6) for row in published["noisy"]
    )
    assert len(noise) > RECORDS * 0.9
