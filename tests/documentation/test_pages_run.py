"""What the README and the tutorial show is run as it stands there.

Blocks of a page:
- `yaml` or `python` after a line `<!-- file: NAME -->` is written to that file;
- `sh` is run in the same folder, with Penstock on the PATH;
- `text` after a line `<!-- prints -->` is what the block before it must have printed.
`console` blocks are for people: they set up machines.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.forked_commands import forked_penstock

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^>]*) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL
)


def _run(text: str, folder: Path) -> str:
    bin_folder = str(Path(sys.executable).parent)
    programs = _programs()
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(programs), bin_folder, os.environ["PATH"]]),
        "NO_COLOR": "1",
        "COLUMNS": "120",
        # Other tests may run parts at the same time.
        "PENSTOCK_MONITOR__PORT": "0",
        "PENSTOCK_GATEWAY__MONITOR_PORT": "0",
        "PENSTOCK_SERVER__MONITOR_PORT": "0",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@cache
def _programs() -> Path:
    """Return a folder with a `penstock` that need not import everything each time."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-pages-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = folder / "penstock"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(forked_penstock())} "$@"\n')
    program.chmod(0o700)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Give a folder in which nothing runs any more when the test ends, however it ends."""
    yield tmp_path
    _run("penstock down", tmp_path)


@pytest.mark.needs("mosquitto", "mosquitto-clients")
@pytest.mark.parametrize(
    "page", ["README.md", "docs/tutorial/first-hour.md", "docs/how-to/emergencies.md"]
)
def test_a_page_does_what_it_shows(page: str, folder: Path) -> None:
    follow(page, folder)


def test_the_page_for_two_organisations_does_what_it_shows(folder: Path) -> None:
    follow("docs/how-to/work-with-another-organisation.md", folder)


def test_the_page_for_backups_does_what_it_shows(folder: Path) -> None:
    follow("docs/how-to/back-up-and-restore.md", folder)


def test_the_page_for_front_ends_and_services_does_what_it_shows(folder: Path) -> None:
    follow("docs/how-to/use-the-privacy-sdks.md", folder)


@pytest.mark.needs("java")
def test_the_page_for_spark_jobs_does_what_it_shows(tmp_path: Path) -> None:
    follow("docs/how-to/use-in-your-own-spark-job.md", tmp_path)


def follow(page: str, folder: Path) -> None:
    """Do what a page says, and compare what it prints."""
    printed = ""
    ran = compared = 0
    for block in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
        mark, language, text = block["mark"] or "", block["language"], block["text"]
        if mark.startswith("file: "):
            (folder / mark.removeprefix("file: ")).write_text(text, encoding="utf-8")
        elif language == "sh":
            printed = _run(text, folder)
            ran += 1
        elif mark == "prints":
            assert _words(printed) == _words(text)
            compared += 1
    assert ran >= 2
    assert compared >= 1


def _words(text: str) -> list[list[str]]:
    """Compare what is said, not how wide the columns are."""
    return [line.split() for line in text.strip().splitlines()]
