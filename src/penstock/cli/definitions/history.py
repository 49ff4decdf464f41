"""`penstock history`: who changed what, when and why."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console

from penstock.cli.definitions.keys import parse_key
from penstock.cli.output import json_option, show, table
from penstock.cli.session import open_definitions
from penstock.errors import UsageError
from penstock.store.definitions import Epoch, Revision

COLUMNS = ("epoch", "at", "who", "why")


@click.command("history")
@click.argument("key", required=False, metavar="[KIND/NAME]")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help="The most changes to show.",
)
@json_option
def command(key: str | None, limit: int, as_json: bool) -> None:
    """Show the changes of a definition, or of the whole set, newest first."""
    with open_definitions() as checked:
        store = checked.definitions
        if key is None:
            epochs = store.epochs(limit)
            show(as_json, [_epoch_data(item) for item in epochs], lambda c: _draw_all(c, epochs))
            return
        wanted = parse_key(key)
        revisions = store.history(wanted, limit)
    if not revisions:
        raise UsageError(
            f"there never was a {wanted}", fix=f"`penstock get {wanted.kind}` lists them"
        )
    show(as_json, [_revision_data(item) for item in revisions], lambda c: _draw_one(c, revisions))


def _epoch_data(item: Epoch) -> dict[str, Any]:
    return {
        "epoch": item.epoch,
        "at": item.at.isoformat(),
        "actor": item.actor,
        "reason": item.reason,
        "changes": item.changes,
    }


def _revision_data(item: Revision) -> dict[str, Any]:
    return {
        "epoch": item.epoch,
        "at": item.at.isoformat(),
        "actor": item.actor,
        "reason": item.reason,
        "document": item.document.fields() if item.document else None,
    }


def _draw_all(console: Console, epochs: list[Epoch]) -> None:
    shown = table(*COLUMNS, "changed")
    for item in epochs:
        at = f"{item.at:%Y-%m-%d %H:%M:%S}"
        shown.add_row(str(item.epoch), at, item.actor, item.reason, str(item.changes))
    console.print(shown)


def _draw_one(console: Console, revisions: list[Revision]) -> None:
    shown = table(*COLUMNS, "became")
    for item in revisions:
        became = item.document.canonical() if item.document else "deleted"
        shown.add_row(
            str(item.epoch), f"{item.at:%Y-%m-%d %H:%M:%S}", item.actor, item.reason, became
        )
    console.print(shown)
