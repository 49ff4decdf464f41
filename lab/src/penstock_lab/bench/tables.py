"""Tables of figures, for people: what a benchmark's `tables` returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """A table; the first column names the rows."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def show(value: float | None, digits: int = 2, unit: str = "") -> str:
    """Return a figure as a cell; nothing where there is none."""
    return "" if value is None else f"{value:,.{digits}f}{unit}"
