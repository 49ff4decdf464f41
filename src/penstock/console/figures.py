"""What the parts measure: metrics, read where somebody looks, rates between two looks, charts.

    monitor address ─▶ one page of all parts ─▶ samples ─▶ sums by name and labels ─▶ rates

Rules that hold here:
- However many look, the metrics are read once a second at most, and by one at a time: a console
  that nobody looks at reads nothing, and a hundred cost the gateway no more than one.
- Where `penstock up` does not run, the parts are asked one by one at the ports of the settings.
- What cannot be read is said to be unknown, never 0.
- A chart is SVG made here: no library, no script, no style in the page. It says in words what it
  shows (`<title>`), for who cannot see it; colours come from classes, one set for each scheme.
"""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from markupsafe import Markup, escape
from prometheus_client.parser import text_string_to_metric_families

from penstock.config import Config

_SECONDS: Final = 1.0
_TIMEOUT: Final = 2.0
_SIZE_LIMIT: Final = 8 << 20
_KEPT: Final = 120
_SPAN: Final = 10.0
"""Over how many seconds rates are taken."""
_OK: Final = 200

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Reading:
    """All samples of one moment."""

    at: float
    samples: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of a metric over what is not named; None where nobody measures it."""
        found = self.samples.get(name)
        if found is None:
            return None
        wanted = set(labels.items())
        return sum(value for held, value in found.items() if wanted <= held)

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Return the sums of a metric by the values of one label."""
        wanted, sums = set(labels.items()), dict[str, float]()
        for held, value in self.samples.get(name, {}).items():
            if wanted <= held:
                word = dict(held).get(label, "")
                sums[word] = sums.get(word, 0.0) + value
        return sums


