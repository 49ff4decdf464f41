"""`penstock up` with the pipeline: views run, are measured, come back after a crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.components.processes import free_port
from penstock.eventlog import EventLog
from penstock.pipeline.control import Control
from penstock.supervisor.status import RunFolder
from tests.support.forked_commands import forked_penstock

# Two starts of Spark take long where the machine has other things to do.
pytestmark = [pytest.mark.needs("java"), pytest.mark.timeout(600)]

DEFINITIONS = """
kind: stream
name: patients
subject: pid
fields:
  - {name: pid, type: int, category: identifier}
  - {name: age, type: int, category: quasi-identifier}
  - {name: diagnosis, type: string, category: sensitive}
---
kind: view
name: research
stream: patients
anonymizers:
  - anonymizer: k_anonymization
    keys: [pid]
    quasi_identifiers: [{key: age, min: 0, max: 120}]
    k: 4
    delta: 8
---
kind: view
name: doctor
stream: patients
"""


def _until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)
    return found


class House:
    """An installation whose supervisor runs the pipeline alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        (folder / "penstock.yaml").write_text(
            f"parts: [pipeline]\nmonitor: {{port: 0}}\npipeline: {{monitor_port: {self.port}}}\n"
            "supervisor: {backoff: 20ms, ready_timeout: 120s, grace: 60s}\n"
        )
        (folder / "all.yaml").write_text(DEFINITIONS)

    @property
    def data(self) -> Path:
        return self.folder / "penstock-data"

    def feed(self) -> None:
        rows = [{"pid": n, "age": 20 + n % 9, "diagnosis": "ab"[n % 2]} for n in range(64)]
        topic = EventLog(self.data / "eventlog").topic("patients")
        topic.append([json.dumps(row).encode() for row in rows])

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*forked_penstock(), *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ask(self, path: str, port: int | None = None) -> str:
        url = f"http://127.0.0.1:{port or self.port}{path}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def figure(self, name: str, view: str) -> float | None:
        start = f'penstock_view_{name}{{view="{view}"}} '
        for line in self.ask("/metrics").splitlines():
            if line.startswith(start):
                return float(line.removeprefix(start))
        return None

    def part(self) -> dict[str, Any]:
        found = RunFolder(self.data).read()
        return found.model_dump(mode="json")["parts"][0] if found else {"state": "down"}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    found = RunFolder(made.data).read()
    if found is not None:
        os.kill(found.pid, signal.SIGKILL)


def test_views_run_under_the_supervisor_and_are_measured(house: House) -> None:
    house.run("apply", "-f", "all.yaml")
    house.feed()
    for name in ("research", "doctor"):
        Control(house.data / "views").change(name, "start")
    started = json.loads(house.run("up", "--detach", "--json"))
    assert started["parts"][0]["state"] == "running"
    assert json.loads(house.ask("/readyz"))["ok"] is True
    _until(lambda: house.figure("published_total", "doctor") == 64)
    _until(lambda: (house.figure("k", "research") or 0) >= 4)
    assert house.figure("k_counts_persons", "research") == 1
    gathered = house.ask("/metrics", urlsplit(started["monitor"]).port).splitlines()
    assert 'penstock_view_published_total{process="pipeline",view="doctor"} 64.0' in gathered
    assert 'penstock_part_up{part="pipeline",process="supervisor"} 1.0' in gathered
    assert 'penstock_part_scraped{part="pipeline",process="supervisor"} 1.0' in gathered
    _until(lambda: house.figure("k", "doctor") == 7)
    assert house.figure("lag", "doctor") == 0
    assert house.figure("running", "research") == 1
    # What was killed comes back, and goes on where it was.
    os.kill(house.part()["pid"], signal.SIGKILL)
    _until(lambda: house.part()["state"] == "running" and house.part()["restarts"] == 1)
    house.feed()
    _until(lambda: house.figure("published_total", "doctor") == 128)
    house.run("down")
    risk = json.loads(house.run("views", "risk", "research", "--json"))
    assert risk["unit"] == "persons"
    assert risk["k"] >= 4
