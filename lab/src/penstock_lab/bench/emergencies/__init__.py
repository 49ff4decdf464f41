"""How fast emergencies are detected, and access in them is decided.

Method: see the modules; each measures one part and says how. `goals` lists the goals of the parts,
and whether they are met on this machine under its current load.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock_lab.bench.tables import Table

# In the order in which they are measured; each is a module here with `run(*, quick)`.
PARTS = (
    "engine",
    "contacts",
    "decisions",
    "gateway",
    "transmission",
    "replication",
    "spark",
)


IN_TABLES = ("transmission",)


def run(*, quick: bool = False, only: tuple[str, ...] = PARTS) -> dict[str, Any]:
    """Measure all parts, or some."""
    chosen = [name for name in PARTS if name in only]
    found = {name: import_module(f"{__name__}.{name}").run(quick=quick) for name in chosen}
    goals = {
        f"{part}: {name}": goal
        for part, figures in found.items()
        for name, goal in figures.pop("goals", {}).items()
    }
    return {"goals": goals, **found}


def tables(figures: dict[str, Any]) -> list[Table]:
    """Return the figures that are told in tables."""
    if "transmission" not in figures:
        return []
    found: list[Table] = import_module(f"{__name__}.transmission").tables(figures["transmission"])
    return found
