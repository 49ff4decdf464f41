"""What writing messages to the event log costs on their way through the gateway.

Method:
- The ladder of `gateway` (its load, its rounds, its ratios), with the gateway without
  streams, with a hundred streams that nothing feeds, and with one that every message feeds:
  as it comes, and with a level of the topic as a field and as the key.
- How many records the event log holds in the end is reported, too.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.components import MosquittoServer
from penstock.eventlog import EventLog
from penstock.model.document import Document
from penstock_lab.bench.gateway.ladder import CLIENTS, Effort, climb
from penstock_lab.bench.gateway.rungs import DIRECT, NO_RULES, RESERVATIONS, Rung
from penstock_lab.bench.gateway.server import DESCRIPTORS
from penstock_lab.bench.load.generator import raise_descriptor_limit

STREAMS = 100
_FIELDS = [{"name": "vehicle", "type": "string"}]


@dataclass(frozen=True, slots=True)
class StreamRung(Rung):
    """A gateway with streams and without other rules."""

    patterns: tuple[str, ...] = ()
    subject: str | None = None

    def documents(self, reservations: int = RESERVATIONS) -> list[Document]:
        """Return the streams, one for each pattern."""
        del reservations
        body: dict[str, Any] = {"fields": _FIELDS}
        if self.subject is not None:
            body["subject"] = self.subject
        return [
            Document("stream", f"stream-{number}", {**body, "from": [pattern]})
            for number, pattern in enumerate(self.patterns)
        ]


ELSEWHERE = StreamRung(
    "streams_elsewhere",
    f"{STREAMS} streams that nothing feeds",
    rules=False,
    patterns=tuple(f"elsewhere{number}/+vehicle/#" for number in range(STREAMS)),
)
RECORDED = StreamRung(
    "recorded", "every message recorded as it comes", rules=False, patterns=("#",)
)
KEYED = StreamRung(
    "recorded_with_key",
    "every message recorded with a level of its topic as field and key",
    rules=False,
    patterns=("+/+vehicle/#",),
    subject="vehicle",
)
LADDER = (DIRECT, NO_RULES, ELSEWHERE, RECORDED, KEYED)


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure everything; with `quick` only to see that it runs."""
    raise_descriptor_limit(DESCRIPTORS)
    effort = Effort(1, 0.7, 0.3) if quick else Effort(5, 3.0, 0.7)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        with MosquittoServer(folder / "broker", persistent=False) as broker:
            ladder = climb(LADDER, folder, broker, effort)
        return {
            "load": {"clients": CLIENTS, "rounds": effort.rounds, "seconds": effort.seconds},
            "rungs": {rung.name: {"about": rung.about, **ladder[rung.name]} for rung in LADDER},
            "records": _count_records(folder, effort.rounds),
        }


def _count_records(folder: Path, rounds: int) -> int:
    """Count what the recording rungs wrote, in all rounds."""
    logs = [
        EventLog(folder / f"{rung.name}-0-{number}" / "eventlog").topic("stream-0")
        for rung in (RECORDED, KEYED)
        for number in range(rounds)
    ]
    return sum(log.next_offset for log in logs)
