"""How fast emergencies are detected, and access in them is decided.

Method: see the modules; each measures one part and says how.
"""

from __future__ import annotations

from typing import Any

from penstock.bench.emergencies import contacts, decisions, engine, gateway


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure the engine alone, contact tracing, decisions, and the gateway as a whole."""
    return {
        "engine": engine.run(quick=quick),
        "contacts": contacts.run(quick=quick),
        "decisions": decisions.run(quick=quick),
        "gateway": gateway.run(quick=quick),
    }
