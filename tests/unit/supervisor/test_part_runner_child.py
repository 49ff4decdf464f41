import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from penstock.supervisor.part_runner import LAUNCHER, Child

PYTHON = sys.executable
STUBBORN = (
    "import signal, time, pathlib, sys\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "pathlib.Path(sys.argv[1]).touch()\n"
    "time.sleep(60)"
)
WITH_HELPER = (
    "import subprocess, sys, time, pathlib\n"
    "helper = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "pathlib.Path(sys.argv[1]).write_text(str(helper.pid))\n"
    "time.sleep(float(sys.argv[2]))"
)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - no event tells of other processes
            await asyncio.sleep(0.01)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("pass", "exit 0"),
        ("raise SystemExit(3)", "exit 3"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import os; os.kill(os.getpid(), 40)", "signal 40"),
    ],
)
def test_the_end_is_told(code: str, told: str) -> None:
    async def main() -> None:
        child = Child([PYTHON, "-c", code], os.environ)
        assert child.exit == ""
        await child.ended.wait()
        assert child.exit == told

    run(main)


def test_a_program_that_is_missing_ends_with_127(capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        child = Child(["no-such-program"], os.environ)
        await child.ended.wait()
        assert child.exit == "exit 127"

    run(main)
    assert "cannot run no-such-program: No such file" in capfd.readouterr().err


def test_what_it_prints_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        await Child(["echo", "hello"], os.environ).ended.wait()

    run(main)
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "hello\n")


def test_it_is_asked_to_stop_before_it_is_killed() -> None:
    async def main() -> None:
        child = Child(["sleep", "60"], os.environ)
        await until(lambda: psutil.Process(child.pid).name() == "sleep")
        await child.end(20, asyncio.Event())
        assert child.exit == "SIGTERM"

    run(main)


@pytest.mark.parametrize("how", ["grace", "hurry", "no grace"])
def test_what_does_not_stop_is_killed(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        child = Child([PYTHON, "-c", STUBBORN, str(tmp_path / "up")], os.environ)
        await until((tmp_path / "up").exists)
        hurry = asyncio.Event()
        if how == "hurry":
            asyncio.get_running_loop().call_later(0.1, hurry.set)
        await child.end({"grace": 0.1, "hurry": 60.0, "no grace": 0.0}[how], hurry)
        assert child.exit == "SIGKILL"

    run(main)


@pytest.mark.parametrize("seconds", [60, 0])
def test_what_it_leaves_behind_ends_with_it(tmp_path: Path, seconds: int) -> None:
    note = tmp_path / "helper"

    async def main() -> None:
        child = Child([PYTHON, "-c", WITH_HELPER, str(note), str(seconds)], os.environ)
        await until(lambda: note.exists() and note.read_text() != "")
        if seconds:
            await child.end(20, asyncio.Event())
        await child.ended.wait()
        helper = int(note.read_text())
        await until(lambda: gone(helper))

    run(main)


def test_it_leads_a_group_of_its_own_and_reads_nothing() -> None:
    code = (
        "import os, sys, signal\n"
        "assert os.getpgid(0) == os.getsid(0) == os.getpid()\n"
        "assert sys.stdin.read() == ''\n"
        "defaults = open('/proc/self/status').read()\n"
        "ignored = int(defaults.split('SigIgn:')[1].split()[0], 16)\n"
        "sys.exit(0 if ignored & (1 << signal.SIGXFSZ - 1) else 5)"
    )

    async def main() -> None:
        # Python itself ignores SIGXFSZ; that it still has to shows that it began with defaults.
        child = Child([PYTHON, "-c", code], os.environ)
        await child.ended.wait()
        assert child.exit == "exit 0"
        shell = Child(["sh", "-c", "kill -PIPE $$; exit 7"], os.environ)
        await shell.ended.wait()
        assert shell.exit == "SIGPIPE"

    run(main)


def test_it_does_not_start_for_a_supervisor_that_is_dead() -> None:
    done = subprocess.run(
        [PYTHON, str(LAUNCHER), "1", PYTHON, "-c", "print('ran')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    assert "the supervisor died" in done.stderr
    assert done.returncode == 1


def test_it_dies_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, sys, pathlib\n"
        "from penstock.supervisor.part_runner import Child\n"
        "async def main():\n"
        "    child = Child([sys.executable, '-c', sys.argv[1], sys.argv[2]], os.environ)\n"
        "    print(child.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    up = tmp_path / "up"
    with subprocess.Popen(
        [PYTHON, "-c", code, STUBBORN, str(up)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        deadline = time.monotonic() + 20
        while not up.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert up.exists()
        supervisor.send_signal(signal.SIGKILL)
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone(pid)
