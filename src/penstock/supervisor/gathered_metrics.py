"""The metrics of all parts at one address: what `penstock up` answers at its own `/metrics`.

Rules that hold here:
- Each sample keeps its labels and gains `process`, the part that it comes from; the second and
  further workers of a part have a number behind its name.
- A part that does not answer in time, answers nonsense or too much is left out;
  `penstock_part_scraped` tells which answered. The others are told all the same.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import prometheus_client as prometheus
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock.supervisor.parts import PARTS
from penstock.telemetry import metrics

SECONDS: Final = 1.5
SIZE_LIMIT: Final = 8 << 20
OWN: Final = "supervisor"
_OK: Final = 200

SCRAPED = metrics.gauge(
    "penstock_part_scraped",
    "Whether the metrics of a part were there when all were gathered last: 1, or 0",
    part=tuple(PARTS),
)

Address = tuple[str, int]


def gather(monitors: Mapping[str, Sequence[Address]]) -> bytes:
    """Return our own metrics and those that the parts answer with now, as one page."""
    asked = [
        (part, number, it) for part, all_ in monitors.items() for number, it in enumerate(all_)
    ]
    with ThreadPoolExecutor(max_workers=max(1, len(asked))) as pool:
        pages = list(pool.map(lambda it: fetch(it[2]), asked))
    for part in monitors:
        answered = [page for (name, _, _), page in zip(asked, pages, strict=True) if name == part]
        SCRAPED[part].set(int(all(page is not None for page in answered)))
    named = [
        (f"{part}-{number}" if number else part, page)
        for (part, number, _), page in zip(asked, pages, strict=True)
        if page is not None
    ]
    return merge([(OWN, metrics.render().decode()), *named])


def fetch(address: Address) -> str | None:
    """Return the page of one process; None where there is none that can be read."""
    connection = http.client.HTTPConnection(*address, timeout=SECONDS)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        content = answer.read(SIZE_LIMIT + 1)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if answer.status != _OK or len(content) > SIZE_LIMIT:
        return None
    try:
        text = content.decode()
        list(text_string_to_metric_families(text))
    except ValueError:
        return None
    return text


def merge(pages: Iterable[tuple[str, str]]) -> bytes:
    """Put pages together: a family stands once, with the samples of all processes."""
    families: dict[str, Metric] = {}
    for process, text in pages:
        for found in text_string_to_metric_families(text):
            family = families.setdefault(
                found.name, Metric(found.name, found.documentation, found.type)
            )
            family.samples += [
                sample._replace(labels={**sample.labels, "process": process})
                for sample in found.samples
            ]
    return prometheus.generate_latest(_Merged(families.values()))


class _Merged(prometheus.CollectorRegistry):
    """What `generate_latest` asks for its families."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families
