"""How fast Kafka follows: a module for each part, each at a real broker of its own machine.

Method:
- One Kafka broker of the development cluster, on loopback, with users and rules.
- What is measured is said in each module; figures that have a goal stand beside it.
"""

from __future__ import annotations

import importlib
from typing import Any

PARTS = ("reconcile", "copy", "latency")


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure all parts, one after another."""
    return {
        part: importlib.import_module(f"penstock_lab.bench.kafka.{part}").measure(quick=quick)
        for part in PARTS
    }
