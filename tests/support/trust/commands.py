"""Commands about other domains, and what they print as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.commands import run_command


def run(folder: Path, *words: str, fails: int = 0) -> Any:
    done = run_command(folder, *words, "--json")
    assert done.returncode == fails, done.stderr
    return json.loads(done.stderr if fails > 1 else done.stdout)


def key_of(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    return str(run(folder, "cert", "key")["key"])
