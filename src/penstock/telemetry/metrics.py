"""Prometheus metrics whose labels cannot grow and cannot name anybody.

Rules that hold here:
- A label declares all its values up front; any other value is counted as `other`.
  So the number of series is fixed when the program is written, and no identity, topic
  or other input can become one. The one label that is open is the name of a definition,
  in `Readings`: the data officer chose it, it names no person, and so many are shown at most.
- Metrics are declared once, at import, in the module that counts; `catalogue` lists
  them for the reference.
- Counting never raises: what measures must not stop what is measured.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Generic, Literal, TypeVar

import prometheus_client as prometheus
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from penstock.errors import UsageError, quote

OTHER = "other"
SERIES_LIMIT = 200
_NAME = re.compile(r"penstock_[a-z0-9_]{1,60}", re.ASCII)
_LABEL = re.compile(r"[a-z][a-z0-9_]{0,29}", re.ASCII)
_VALUE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}", re.ASCII)

REGISTRY = prometheus.CollectorRegistry()
prometheus.ProcessCollector(registry=REGISTRY)
prometheus.PlatformCollector(registry=REGISTRY)
prometheus.GCCollector(registry=REGISTRY)

Kind = TypeVar("Kind", bound=MetricWrapperBase)

# Seconds: from what a decision takes to what a person still waits for.
DURATIONS = (1e-5, 1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


@dataclass(frozen=True, slots=True)
class Declaration:
    """One metric as the reference describes it."""

    name: str
    type: str
    help: str
    labels: dict[str, tuple[str, ...]]
    module: str  # which counts on it


_catalogue: dict[str, Declaration] = {}


class Metric(Generic[Kind]):
    """A metric with closed labels; index it with label values for the series to count on.

    >>> DECISIONS = counter("penstock_decisions", "…", outcome=("allowed", "denied"))
    >>> DECISIONS["allowed"].inc()
    """

    def __init__(self, declaration: Declaration, parent: Kind) -> None:
        self.declaration = declaration
        spaces = [(*values, OTHER) for values in declaration.labels.values()]
        # All series exist from the start: a rate over a series that appears with its
        # first event would miss that event.
        self._series: dict[tuple[str, ...], Kind] = {}
        for values in product(*spaces):
            self._series[values] = parent.labels(*values) if values else parent
        self._values = [frozenset(space) for space in spaces]

    def __getitem__(self, values: str | tuple[str, ...]) -> Kind:
        """Return the series of these label values, in the order they were declared."""
        key = (values,) if isinstance(values, str) else values
        found = self._series.get(key)
        return found if found is not None else self._series[self._mapped(key)]

    @property
    def plain(self) -> Kind:
        """The one series of a metric without labels."""
        return self._series[()]

    def _mapped(self, key: Sequence[object]) -> tuple[str, ...]:
        padded = [*key, *[OTHER] * len(self._values)]
        return tuple(
            value if isinstance(value, str) and value in known else OTHER
            for value, known in zip(padded, self._values, strict=False)
        )


class Readings:
    """A figure for each definition of a kind, such as views, as it was read last.

    >>> LAG = readings("penstock_view_lag", "gauge", "…", "view")
    >>> LAG.show({"research": 17})
    """

    def __init__(self, declaration: Declaration, label: str) -> None:
        self.declaration = declaration
        self._label = label
        self._values: dict[str, float] = {}

    def show(self, values: Mapping[str, float]) -> None:
        """Replace all figures; of too many, those of the first names are shown."""
        self._values = {name: values[name] for name in sorted(values)[:SERIES_LIMIT]}

    def collect(self) -> Iterator[Family]:
        """Yield the figures, as Prometheus asks for them."""
        made: type[CounterMetricFamily | GaugeMetricFamily] = (
            CounterMetricFamily if self.declaration.type == "counter" else GaugeMetricFamily
        )
        family = made(self.declaration.name, self.declaration.help, labels=[self._label])
        for name, value in self._values.items():
            family.add_metric([name], value)
        yield family

    def describe(self) -> Iterator[Family]:
        """Yield the figures without values: nothing is read when it is registered."""
        yield from Readings(self.declaration, self._label).collect()


def readings(name: str, kind: Literal["counter", "gauge"], help_text: str, label: str) -> Readings:
    """Declare a figure for each definition; a counter's name ends in `_total`."""
    declaration = _declare(name, kind, help_text, {label: ("name",)})
    made = Readings(declaration, label)
    REGISTRY.register(made)
    return made


def counter(name: str, help_text: str, **labels: Sequence[str]) -> Metric[prometheus.Counter]:
    """Declare a count of events; Prometheus shows it as `<name>_total`."""
    declaration = _declare(f"{name}_total", "counter", help_text, labels)
    parent = prometheus.Counter(name, help_text, list(labels), registry=REGISTRY)
    return Metric(declaration, parent)


def gauge(name: str, help_text: str, **labels: Sequence[str]) -> Metric[prometheus.Gauge]:
    """Declare a level that goes up and down."""
    declaration = _declare(name, "gauge", help_text, labels)
    parent = prometheus.Gauge(name, help_text, list(labels), registry=REGISTRY)
    return Metric(declaration, parent)


def histogram(
    name: str, help_text: str, buckets: Sequence[float] = DURATIONS, **labels: Sequence[str]
) -> Metric[prometheus.Histogram]:
    """Declare a distribution; of durations in seconds unless buckets say otherwise."""
    declaration = _declare(name, "histogram", help_text, labels)
    parent = prometheus.Histogram(
        name, help_text, list(labels), buckets=tuple(buckets), registry=REGISTRY
    )
    return Metric(declaration, parent)


def catalogue() -> list[Declaration]:
    """List every metric that has been declared so far, by name."""
    return [_catalogue[name] for name in sorted(_catalogue)]


def render() -> bytes:
    """Return all metrics in the text format of Prometheus."""
    return prometheus.generate_latest(REGISTRY)


CONTENT_TYPE = prometheus.CONTENT_TYPE_PLAIN_0_0_4


def _declare(name: str, kind: str, help_text: str, labels: dict[str, Sequence[str]]) -> Declaration:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{quote(name)} is not a metric name", fix="use penstock_<what>_<unit>")
    if name in _catalogue:
        raise UsageError(f"the metric {quote(name)} is declared twice")
    for label, values in labels.items():
        wrong = [value for value in values if not _VALUE.fullmatch(value) or value == OTHER]
        if not _LABEL.fullmatch(label) or wrong or not values or len(set(values)) < len(values):
            raise UsageError(
                f"the label {quote(label)} of {quote(name)} has no usable list of values"
                + (f": {quote(wrong[0])}" if wrong else ""),
                fix="list its distinct lower-case values; 'other' is added by itself",
            )
    series = prod(len(values) + 1 for values in labels.values())
    if series > SERIES_LIMIT:
        raise UsageError(
            f"{quote(name)} would have {series} series, more than {SERIES_LIMIT}",
            fix="drop a label",
        )
    closed = {label: tuple(values) for label, values in labels.items()}
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals["__name__"] == __name__:
        frame = frame.f_back
    module = frame.f_globals["__name__"] if frame else ""
    _catalogue[name] = Declaration(name, kind, help_text, closed, module)
    return _catalogue[name]
