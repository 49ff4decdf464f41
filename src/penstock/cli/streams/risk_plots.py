"""Draws the risk of a view: sizes of groups, risks of records, loss over time.

Colours are of the palette by Okabe and Ito, which people with colour blindness can tell
apart; nothing is told by colour alone. A panel that would have one point is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import matplotlib as mpl
import matplotlib.dates
import matplotlib.ticker
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from penstock.errors import UsageError, quote
from penstock.risk.figures import Bar
from penstock.risk.measurement import Moment, Risk

BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
VERMILION: Final = "#D55E00"
INK: Final = "#333333"
PALE: Final = "#DDDDDD"
FORMATS: Final = (".png", ".svg")
MOST_POINTS: Final = 2_000
WIDTH: Final = 0.82
LEAST_BARS: Final = 5
ROOM: Final = 1.3
"""How far the axis goes on above the highest bar, so that the legend stands on none."""
MOST_LEVEL: Final = 8
"""So many labels fit beside each other; more of them are tilted."""
PANEL: Final = 4.6
WIDE: Final = 8.0
HIGH: Final = 4.6
"""Inches."""
MINUTE: Final = 1 / 1440
DAY: Final = 86_400_000
"""Milliseconds; days since 1970 are how times are drawn."""


def check_target(path: Path) -> Path:
    """Refuse what is neither PNG nor SVG."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"{quote(path)} is not a picture that can be drawn",
            fix=f"let its name end in {' or '.join(FORMATS)}",
        )
    return path


def draw(name: str, risk: Risk, path: Path) -> None:
    """Draw what was measured of a view into a file."""
    panels = [_draw_sizes]
    if len(risk.sizes) > 1:
        panels.append(_draw_risks)
    if len({moment.at for moment in risk.history}) > 1:
        panels.append(_draw_published if risk.loss is None else _draw_loss)
    size = (max(WIDE, PANEL * len(panels)), HIGH)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"View {name}: {risk.records:,} records in {risk.groups:,} groups, "
        f"the smallest of {risk.k:,} {risk.unit if risk.k != 1 else risk.unit[:-1]}"
        f"{_say_promises(risk)}",
        fontsize=13,
        fontweight="bold",
        color=INK,
    )
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes, risk)
        _tidy(axes)
    _save(figure, path)


