"""`penstock rollback`: return definitions to what an earlier epoch held."""

from __future__ import annotations

import click

from penstock.cli.definitions.changes import change_data, render_change
from penstock.cli.definitions.keys import parse_key
from penstock.cli.output import json_option, show
from penstock.cli.session import actor, change_definitions


@click.command("rollback")
@click.argument("epoch", type=int)
@click.argument("keys", nargs=-1, metavar="[KIND/NAME]...")
@click.option("-m", "--message", "reason", default="", help="Why; kept in the history.")
@json_option
def command(epoch: int, keys: tuple[str, ...], reason: str, as_json: bool) -> None:
    """Return all definitions, or those named, to what EPOCH held.

    The return is a change of its own, with a new epoch: history is never rewritten.
    """
    wanted = [parse_key(text) for text in keys] or None
    with change_definitions() as definitions:
        change = definitions.rollback(
            epoch, keys=wanted, actor=actor(), reason=reason or f"back to epoch {epoch}"
        )
    show(as_json, change_data(change), lambda console: render_change(console, change))
