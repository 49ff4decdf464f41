"""Tables of figures, for people: what a benchmark's `tables` returns."""

from __future__ import annotations

from typing import NamedTuple


class Table(NamedTuple):
    """A table; the first column names the rows."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def show(value: float | None, digits: int = 2, unit: str = "") -> str:
    """Return a figure as a cell; nothing where there is none."""
    return "" if value is None else f"{value:,.{digits}f}{unit}"


def show_change(value: float, base: float) -> str:
    """Return by how much a figure is above (+) or below (-) another, in percent."""
    return f"{(value / base - 1) * 100:+.1f} %" if base else ""
