"""How fast emergencies are detected, and access in them is decided.

Method: see the modules; each measures one part and says how. `goals` gathers what the parts
are held to, and whether they meet it on this machine, busy as it is.
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
    "sharing",
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
