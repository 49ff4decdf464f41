"""`penstock up`, `status` and `doctor` with the real broker."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.components.mosquitto import find_listener
from penstock.supervisor.status import RunFolder
from tests.support.forked_commands import forked_penstock

pytestmark = pytest.mark.needs("mosquitto")

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]
QUICK = {
    "PENSTOCK_PARTS": "[broker]",
    "PENSTOCK_MONITOR__PORT": "0",
    "PENSTOCK_SUPERVISOR__BACKOFF": "20ms",
    "COLUMNS": "200",
}


def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found


class Shell:
    """Runs `penstock` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {**os.environ, **QUICK}
        self.environ.pop("PENSTOCK_CONFIG", None)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*forked_penstock(), *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def status(self) -> dict[str, Any]:
        found = RunFolder(self.folder / "penstock-data").read()
        return found.model_dump(mode="json") if found else {"state": "down"}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    assert made.run("init").returncode == 0
    yield made
    pid = made.status().get("pid")
    if pid:
        os.kill(pid, signal.SIGKILL)


def test_the_broker_runs_detached_comes_back_and_stops(shell: Shell) -> None:
    up = shell.run("up", "--detach", "--json")
    assert up.returncode == 0, up.stderr
    started = json.loads(up.stdout)
    broker = started["parts"][0]
    assert (broker["part"], broker["state"]) == ("broker", "running")
    place = Path(broker["address"])
    assert place.is_socket()
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    found = find_listener(place)
    assert found is not None
    assert found.pid == broker["pid"]

    shown = shell.run("status")
    assert shown.returncode == 0
    assert broker["address"] in shown.stdout.replace("\n", "")
    machine = json.loads(shell.run("status", "--json").stdout)
    assert machine["parts"][0]["pid"] == broker["pid"]

    os.kill(broker["pid"], signal.SIGKILL)
    until(lambda: shell.status().get("parts", [{"restarts": 0}])[0]["restarts"] == 1)
    again = until(lambda: (s := shell.status())["state"] == "running" and s)["parts"][0]
    assert again["address"] == broker["address"]
    assert again["last_exit"] == "SIGKILL"

    second = shell.run("up")
    assert second.returncode == 3
    assert "another supervisor runs" in second.stderr

    os.kill(started["pid"], signal.SIGTERM)
    until(lambda: shell.status()["state"] == "down")
    assert shell.run("status").returncode == 3
    assert not psutil.pid_exists(again["pid"])


def test_in_the_foreground_every_change_is_a_line_of_json(shell: Shell) -> None:
    with subprocess.Popen(
        [*PENSTOCK, "up", "--json"],
        cwd=shell.folder,
        env=shell.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(json.loads(line)["parts"][0]["state"])
            if seen[-1] == "running":
                process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert list(dict.fromkeys(seen)) == ["waiting", "starting", "running", "stopping", "stopped"]


def test_a_socket_that_is_taken_shows_in_status_and_doctor(shell: Shell) -> None:
    place = shell.folder / "penstock-data" / "broker" / "mosquitto.sock"
    place.parent.mkdir(mode=0o700, parents=True)
    with socket.socket(socket.AF_UNIX) as taken:
        with chdir(place.parent):  # its whole path may be longer than the kernel takes
            taken.bind(place.name)
        taken.listen()
        doctor = shell.run("doctor", "--json")
        assert doctor.returncode == 3
        finding = next(
            item
            for item in json.loads(doctor.stdout)["findings"]
            if (item["topic"], item["name"]) == ("ports", "broker")
        )
        assert finding["verdict"] == "wrong"
        assert f"(process {os.getpid()})" in finding["detail"]
        up = shell.run("up", "--detach")
        assert up.returncode == 3
        assert f"something else answers at {place}" in up.stdout.replace("\n", "")
    # Its place is free now, and it is tried again when asked.
    os.kill(shell.status()["pid"], signal.SIGUSR1)
    until(lambda: shell.status()["state"] == "running")
    assert "ours (mosquitto)" in shell.run("doctor").stdout


def test_a_part_that_does_not_come_up_says_why(shell: Shell) -> None:
    """A file of the settings that is missing is named by `doctor`, `up --detach` and `status`."""
    missing = shell.folder / "nowhere" / "server.pem"
    key = shell.folder / "server.key"
    key.touch(0o600)
    key.write_text("not read")
    listener = {"transport": "tls", "port": 0, "certificate": str(missing), "key": str(key)}
    shell.environ |= {
        "PENSTOCK_PARTS": "[broker, gateway]",
        "PENSTOCK_GATEWAY__LISTENERS": json.dumps({"secure": listener}),
        "PENSTOCK_GATEWAY__MONITOR_PORT": "0",
    }
    doctor = shell.run("doctor", "--json")
    assert doctor.returncode == 3
    wrong = [it for it in json.loads(doctor.stdout)["findings"] if it["verdict"] == "wrong"]
    named = {it["name"]: it["detail"] for it in wrong}
    assert str(missing) in named["gateway.listeners.secure.certificate"]
    up = shell.run("up", "--detach", "--json")
    assert up.returncode == 3
    gateway = next(it for it in json.loads(up.stdout)["parts"] if it["part"] == "gateway")
    assert f"gateway.listeners.secure.certificate: the file '{missing}'" in gateway["detail"]
    assert "No such file" in gateway["detail"]
    assert (
        "uncaught"
        not in RunFolder(shell.folder / "penstock-data").path.joinpath("supervisor.log").read_text()
    )
