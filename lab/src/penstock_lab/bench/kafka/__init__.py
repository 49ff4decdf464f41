"""How fast views and roles at Kafka are: a module per part, each with a real broker.

Method:
- One Kafka broker of the development cluster, on loopback, with users and ACLs.
- Each module says what it measures; goals are beside their figures.
"""

from __future__ import annotations

import importlib
from typing import Any

PARTS = ("reconcile", "copy", "latency")


def run(*, quick: bool = False, only: tuple[str, ...] = PARTS) -> dict[str, Any]:
    """Measure all parts, or some, one after another."""
    return {
        part: importlib.import_module(f"penstock_lab.bench.kafka.{part}").measure(quick=quick)
        for part in PARTS
        if part in only
    }
