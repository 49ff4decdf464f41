"""`penstock delete`: delete definitions."""

from __future__ import annotations

import click

from penstock.cli.definitions.changes import change_data, render_change
from penstock.cli.definitions.keys import parse_key
from penstock.cli.output import json_option, show
from penstock.cli.session import actor, change_definitions
from penstock.definitions import read_paths
from penstock.errors import InvalidError, UsageError


@click.command("delete")
@click.argument("keys", nargs=-1, metavar="[KIND/NAME]...")
@click.option(
    "-f", "--file", "paths", multiple=True, metavar="FILE|DIR", help="Delete what a file defines."
)
@click.option("-m", "--message", "reason", default="", help="Why; kept in the history.")
@json_option
def command(keys: tuple[str, ...], paths: tuple[str, ...], reason: str, as_json: bool) -> None:
    """Delete definitions, all or nothing. What others refer to cannot be deleted."""
    wanted = [parse_key(text) for text in keys]
    if paths:
        reading = read_paths(paths)
        if reading.problems:
            raise InvalidError("definitions", reading.problems)
        wanted += [document.key for document in reading.documents]
    if not wanted:
        raise UsageError("nothing to delete was named", fix="name KIND/NAME, or -f FILE")
    with change_definitions() as definitions:
        change = definitions.delete(list(dict.fromkeys(wanted)), actor=actor(), reason=reason)
    show(as_json, change_data(change), lambda console: render_change(console, change))
