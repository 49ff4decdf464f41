"""How long messages take, phase by phase: from a client to the broker, and from there to readers.

    due ──▶ gateway of the publisher ──▶ broker ──▶ gateway of the reader ──▶ reader
    └──────────── c2b ───────────────────┘└──────────────── b2c ────────────────┘
    └──────────────────────────────── c2c ──────────────────────────────────────┘

Rules that hold here:
- A message is named by when it was due. One that was not sent by the measurement does not count;
  one that nobody saw at the broker counts for c2c alone.
- The first phase belongs to the publisher's gateway, the other two to the reader's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, NamedTuple

PHASES = ("c2b", "b2c", "c2c")


class Arrival(NamedTuple):
    """A message at a reader: through which gateway, when it was due, when it was there."""

    place: int
    due: float
    at: float


def split_phases(
    sent: Mapping[float, int],
    seen: Mapping[float, float],
    arrivals: Iterable[Arrival],
    places: int,
) -> list[dict[str, list[float]]]:
    """Return the times of each gateway's messages by phase.

    `sent` has each message's gateway, `seen` when it was at the broker.
    """
    found: list[dict[str, list[float]]] = [{name: [] for name in PHASES} for _ in range(places)]
    for due, place in sent.items():
        if due in seen:
            found[place]["c2b"].append(seen[due] - due)
    for place, due, at in arrivals:
        if due not in sent:
            continue
        found[place]["c2c"].append(at - due)
        if due in seen:
            found[place]["b2c"].append(at - seen[due])
    return found


def spread(times: Iterable[float]) -> dict[str, float]:
    """Return how times are spread, in ms."""
    ordered = sorted(times)
    if not ordered:
        return {"count": 0}
    return {
        "count": len(ordered),
        "mean_ms": round(fmean(ordered) * 1e3, 2),
        "median_ms": round(ordered[len(ordered) // 2] * 1e3, 2),
        "p99_ms": round(ordered[int(0.99 * (len(ordered) - 1))] * 1e3, 2),
    }


def measure_overhead(reports: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return what decisions take on average, in ms; a gateway counts by how many it took."""
    found = {}
    noted = list(reports)
    for phase, part in (("c2b", "settled"), ("b2c", "delivery")):
        count = sum(it[part]["count"] for it in noted)
        total = sum(it[part]["count"] * it[part].get("mean_us", 0.0) for it in noted)
        found[phase] = round(total / count / 1e3, 3) if count else 0.0
    return {**found, "c2c": round(sum(found.values()), 3)}


def count_packets(reports: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return how many packets were decided on in a second, in and out."""
    noted = list(reports)
    found = {
        phase: round(sum(it[part]["count"] / it["seconds"] for it in noted), 1)
        for phase, part in (("c2b", "settled"), ("b2c", "delivery"))
    }
    return {**found, "c2c": round(sum(found.values()), 1)}
