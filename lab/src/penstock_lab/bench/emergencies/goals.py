"""Goals, and whether figures meet them."""

from __future__ import annotations

from typing import Any


def at_most(limit: float, measured: float) -> dict[str, Any]:
    """Say whether a figure is small enough."""
    return {"at_most": limit, "measured": measured, "met": measured <= limit}


def at_least(limit: float, measured: float) -> dict[str, Any]:
    """Say whether a figure is great enough."""
    return {"at_least": limit, "measured": measured, "met": measured >= limit}
