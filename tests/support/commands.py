"""Commands of the command line, run in the process of the test.

A process of its own takes a second of a processor to import what the test has loaded already.
Tests of processes (signals, kills, what is told while it runs) start one themselves.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

import pytest

from penstock.cli import main


def run_command(
    folder: Path, *words: str, text: str = "", env: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """Run `penstock WORDS` in a folder, with an input, and return what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with (
        chdir(folder),
        patch.dict(os.environ, env or {}),
        patch("sys.stdin", io.StringIO(text)),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main(list(words))
    code = ended.value.code
    return CompletedProcess(
        words, code if isinstance(code, int) else 0, out.getvalue(), err.getvalue()
    )
