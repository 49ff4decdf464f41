"""How fast emergencies are detected, and access in them is decided.

Method: see the modules; each measures one part and says how. `goals` lists the goals of the parts,
and whether they are met on this machine under its current load.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

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


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure all parts."""
    found = {name: import_module(f"{__name__}.{name}").run(quick=quick) for name in PARTS}
    goals = {
        f"{part}: {name}": goal
        for part, figures in found.items()
        for name, goal in figures.pop("goals", {}).items()
    }
    return {"goals": goals, **found}
