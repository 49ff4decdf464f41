import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.errors import UnavailableError
from penstock.supervisor.parts import PartState
from penstock.supervisor.status import PartStatus, RunFolder, SupervisorStatus, overall


def make(pid: int = 50, parts: int = 1) -> SupervisorStatus:
    part = PartStatus(part="broker", state=PartState.RUNNING, since=0, address="127.0.0.1:1")
    return SupervisorStatus(
        state="running",
        pid=pid,
        version="0",
        since=0,
        config=None,
        monitor=None,
        parts=(part,) * parts,
    )


@pytest.mark.parametrize(
    ("states", "word"),
    [
        ([PartState.RUNNING, PartState.RUNNING], "running"),
        ([PartState.RUNNING, PartState.WAITING], "starting"),
        ([PartState.STARTING], "starting"),
        ([PartState.RUNNING, PartState.BACKOFF], "degraded"),
        ([PartState.WAITING, PartState.FAILED], "degraded"),
        ([PartState.FAILED, PartState.STOPPING], "stopping"),
        ([PartState.RUNNING, PartState.STOPPED], "stopping"),
    ],
)
def test_the_states_are_summed_up(states: list[PartState], word: str) -> None:
    assert overall(states) == word


def test_the_status_is_read_back_while_the_supervisor_runs(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read() is None
    with folder.hold():
        assert folder.read() is None
        folder.write(make())
        assert RunFolder(tmp_path).read() == make()
    assert folder.read() is None
    with folder.hold():
        assert folder.read() is None, "what the last one left is not the status of this one"


def test_there_is_only_one_supervisor(tmp_path: Path) -> None:
    with RunFolder(tmp_path).hold():
        assert RunFolder(tmp_path).is_held()
        with (
            pytest.raises(UnavailableError, match="another supervisor runs"),
            RunFolder(tmp_path).hold(),
        ):
            pass
        with RunFolder(tmp_path / "other").hold():
            pass
    assert not RunFolder(tmp_path).is_held()
    with RunFolder(tmp_path).hold():
        assert RunFolder(tmp_path).is_held()


def test_asking_for_the_status_never_keeps_a_supervisor_from_starting(tmp_path: Path) -> None:
    folder, done = RunFolder(tmp_path), threading.Event()
    with folder.hold():
        pass

    def ask() -> None:
        while not done.is_set():
            RunFolder(tmp_path).is_held()

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        for _ in range(50):
            with folder.hold():
                pass
    finally:
        done.set()
        asker.join()


def test_a_killed_supervisor_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path;"
        "from penstock.supervisor.status import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).hold(): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert RunFolder(tmp_path).is_held()
        holder.send_signal(signal.SIGKILL)
    assert not RunFolder(tmp_path).is_held()


def test_files_are_private_even_with_an_open_umask(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    before = os.umask(0)
    try:
        with folder.hold():
            folder.write(make())
    finally:
        os.umask(before)
    modes = {item.name: stat.S_IMODE(item.stat().st_mode) for item in folder.path.iterdir()}
    assert modes == {"supervisor.lock": 0o600, "supervisor.json": 0o600}
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_a_reader_sees_one_moment(tmp_path: Path) -> None:
    folder, done = RunFolder(tmp_path), threading.Event()

    def write() -> None:
        pid = 0
        while not done.is_set():
            pid += 1
            folder.write(make(pid, parts=1 + pid % 50))

    with folder.hold():
        folder.write(make())
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(200):
                seen = folder.read()
                assert seen is not None
                assert len(seen.parts) == 1 + seen.pid % 50
        finally:
            done.set()
            writer.join()


def test_a_status_of_another_form_is_an_error_with_a_fix(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.hold():
        (folder.path / "supervisor.json").write_text('{"state": "asleep"}')
        with pytest.raises(UnavailableError, match="another form"):
            folder.read()
