"""`penstock diff`: show what applying files would change."""

from __future__ import annotations

import click

from penstock.cli.definitions.changes import difference_data, render_differences
from penstock.cli.definitions.keys import parse_kind
from penstock.cli.output import json_option, show
from penstock.cli.session import open_definitions
from penstock.definitions import after_applying, differences, read_paths
from penstock.errors import UsageError


@click.command("diff")
@click.option(
    "-f", "--file", "paths", multiple=True, metavar="FILE|DIR", help="Files or folders to compare."
)
@click.option("--from", "start", type=int, help="Compare from this epoch.")
@click.option("--to", "end", type=int, help="Compare to this epoch; else the current one.")
@click.option("--prune", multiple=True, metavar="KIND", help="As `apply --prune` would.")
@json_option
def command(
    paths: tuple[str, ...],
    start: int | None,
    end: int | None,
    prune: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what applying files would change, or what changed between two epochs.

    Files are checked as `apply` would check them; nothing is stored.
    """
    if bool(paths) == (start is not None):
        raise UsageError(
            "there is nothing to compare" if not paths else "files and epochs do not go together",
            fix="use `-f FILE`, or `--from EPOCH [--to EPOCH]`",
        )
    with open_definitions() as checked:
        store = checked.definitions
        if start is not None:
            then = store.snapshot() if end is None else store.snapshot_at(end)
            found = differences(store.snapshot_at(start).documents, then.documents)
        else:
            reading = read_paths(paths)
            snapshot, meaning = checked.current()
            after = after_applying(
                snapshot.documents, reading.documents, prune=map(parse_kind, prune)
            )
            meaning.change(
                reading.documents,
                [key for key in snapshot.documents if key not in after],
                locate=reading.locate,
                problems=reading.problems,
            )
            found = differences(snapshot.documents, after)
    show(as_json, difference_data(found), lambda console: render_differences(console, found))
