import os
import subprocess
from pathlib import Path

from penstock.supervisor.status import RunFolder
from tests.support.forked_commands import forked_penstock


def run(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    return subprocess.run(
        [*forked_penstock(), *arguments],
        cwd=folder,
        env={**clean, "PENSTOCK_MONITOR__PORT": "0", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_file_it_says_how_to_get_one(tmp_path: Path) -> None:
    done = run(tmp_path, "up")
    assert done.returncode == 2
    assert "penstock init" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text("parts: [brocker]")
    done = run(tmp_path, "up")
    assert done.returncode == 2
    assert "did you mean 'broker'?" in done.stderr


def test_an_external_broker_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text("broker: {mode: external, port: 1883}")
    done = run(tmp_path, "up")
    assert done.returncode == 2
    assert "remove 'broker' from parts" in done.stderr.replace("\n", " ")


def test_a_second_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text("")
    with RunFolder(tmp_path / "penstock-data").hold():
        for arguments in (["up"], ["up", "--detach"]):
            done = run(tmp_path, *arguments)
            assert done.returncode == 3
            assert "supervisor runs" in done.stderr
            assert "Traceback" not in done.stderr


def test_a_monitor_that_cannot_listen_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text("")
    for arguments in (["up"], ["up", "--detach"]):
        done = run(tmp_path, *arguments, PENSTOCK_MONITOR__HOST="203.0.113.7")
        assert done.returncode == 3
        assert "cannot listen on '203.0.113.7'" in done.stderr
        assert "Traceback" not in done.stderr
        assert not RunFolder(tmp_path / "penstock-data").is_held()
