"""The demonstration of the hospital does what it says; in a process of its own, with its Spark."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
from rich.console import Console
from penstock_lab.demo.hospital import run
from penstock_lab.demo.story import Story
story = Story(Console(width=110))
run(story)
print(story.checked, "expectations")
"""


@pytest.mark.needs("java")
def test_four_audiences_see_what_they_need() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 expectations" in done.stdout
    assert "Traceback" not in done.stderr
