"""How soon a command line answers: from the start of the process to its end.

Method:
- An installation of a few definitions in a temporary folder: purposes, a policy with an
  expression, a stream and its view. Each command is a process of its own, as at a prompt.
- Rounds are interleaved; of each command the median is told, in time and in CPU time, and which
  share of them kept the aim. The first round, which may compile modules, is left out.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.cli.entry import VERBS
from penstock.errors import UnavailableError
from penstock_lab.bench.tables import Table, show

AIM_MS: Final = 350.0
ROUNDS: Final = 10
IN_TABLES: Final = ("commands", "help")
PENSTOCK: Final = (sys.executable, "-c", "from penstock.cli import main; main()")
DENIED_OR_DOWN: Final = (0, 1, 3)
"""The exit codes of commands that have answered: `check` denies, `status` finds nothing up."""

DEFINITIONS: Final = """
kind: purpose
name: care
---
kind: purpose
name: research
---
kind: reservation
name: ward/#
allow: [care]
---
kind: vocabulary
name: ward
subject: {ward: int}
object: {room: int}
---
kind: policy
name: nurses
filter: ward/#
allow: read
subject: group:nurses
when: s.ward == 3 && o.room < 10
---
kind: enforcement
name: default
policies: required
---
kind: group
name: nurses
members: ["user:nina"]
---
kind: stream
name: readings
fields: [{name: patient, type: string}, {name: age, type: int}]
---
kind: view
name: ages
stream: readings
anonymizers: [{anonymizer: suppression, keys: [patient]}]
"""

COMMANDS: Final = {
    "check": ("check", "--topic", "ward/3", "--subject", "nina", "--purpose", "care"),
    "get": ("get",),
    "apply": ("apply", "-f", "definitions.yaml"),
    "status": ("status",),
    "views list": ("views", "list"),
}


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure the commands that are asked most often, and the help of every verb."""
    rounds = 2 if quick else ROUNDS
    helps = {name: (name, "--help") for name in VERBS} | {"penstock": ("--help",)}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        (folder / "definitions.yaml").write_text(DEFINITIONS)
        _measure(folder, COMMANDS["apply"])
        return {
            "load_before": round(os.getloadavg()[0], 2),
            "rounds": rounds,
            "aim_ms": AIM_MS,
            "commands": _measure_all(folder, COMMANDS, rounds),
            "help": _measure_all(folder, helps, rounds),
        }


def _measure_all(
    folder: Path, commands: Mapping[str, tuple[str, ...]], rounds: int
) -> dict[str, dict[str, float]]:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, words in commands.items():
            figures = _measure(folder, words)
            if number:
                taken[name].append(figures)
    return {name: _summarize(figures) for name, figures in taken.items()}


def _measure(folder: Path, words: Sequence[str]) -> tuple[float, float]:
    """Run a command line, and return its time and its CPU time in milliseconds."""
    with (folder / "output").open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            [*PENSTOCK, *words], cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in DENIED_OR_DOWN:
        said = (folder / "output").read_text(errors="replace")[-500:]
        raise UnavailableError(f"penstock {' '.join(words)} failed: {said}")
    return seconds * 1000, (usage.ru_utime + usage.ru_stime) * 1000


def _summarize(figures: Sequence[tuple[float, float]]) -> dict[str, float]:
    times = [time_ms for time_ms, _ in figures]
    return {
        "median_ms": round(statistics.median(times), 1),
        "cpu_ms": round(statistics.median(cpu_ms for _, cpu_ms in figures), 1),
        "within_aim": round(sum(it <= AIM_MS for it in times) / len(times), 2),
    }


def tables(figures: dict[str, Any]) -> list[Table]:
    """Return the figures for people, the slowest first."""
    return [
        Table(
            title,
            ("command", "median ms", "CPU ms", "within the aim"),
            [
                (name, show(it["median_ms"], 0), show(it["cpu_ms"], 0), f"{it['within_aim']:.0%}")
                for name, it in sorted(figures[key].items(), key=lambda item: -item[1]["median_ms"])
            ],
        )
        for key, title in (("commands", "Commands"), ("help", "Help of each verb"))
    ]
