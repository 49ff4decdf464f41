"""Charts as SVG, made on the server: no library, no script, no style in the page.

Rules that hold here:
- A chart says in words what it shows (`<title>`), for who cannot see it.
- Colours come from classes: both schemes have their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup, escape

WIDTH: Final = 640
HEIGHT: Final = 200
_LEFT: Final = 48
_BOTTOM: Final = 24
_TOP: Final = 10
_MOST_POINTS: Final = 400


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


def line_chart(series: Sequence[Series], label: str, *, most: float | None = None) -> Markup:
    """Return lines over a common axis from 0, with marks at the quarters."""
    values = [value for it in series for value in it.values]
    top = most if most is not None else _round_up(max(values, default=0.0))
    top = top or 1.0
    inner, depth = WIDTH - _LEFT - 8, HEIGHT - _TOP - _BOTTOM
    parts: list[str] = []
    for quarter in range(5):
        height = _TOP + depth * (4 - quarter) / 4
        parts.append(f'<path class="grid" d="M{_LEFT} {height:.1f}H{WIDTH - 8}"/>')
        shown = f"{top * quarter / 4:.3g}"
        parts.append(f'<text class="axis" x="{_LEFT - 8}" y="{height + 4:.1f}">{shown}</text>')
    for number, it in enumerate(series):
        points = list(it.values)[-_MOST_POINTS:]
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
    ).format(WIDTH, HEIGHT, label, Markup("".join(parts)))  # noqa: S704 - names are escaped


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