class Figures:
    """The metrics of an installation, as far as they are asked for."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._read: deque[Reading] = deque(maxlen=_KEPT)
        self._asked = float("-inf")
        self.reached = False
        """Whether anybody answered when it was asked last."""

    def latest(self) -> Reading:
        """Return the samples of now, read anew where the last are old."""
        with self._lock:
            now = time.monotonic()
            if now - self._asked >= _SECONDS or not self._read:
                self._asked = now
                pages = list(self._ask())
                self.reached = bool(pages)
                self._read.append(Reading(now, _add_up(pages)))
            return self._read[-1]

    def rate(self, name: str, **labels: str) -> float | None:
        """Return how much a counter grows per second; None where it is not known."""
        last = self.latest()
        with self._lock:
            earlier = next((it for it in self._read if last.at - it.at <= _SPAN), last)
        now, then = last.total(name, **labels), earlier.total(name, **labels)
        if now is None or then is None or last.at <= earlier.at or now < then:
            return None
        return (now - then) / (last.at - earlier.at)

    def course(self, name: str, **labels: str) -> list[float]:
        """Return how much a counter grew per second, look by look."""
        with self._lock:
            kept = list(self._read)
        found = []
        for before, after in itertools.pairwise(kept):
            then, now = before.total(name, **labels), after.total(name, **labels)
            if then is not None and now is not None and now >= then:
                found.append((now - then) / (after.at - before.at))
        return found

    def _ask(self) -> Iterator[str]:
        config = self._config
        if not config.monitor.enabled:
            return
        host = config.monitor.host
        whole = _fetch(host, config.monitor.port)
        if whole is not None:
            yield whole
            return
        first = config.gateway.monitor_port
        gateways = range(first, first + config.gateway.workers) if first else ()
        others = (
            config.pipeline.monitor_port,
            config.kafka.monitor_port,
            config.rights.monitor_port,
            config.server.monitor_port,
        )
        for port in (*gateways, *others):
            page = _fetch(host, port)
            if page is not None:
                yield page


def _fetch(host: str, port: int) -> str | None:
    if not port:
        return None
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        content = answer.read(_SIZE_LIMIT + 1)
        if answer.status != _OK or len(content) > _SIZE_LIMIT:
            return None
        return content.decode()
    except (OSError, http.client.HTTPException, UnicodeDecodeError):
        return None
    finally:
        connection.close()


def _add_up(pages: Iterable[str]) -> dict[str, dict[Labels, float]]:
    found: dict[str, dict[Labels, float]] = {}
    for page in pages:
        try:
            families = list(text_string_to_metric_families(page))
        except ValueError:
            continue
        for family in families:
            for sample in family.samples:
                labels = frozenset((k, v) for k, v in sample.labels.items() if k != "process")
                held = found.setdefault(sample.name, {})
                held[labels] = held.get(labels, 0.0) + sample.value
    return found


WIDTH: Final = 640
HEIGHT: Final = 200
_LEFT: Final = 48
_BOTTOM: Final = 24
_TOP: Final = 10
MOST_POINTS: Final = 400


class Series(NamedTuple):
    """One line of a chart."""

    name: str
    values: Sequence[float]


def sparkline(values: Sequence[float], label: str, *, width: int = 120, height: int = 28) -> Markup:
    """Return a small line without axes."""
    points = list(values)[-width:]
    if len(points) < 2:  # noqa: PLR2004 - a line has two ends
        return Markup(
            '<svg class="spark" viewBox="0 0 {0} {1}" aria-hidden="true" '
            'preserveAspectRatio="none"><path class="spark-base" d="M0 {2}H{0}"/></svg>'
        ).format(width, height, height - 2)
    most = max(*points, 1e-9)
    step = width / (len(points) - 1)
    ways = [
        f"{index * step:.1f} {height - 2 - (height - 4) * value / most:.1f}"
        for index, value in enumerate(points)
    ]
    line = "M" + "L".join(ways)
    return Markup(
        '<svg class="spark" viewBox="0 0 {0} {1}" role="img" preserveAspectRatio="none">'
        "<title>{2}</title>"
        '<path class="spark-area" d="{3}L{0} {1}L0 {1}Z"/><path class="spark-line" d="{3}"/></svg>'
    ).format(width, height, label, line)


def line_chart(
    series: Sequence[Series], label: str, *, most: float | None = None, width: int = WIDTH
) -> Markup:
    """Return lines over a common axis from 0, with marks at the quarters."""
    values = [value for it in series for value in it.values]
    top = most if most is not None else _round_up(max(values, default=0.0))
    top = top or 1.0
    inner, depth = width - _LEFT - 8, HEIGHT - _TOP - _BOTTOM
    parts: list[str] = []
    for quarter in range(5):
        height = _TOP + depth * (4 - quarter) / 4
        parts.append(f'<path class="grid" d="M{_LEFT} {height:.1f}H{width - 8}"/>')
        shown = f"{top * quarter / 4:.3g}"
        parts.append(f'<text class="axis" x="{_LEFT - 8}" y="{height + 4:.1f}">{shown}</text>')
    for number, it in enumerate(series):
        points = list(it.values)[-MOST_POINTS:]
        if not points:
            continue
        step = inner / max(1, len(points) - 1)
        ways = "L".join(
            f"{_LEFT + index * step:.1f} {_TOP + depth * (1 - min(value, top) / top):.1f}"
            for index, value in enumerate(points)
        )
        name = escape(it.name)
        parts.append(
            f'<path class="line line-{number % 4}" d="M{ways}"><title>{name}</title></path>'
        )
        parts.append(
            f'<text class="legend legend-{number % 4}" x="{_LEFT + 110 * number}" '
            f'y="{HEIGHT - 6}">{name}</text>'
        )
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img"><title>{}</title>{}</svg>'
    ).format(width, HEIGHT, label, Markup("".join(parts)))  # noqa: S704 - names are escaped


def stacked_bar(parts: Mapping[str, float], label: str) -> Markup:
    """Return a bar of parts; a class for each says what it is, so do the words for who hears it."""
    total = sum(parts.values())
    told = ", ".join(f"{value:g} {name}" for name, value in parts.items() if value) or "nothing"
    drawn, at = [], 0.0
    for name, value in parts.items():
        if value > 0 and total:
            width = 100 * value / total
            drawn.append(
                Markup('<rect class="part part-{}" x="{:.2f}" width="{:.2f}" height="8"/>').format(
                    name.replace(" ", "-"), at, width
                )
            )
            at += width
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" role="img" preserveAspectRatio="none">'
        '<title>{}: {}</title><rect class="part-none" width="100" height="8"/>{}</svg>'
    ).format(label, told, Markup("").join(drawn))


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    unit = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 0.01
    return next((unit * it for it in (1, 2, 5, 10) if unit * it >= value), value)


class Span(NamedTuple):
    """A time that something was in one state."""

    begin: datetime
    end: datetime
    name: str
    shade: int
    """From 1 to 5, as situations of plans have them."""
    open: bool = False
    """Whether it goes on."""


_WIDE: Final = 960
_LABEL: Final = 190
_ROW: Final = 30
_NAMED: Final = 7.0
"""How wide a letter is, about."""


def span_chart(rows: Sequence[tuple[str, Sequence[Span]]], now: datetime, label: str) -> Markup:
    """Return bars along the time up to now, a row for each name; nothing where there are none."""
    begins = [it.begin for _, spans in rows for it in spans]
    if not begins:
        return Markup("")
    start = min(begins)
    length = max(60.0, (now - start).total_seconds())
    inner, height = _WIDE - _LABEL - 8, _ROW * len(rows) + 26

    def place(moment: datetime) -> float:
        return _LABEL + inner * (1 - (now - moment).total_seconds() / length)

    parts: list[Markup] = []
    for quarter in range(5):
        x = _LABEL + inner * quarter / 4
        shown = "now" if quarter == 4 else f"{tell_age(length * (4 - quarter) / 4)} ago"  # noqa: PLR2004 - the end of the axis
        anchor = ("start", "middle", "middle", "middle", "end")[quarter]
        parts.append(
            Markup(
                '<path class="grid" d="M{0:.1f} 0V{1}"/>'
                '<text class="axis axis-{2}" x="{0:.1f}" y="{3}">{4}</text>'
            ).format(x, height - 22, anchor, height - 6, shown)
        )
    for number, (name, spans) in enumerate(rows):
        top = _ROW * number + 4
        short = name if len(name) <= 26 else f"{name[:25]}…"  # noqa: PLR2004 - the room there is
        parts.append(
            Markup('<text class="row-name" x="0" y="{}">{}<title>{}</title></text>').format(
                top + 15, short, name
            )
        )
        for it in spans:
            x = max(_LABEL, place(it.begin))
            width = max(3.0, place(it.end) - x)
            told = f"{it.name}, {tell_age((it.end - it.begin).total_seconds())}"
            parts.append(
                Markup(
                    '<g class="span{}"><title>{}</title><rect class="shade-{}" x="{:.1f}" y="{}" '
                    'width="{:.1f}" height="22" rx="5"/>{}</g>'
                ).format(
                    " span-open" if it.open else "",
                    told + (", and goes on" if it.open else ""),
                    it.shade,
                    x,
                    top,
                    width,
                    Markup('<text x="{:.1f}" y="{}">{}</text>').format(x + 7, top + 15, it.name)
                    if width > len(it.name) * _NAMED + 14
                    else "",
                )
            )
    return Markup(
        '<svg class="spans" viewBox="0 0 {} {}" role="img"><title>{}</title>{}</svg>'
    ).format(_WIDE, height, label, Markup("").join(parts))


def tell_age(seconds: float) -> str:
    """Return a length of time in its largest unit."""
    for unit, worth in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= worth:
            return f"{seconds / worth:.1f}".removesuffix(".0") + f" {unit}"
    return f"{max(0.0, seconds):.0f} s"
