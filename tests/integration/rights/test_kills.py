"""Publishers and workers are killed at named points: nothing accepted is lost."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scale import scaled

ROOT = Path(__file__).parents[3]
POINTS = {
    "before-commit", "after-commit", "before-send", "after-send", "before-recording",
    "after-recording",
}  # fmt: skip


@pytest.mark.needs("postgresql")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_no_accepted_request_is_lost_and_no_status_goes_backwards(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if kind == "postgres":
        url = request.getfixturevalue("postgres_url")
    seed, kills = random.randrange(2**32), scaled(8, long=100)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.rights.kills", str(seed), str(kills), url,
         str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    outcome = json.loads(done.stdout)
    assert outcome["problems"] == [], f"seed {seed}"
    assert sum(outcome["kills"].values()) >= kills
    assert {point for point, count in outcome["kills"].items() if count} == POINTS
