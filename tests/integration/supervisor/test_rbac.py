"""`penstock up` with users and roles: Kafka follows the definitions, also after a crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import KafkaCluster
from penstock.components.processes import free_port
from penstock.config import load
from penstock.kafka import Cluster
from penstock.supervisor.status import RunFolder
from tests.support.forked_commands import forked_penstock

# Each command is a process of its own, which takes long on a busy machine.
pytestmark = [pytest.mark.needs("java", "jars"), pytest.mark.timeout(1800)]

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]
PATIENCE = 300.0
DEFINITIONS = """
kind: stream
name: ward
fields: [{name: pid, type: int}]
---
{kind: view, name: beds, stream: ward, roles: [porter]}
---
{kind: role, name: porter}
---
{kind: user, name: paul, roles: [%s]}
"""


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


class House:
    """An installation whose supervisor runs nothing but users and roles."""

    def __init__(self, folder: Path, kafka: KafkaCluster) -> None:
        self.folder = folder
        self.port = free_port()
        settings = {
            "parts": ["rbac"],
            "monitor": {"port": 0},
            "kafka": {
                "bootstrap": kafka.bootstrap,
                "security": "sasl_plaintext",
                "password": {"file": str(kafka.admin_password_file)},
                "monitor_port": self.port,
            },
            "supervisor": {"backoff": "20ms", "ready_timeout": "300s", "grace": "60s"},
        }
        (folder / "penstock.yaml").write_text(json.dumps(settings))

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*forked_penstock(), *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr + self.log()
        return done.stdout

    def log(self) -> str:
        """Return what the supervisor and its part have said, to be told with a failure."""
        file = self.folder / "penstock-data" / "run" / "supervisor.log"
        return file.read_text() if file.exists() else ""

    def declare(self, *roles: str) -> None:
        (self.folder / "all.yaml").write_text(DEFINITIONS % ", ".join(roles))
        self.run("apply", "-f", "all.yaml")

    def ask(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    def figure(self, name: str) -> float:
        for line in self.ask("/metrics").splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        pytest.fail(f"there is no {name}")

    def part(self) -> dict[str, Any]:
        found = RunFolder(self.folder / "penstock-data").read()
        return found.model_dump(mode="json")["parts"][0] if found else {"state": "down"}

    def acls(self) -> int:
        with Cluster(load(self.folder / "penstock.yaml").kafka) as cluster:
            return len(cluster.acls_of(["paul"])["paul"])


@pytest.fixture
def house(kafka: KafkaCluster, tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path, kafka)
    yield made
    found = RunFolder(tmp_path / "penstock-data").read()
    if found is not None:
        os.kill(found.pid, signal.SIGKILL)
    with Cluster(load(tmp_path / "penstock.yaml").kafka) as cluster:
        held = cluster.acls_of(["paul"])["paul"]
        list(cluster.delete_acls(("User:paul", acl) for acl in held))


def test_kafka_follows_under_the_supervisor(house: House) -> None:
    house.declare("porter")
    started = json.loads(house.run("up", "--detach", "--json"))
    assert started["parts"][0]["state"] == "running"
    assert json.loads(house.ask("/readyz"))["ok"] is True
    _until(lambda: house.acls() == 2)
    _until(lambda: house.figure("penstock_kafka_epoch") == 1)
    assert house.figure("penstock_kafka_behind") == 0
    assert house.figure('penstock_kafka_acls_total{change="put"}') == 2
    # What was killed comes back, and goes on with what has changed meanwhile.
    os.kill(house.part()["pid"], signal.SIGKILL)
    house.declare()
    _until(lambda: house.acls() == 0)
    _until(lambda: house.part()["state"] == "running" and house.part()["restarts"] == 1)
    _until(lambda: house.figure("penstock_kafka_epoch") == 2)
    recorded = house.run("audit", "tail", "--json")
    assert "kafka.rule" in recorded
    house.run("down")


def test_without_kafka_there_is_nothing_to_hold(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text("parts: [rbac]\nmonitor: {port: 0}\n")
    done = subprocess.run(
        [*PENSTOCK, "up"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert "kafka.bootstrap is not set" in done.stderr
