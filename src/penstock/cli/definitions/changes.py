"""How commands show a change of definitions."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from penstock.definitions import Difference
from penstock.store.definitions import Change

COLOURS = {"create": "green", "update": "yellow", "delete": "red"}
LIST_LIMIT = 50


def change_data(change: Change) -> dict[str, Any]:
    """Return a change as data."""
    return {
        "epoch": change.epoch,
        "created": [str(key) for key in change.created],
        "updated": [str(key) for key in change.updated],
        "deleted": [str(key) for key in change.deleted],
    }


def render_change(console: Console, change: Change, *, unchanged: int = 0) -> None:
    """Say what a change did."""
    lines = [
        (action, key)
        for action, keys in (
            ("create", change.created),
            ("update", change.updated),
            ("delete", change.deleted),
        )
        for key in keys
    ]
    for action, key in lines[:LIST_LIMIT]:
        console.print(Text.assemble((f"{action}d ".ljust(9), COLOURS[action]), str(key)))
    if len(lines) > LIST_LIMIT:
        console.print(f"… and {len(lines) - LIST_LIMIT} more")
    rest = f", {unchanged} unchanged" if unchanged else ""
    if lines:
        console.print(f"epoch {change.epoch}: {len(lines)} changed{rest}")
    else:
        console.print(f"nothing changed; still epoch {change.epoch}{rest}")


def difference_data(found: list[Difference]) -> list[dict[str, Any]]:
    """Return differences as data."""
    return [
        {
            "action": item.action,
            "kind": item.key.kind,
            "name": item.key.name,
            "before": dict(item.before.body) if item.before else None,
            "after": dict(item.after.body) if item.after else None,
        }
        for item in found
    ]


def render_differences(console: Console, found: list[Difference]) -> None:
    """Show differences line by line."""
    if not found:
        console.print("no differences")
    for item in found:
        console.print(
            Text.assemble((item.action, COLOURS[item.action]), " ", (str(item.key), "bold"))
        )
        for line in item.lines():
            colour = {"+": "green", "-": "red"}.get(line[:1], "dim")
            console.print(Text(f"  {line}", style=colour))
