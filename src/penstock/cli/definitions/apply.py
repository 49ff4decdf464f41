"""`penstock apply`: put definitions, all or nothing."""

from __future__ import annotations

import click
from rich.console import Console

from penstock.cli.definitions.changes import change_data, render_change
from penstock.cli.definitions.keys import parse_kind
from penstock.cli.output import json_option, show
from penstock.cli.session import actor, change_definitions
from penstock.definitions import read_paths


@click.command("apply")
@click.option(
    "-f",
    "--file",
    "paths",
    multiple=True,
    required=True,
    metavar="FILE|DIR",
    help="A file or a folder of definitions; - is standard input. May be repeated.",
)
@click.option("-m", "--message", "reason", default="", help="Why; kept in the history.")
@click.option(
    "--prune",
    multiple=True,
    metavar="KIND",
    help="Delete definitions of this kind that the files do not hold.",
)
@json_option
def command(paths: tuple[str, ...], reason: str, prune: tuple[str, ...], as_json: bool) -> None:
    """Apply definitions from files or folders.

    The set that would result is checked as a whole; it is stored completely, as one new
    epoch, or not at all.
    """
    kinds = [parse_kind(kind) for kind in prune]
    reading = read_paths(paths)
    with change_definitions() as definitions:
        change = definitions.apply(
            reading.documents,
            actor=actor(),
            reason=reason,
            prune=kinds,
            locate=reading.locate,
            problems=reading.problems,
        )

    def render(console: Console) -> None:
        unchanged = len(reading.documents) - len(change.created) - len(change.updated)
        render_change(console, change, unchanged=unchanged)

    show(as_json, change_data(change), render)
