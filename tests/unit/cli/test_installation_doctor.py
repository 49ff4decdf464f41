import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_commands import forked_penstock


def run(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    return subprocess.run(
        [*forked_penstock(), *arguments],
        cwd=folder,
        env={**clean, "PENSTOCK_MONITOR__PORT": "0", "COLUMNS": "200", **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], dict[str, Any]]:
    (line,) = done.stdout.splitlines()
    return {(item["topic"], item["name"]): item for item in json.loads(line)["findings"]}


@pytest.mark.needs("mosquitto")
def test_on_a_fresh_folder_nothing_is_in_the_way_and_nothing_is_made(tmp_path: Path) -> None:
    done = run(tmp_path, "doctor")
    assert done.returncode == 0, done.stdout
    assert "ready to run" in done.stdout
    assert "penstock init" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("mosquitto")
def test_json_has_every_finding(tmp_path: Path) -> None:
    done = run(tmp_path, "doctor", "--json")
    assert done.returncode == 0
    found = findings(done)
    assert json.loads(done.stdout)["ok"] is True
    for topic, name in (
        ("versions", "penstock"),
        ("versions", "python"),
        ("packages", "spark"),
        ("programs", "java"),
        ("programs", "mosquitto"),
        ("programs", "postgresql"),
        ("programs", "chromium"),
        ("programs", "jars"),
        ("settings", "disk"),
        ("secrets", "audit.signing_key"),
        ("store", "database"),
        ("ports", "broker"),
        ("clock", "time"),
    ):
        assert (topic, name) in found


def test_a_program_that_the_parts_need_and_that_is_missing_stops(tmp_path: Path) -> None:
    # The finders look beyond PATH, so the program is hidden where they look.
    hide = (
        "import penstock.components.finders as f; f._which = lambda *names: None;"
        "from penstock.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", hide, "doctor", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3
    found = findings(done)["programs", "mosquitto"]
    assert found["verdict"] == "missing"
    assert "apt-get install mosquitto" in found["fix"]
    assert findings(done)["programs", "maven"]["verdict"] == "warning"


def test_keys_that_others_can_read_stop(tmp_path: Path) -> None:
    keys = tmp_path / "penstock-data" / "keys"
    keys.mkdir(parents=True)
    (keys / "pseudonym.key").write_text("x" * 64)
    (keys / "pseudonym.key").chmod(0o644)
    done = run(tmp_path, "doctor")
    assert done.returncode == 3
    assert "chmod 600" in done.stdout
    assert "1 problem to fix before the parts can run" in done.stdout


def test_a_wrong_file_is_reported_with_all_its_problems(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text("stor: 1\nlog: {level: loud}\n")
    done = run(tmp_path, "doctor", "--json")
    assert done.returncode == 2
    problems = json.loads(done.stderr)["problems"]
    assert [item["place"] for item in problems] == [
        "penstock.yaml:1:1 (stor)",
        "penstock.yaml:2:14 (log.level)",
    ]