def draw_comparison(risks: Mapping[str, Risk], path: Path) -> None:
    """Draw risk over loss, a point for each view."""
    figure = Figure(figsize=(WIDE, HIGH), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, risk in risks.items():
        counted = risk.loss is not None
        broken = any(it.kept is False for it in risk.promises)
        axes.plot(
            [risk.loss or 0.0],
            [risk.prosecutor.mean],
            marker="X" if broken else "o",
            markersize=9,
            linestyle="none",
            color=VERMILION if broken else BLUE,
            fillstyle="full" if counted else "none",
        )
        told = f"{name}{'' if counted else ' (loss is not counted)'}"
        told += ": promise not kept" if broken else f", k = {risk.k:,}"
        axes.annotate(
            told, (risk.loss or 0.0, risk.prosecutor.mean), (8, 6), textcoords="offset points"
        )
    axes.set_title("Views by risk and loss", fontweight="bold", color=INK)
    axes.set_xlabel("information loss by generalization (0: nothing, 1: all)")
    axes.set_ylabel("average prosecutor's risk per record")
    _tidy(axes)
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(0, 1.05)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    try:
        # Texts of an SVG stay texts: they can be found, read aloud and copied.
        with mpl.rc_context({"svg.fonttype": "none"}):
            figure.savefig(check_target(path), dpi=150)
    except OSError as error:
        raise UsageError(
            f"{quote(path)} cannot be written: {error.strerror}", fix="name another file"
        ) from None


def _draw_sizes(axes: Axes, risk: Risk) -> None:
    bars = risk.sizes
    promise = next((it for it in risk.promises if it.figure == "k"), None)
    k = promise.promised if promise else 0
    low = [bar.most is not None and bar.most < k for bar in bars]
    drawn = axes.bar(
        [_range(bar) for bar in bars],
        [bar.groups for bar in bars],
        WIDTH,
        color=[VERMILION if small else BLUE for small in low],
        hatch=["//" if small else "" for small in low],
        edgecolor="white",
    )
    axes.bar_label(drawn, [f"{bar.groups:,}" for bar in bars], padding=2, fontsize=8, color=INK)
    axes.set_title("Sizes of groups")
    axes.set_xlabel(f"{risk.unit} in a group")
    if promise is not None:
        label = f"promised: k = {k:g}"
        if promise.records:
            label += f"; {promise.records:,} records below (hatched)"
        axes.axvline(sum(low) - 0.5, color=INK, linestyle="--", linewidth=1.2, label=label)
        axes.set_ylim(top=max((bar.groups for bar in bars), default=1) * ROOM)
        axes.legend(frameon=False, fontsize=9, loc="upper right")
    axes.set_ylabel("groups")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    # Groups and records are whole: no ticks between.
    axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    _leave_room(axes, len(bars))


def _draw_risks(axes: Axes, risk: Risk) -> None:
    # The largest groups have the least risk: it grows to the right.
    bars = risk.sizes[::-1]
    total = max(1, sum(bar.records for bar in bars))
    shares = [100 * bar.records / total for bar in bars]
    above = [1 / bar.least > risk.threshold for bar in bars]
    drawn = axes.bar(
        [f"{'' if bar.least == bar.most else '≤ '}{1 / bar.least:.2g}" for bar in bars],
        shares,
        WIDTH,
        color=[VERMILION if high else BLUE for high in above],
        hatch=["//" if high else "" for high in above],
        edgecolor="white",
    )
    axes.bar_label(drawn, [f"{share:.3g} %" for share in shares], padding=2, fontsize=8, color=INK)
    axes.set_title("Risk of re-identification")
    axes.set_xlabel(f"prosecutor's risk (hatched: above {risk.threshold:g})")
    axes.set_ylabel("% of records")
    _leave_room(axes, len(bars))


def _draw_loss(axes: Axes, risk: Risk) -> None:
    moments = _thin(risk.history)
    axes.plot(
        [moment.at / DAY for moment in moments],
        [moment.loss for moment in moments],
        color=ORANGE,
        marker="o",
        markersize=3,
        linewidth=1.2,
        label="each batch",
    )
    axes.axhline(risk.loss or 0.0, color=INK, linestyle="--", linewidth=1, label="mean")
    axes.set_title("What generalization loses")
    axes.set_ylabel("information loss (0: nothing, 1: all)")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    _label_time(axes, moments)


def _draw_published(axes: Axes, risk: Risk) -> None:
    moments = _thin(risk.history)
    axes.plot(
        [moment.at / DAY for moment in moments],
        [moment.published for moment in moments],
        color=ORANGE,
        marker="o",
        markersize=3,
        linewidth=1.2,
    )
    axes.set_title("What was published (no loss is counted)")
    axes.set_ylabel("records in each batch")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    _label_time(axes, moments)


def _label_time(axes: Axes, moments: list[Moment]) -> None:
    if moments:
        first, last = moments[0].at / DAY, moments[-1].at / DAY
        axes.set_xlim(first - MINUTE, last + MINUTE)
        days = [datetime.fromtimestamp(end * DAY / 1000, UTC).date() for end in (first, last)]
        span = " to ".join(dict.fromkeys(map(str, days)))
        axes.set_xlabel(f"time of publication, {span} (UTC)")
    locator = matplotlib.dates.AutoDateLocator(minticks=3, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = matplotlib.dates.ConciseDateFormatter(  # type: ignore[no-untyped-call]
        locator, show_offset=False
    )
    axes.xaxis.set_major_formatter(formatter)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, colors=INK)
    axes.margins(y=0.12)


def _leave_room(axes: Axes, bars: int) -> None:
    """Keep few bars from becoming walls."""
    beside = max(0.0, (LEAST_BARS - bars) / 2)
    axes.set_xlim(-0.6 - beside, bars - 0.4 + beside)
    if bars > MOST_LEVEL:
        axes.tick_params(axis="x", rotation=45)


def _say_promises(risk: Risk) -> str:
    """Say what is promised and not kept, for the title."""
    broken = [it for it in risk.promises if it.kept is False]
    told = [f"{it.figure}{f' of {it.field}' if it.field else ''} {it.promised:g}" for it in broken]
    return f"\nnot kept: {', '.join(told)}" if told else ""


def _range(bar: Bar) -> str:
    if bar.most is None:
        return f"≥ {bar.least:,}"
    return f"{bar.least}" if bar.least == bar.most else f"{bar.least}-{bar.most}"


def _thin(moments: list[Moment]) -> list[Moment]:
    return moments[:: max(1, -(-len(moments) // MOST_POINTS))]
