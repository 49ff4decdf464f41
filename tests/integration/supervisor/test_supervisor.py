"""The supervisor as a process of its own, with small real programs as its parts."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.supervisor.status import RunFolder, SupervisorStatus

PROGRAM = """
import json, os, sys
from pathlib import Path
from penstock.config import defaults
from penstock.supervisor.parts import Part
from penstock.supervisor.supervisor import Supervisor
from penstock.telemetry import configure

given = json.loads(sys.argv[2])
configure(style="json")
parts = [
    Part(name, command=lambda _, argv=tuple(argv): argv, after=tuple(after))
    for name, (argv, after) in given.items()
]
Supervisor(defaults(Path(sys.argv[1]), os.environ), parts, os.environ).run()
"""

# Writes its name and what happens to it into a shared file; takes a while to stop.
WITNESS = """
import os, signal, sys, time
name, path, slow = sys.argv[1], sys.argv[2], float(sys.argv[3])
def note(what):
    with open(path, "a") as file:
        file.write(f"{what} {name}\\n")
def stop(*_):
    time.sleep(slow)
    note("end")
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
note("begin")
while True:
    time.sleep(60)
"""
STUBBORN = (
    "import signal, time\n"
    "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
    "    signal.signal(number, signal.SIG_IGN)\n"
    "open(__import__('sys').argv[1], 'w').close()\n"
    "time.sleep(600)"
)

Parts = dict[str, tuple[list[str], list[str]]]


def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ask(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own endpoint
        text: str = answer.read().decode()
        return text


class Installation:
    """A folder, and the supervisor that runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = RunFolder(folder / "penstock-data")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, parts: Parts, **settings: str) -> subprocess.Popen[bytes]:
        quick = {
            "PENSTOCK_SUPERVISOR__BACKOFF": "20ms",
            "PENSTOCK_SUPERVISOR__BACKOFF_LIMIT": "50ms",
            "PENSTOCK_SUPERVISOR__FAILURES": "4",
            "PENSTOCK_SUPERVISOR__GRACE": "20s",
            "PENSTOCK_MONITOR__PORT": "0",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.folder), json.dumps(parts)],
            env={**os.environ, **quick, **settings},
            stderr=(self.folder / "log").open("ab"),
            start_new_session=True,
        )
        return self.process

    def status(self) -> SupervisorStatus:
        found: SupervisorStatus = until(self.run.read)
        return found

    def reach(self, state: str) -> SupervisorStatus:
        until(lambda: self.status().state == state)
        return self.status()

    def states(self) -> dict[str, str]:
        return {part.part: part.state.value for part in self.status().parts}

    def pid_of(self, name: str) -> int:
        pid = next(part.pid for part in self.status().parts if part.part == name)
        assert pid is not None
        return pid


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path)
    yield made
    if made.process and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def witness(name: str, path: Path, slow: float = 0.0) -> list[str]:
    return [sys.executable, "-c", WITNESS, name, str(path), str(slow)]


def test_parts_start_in_order_and_stop_in_reverse(installation: Installation) -> None:
    notes = installation.folder / "notes"
    process = installation.start(
        {
            "last": (witness("last", notes, 0.2), ["middle"]),
            "first": (witness("first", notes), []),
            "middle": (witness("middle", notes, 0.2), ["first"]),
        }
    )
    status = installation.reach("running")
    assert status.pid == process.pid
    until(lambda: notes.exists() and notes.read_text().count("begin") == 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    ends = [line for line in notes.read_text().splitlines() if line.startswith("end")]
    assert ends == ["end last", "end middle", "end first"]
    assert installation.run.read() is None
    assert all(gone(part.pid or 0) for part in status.parts)


def test_a_killed_part_comes_back(installation: Installation) -> None:
    installation.start({"one": (["sleep", "600"], []), "two": (["sleep", "600"], [])})
    installation.reach("running")
    before, other = installation.pid_of("one"), installation.pid_of("two")
    os.kill(before, signal.SIGKILL)
    until(lambda: next(iter(installation.status().parts)).restarts == 1)
    status = installation.reach("running")
    assert status.parts[0].last_exit == "SIGKILL"
    assert installation.pid_of("one") != before
    assert installation.pid_of("two") == other


def test_a_part_that_keeps_failing_is_given_up_and_the_rest_goes_on(
    installation: Installation,
) -> None:
    process = installation.start(
        {
            "good": (["sleep", "600"], []),
            "bad": (["false"], []),
            "behind": (["sleep", "600"], ["good"]),
        }
    )
    until(lambda: installation.states()["bad"] == "failed")
    status = installation.reach("degraded")
    assert installation.states() == {"good": "running", "bad": "failed", "behind": "running"}
    bad = next(part for part in status.parts if part.part == "bad")
    assert bad.restarts == 3
    assert bad.last_exit == "exit 1"
    assert status.monitor is not None
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(f"{status.monitor}/readyz")
    assert json.load(caught.value)["failing"] == {"parts": "not running: bad"}
    process.send_signal(signal.SIGUSR1)
    until(lambda: next(p for p in installation.status().parts if p.part == "bad").restarts == 7)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0


def test_metrics_and_health_are_served(installation: Installation) -> None:
    installation.start({"one": (["sleep", "600"], [])})
    monitor = installation.reach("running").monitor
    for page, text in (("readyz", '"ok": true'), ("healthz", '"ok": true'), ("metrics", "part_up")):
        assert text in ask(f"{monitor}/{page}")


def test_parts_die_with_a_killed_supervisor(installation: Installation) -> None:
    up = installation.folder / "up"
    process = installation.start(
        {
            "stubborn": ([sys.executable, "-c", STUBBORN, str(up)], []),
            "plain": (["sleep", "600"], []),
        }
    )
    status = installation.reach("running")
    until(up.exists)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    until(lambda: all(gone(part.pid or 0) for part in status.parts))
    assert installation.run.read() is None
    # A new one takes over at once.
    again = installation.start({"plain": (["sleep", "600"], [])})
    assert installation.reach("running").pid == again.pid


def test_a_second_signal_hurries(installation: Installation) -> None:
    up = installation.folder / "up"
    process = installation.start(
        {"stubborn": ([sys.executable, "-c", STUBBORN, str(up)], [])},
        PENSTOCK_SUPERVISOR__GRACE="10m",
    )
    installation.reach("running")
    until(up.exists)
    pid = installation.pid_of("stubborn")
    process.send_signal(signal.SIGTERM)
    installation.reach("stopping")
    assert not gone(pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert gone(pid)


def test_what_does_not_stop_within_its_grace_is_killed(installation: Installation) -> None:
    up = installation.folder / "up"
    process = installation.start(
        {"stubborn": ([sys.executable, "-c", STUBBORN, str(up)], [])},
        PENSTOCK_SUPERVISOR__GRACE="200ms",
    )
    installation.reach("running")
    until(up.exists)
    pid = installation.pid_of("stubborn")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert gone(pid)


def test_a_second_supervisor_is_refused(installation: Installation) -> None:
    first = installation.start({"one": (["sleep", "600"], [])})
    installation.reach("running")
    second = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(installation.folder), "{}"],
        env={**os.environ, "PENSTOCK_MONITOR__PORT": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode != 0
    assert "another supervisor runs" in second.stderr
    assert installation.status().pid == first.pid
