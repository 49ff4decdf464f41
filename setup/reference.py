"""Writes the generated parts of the reference anew: settings, kinds, commands.

Each page has a head that people wrote, a mark, and what follows from the models.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import penstock.cli.reference
import penstock.config.reference
import penstock.definitions.schemas
import penstock.gateway.counters
import penstock.gateway.recording.recorder
import penstock.gateway.service.emergencies
import penstock.kafka.watch
import penstock.pipeline.service.metrics
import penstock.store.audit.writer
import penstock.supervisor.part_runner
import penstock.telemetry.logs

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
MARK = "<!-- What follows is written by `make docs`. -->\n"
# Importing a part is what makes its metrics and log fields known.
PARTS = (
    penstock.gateway.counters,
    penstock.gateway.service.emergencies,
    penstock.gateway.recording.recorder,
    penstock.kafka.watch,
    penstock.pipeline.service.metrics,
    penstock.store.audit.writer,
    penstock.supervisor.part_runner,
    penstock.telemetry.logs,
)
PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": penstock.config.reference.write_reference,
    "definitions.md": penstock.definitions.schemas.write_reference,
    "command-line.md": penstock.cli.reference.write_commands,
    "metrics-and-logs.md": penstock.cli.reference.write_metrics,
}


def make_page(name: str) -> str:
    """Return the page as it should be."""
    head, mark, _ = (FOLDER / name).read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise SystemExit(f"docs/reference/{name} has lost its mark: {MARK.strip()}")
    return f"{head}{MARK}\n{PAGES[name]()}"


if __name__ == "__main__":
    for page in PAGES:
        (FOLDER / page).write_text(make_page(page), encoding="utf-8")
        print(f"docs/reference/{page}")
