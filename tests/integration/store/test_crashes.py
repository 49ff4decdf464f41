"""Nothing acknowledged is lost, nothing half-applied is seen: writers and servers are killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.scale import scaled

PROGRAM = Path(__file__).parents[2] / "support" / "store" / "crashes.py"


def crash(what: str, kills: int, *where: str) -> dict[str, Any]:
    seed = random.randrange(2**32)
    command = [sys.executable, str(PROGRAM), what, str(seed), str(kills), *where]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=scaled(250))
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    outcome: dict[str, Any] = json.loads(done.stdout)
    assert outcome["problems"] == [], f"seed {seed}"
    return outcome


def test_killed_writers_on_sqlite(tmp_path: Path) -> None:
    stores = [f"sqlite:///{tmp_path}/{number}.db" for number in range(10)]
    kills = scaled(20)
    outcome = crash("writers", kills, *stores)
    assert outcome["kills"] == 10 * kills
    assert outcome["acknowledged"] > 50


def test_who_holds_a_sqlite_store_open_keeps_its_log(tmp_path: Path) -> None:
    """Commands come and go, some are killed; neither their changes nor the holder's are lost."""
    stores = [f"sqlite:///{tmp_path}/{number}.db" for number in range(3)]
    kills = scaled(10)
    outcome = crash("visits", kills, *stores)
    assert outcome["kills"] == 3 * (kills + 1)  # the visitors and the holder, of each store
    assert outcome["acknowledged"] > 60


@pytest.mark.needs("postgresql")
def test_killed_writers_on_postgresql(postgres_url: str) -> None:
    kills = scaled(40)
    outcome = crash("writers", kills, postgres_url)
    assert outcome["kills"] == kills
    assert outcome["acknowledged"] > 10


@pytest.mark.needs("postgresql")
def test_a_postgresql_server_that_crashes() -> None:
    kills = scaled(4)
    outcome = crash("servers", kills)
    assert outcome["kills"] == 2 * kills  # two writers lost their server each time
    assert outcome["acknowledged"] >= 8
