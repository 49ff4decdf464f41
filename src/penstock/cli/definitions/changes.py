"""`penstock apply`, `delete`, `rollback` and `diff`: changes of definitions, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.definitions.queries import parse_key, parse_kind
from penstock.cli.output import json_option, show
from penstock.cli.session import actor, change_definitions, configuration, open_definitions
from penstock.errors import InvalidError, UsageError

if TYPE_CHECKING:
    from penstock.definitions import DefinitionSet, Difference, Reading
    from penstock.model.document import Document, Key
    from penstock.store.definitions.checked import CheckedDefinitions
    from penstock.store.definitions.history import Change

COLOURS = {"create": "green", "update": "yellow", "delete": "red"}
LIST_LIMIT = 50


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
@click.option("-m", "--message", "reason", default="", help="The reason; kept in the history.")
@click.option(
    "--prune",
    multiple=True,
    metavar="KIND",
    help="Delete definitions of this kind that the files do not contain.",
)
@json_option
def apply(paths: tuple[str, ...], reason: str, prune: tuple[str, ...], as_json: bool) -> None:
    """Apply definitions from files or folders.

    The set that would result is checked as a whole; it is stored completely, as one new
    epoch, or not at all.
    """
    from penstock.definitions import read_paths

    kinds = [parse_kind(kind) for kind in prune]
    reading = read_paths(paths)
    with change_definitions() as definitions:
        _ask_registries(definitions, lambda: _after(definitions, reading, kinds))
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


@click.command("delete")
@click.argument("keys", nargs=-1, metavar="[KIND/NAME]...")
@click.option(
    "-f", "--file", "paths", multiple=True, metavar="FILE|DIR", help="Delete what a file defines."
)
@click.option("-m", "--message", "reason", default="", help="The reason; kept in the history.")
@json_option
def delete(keys: tuple[str, ...], paths: tuple[str, ...], reason: str, as_json: bool) -> None:
    """Delete definitions, all or nothing. A definition that others refer to cannot be deleted."""
    from penstock.definitions import read_paths

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


@click.command("rollback")
@click.argument("epoch", type=int)
@click.argument("keys", nargs=-1, metavar="[KIND/NAME]...")
@click.option("-m", "--message", "reason", default="", help="The reason; kept in the history.")
@json_option
def rollback(epoch: int, keys: tuple[str, ...], reason: str, as_json: bool) -> None:
    """Return all definitions, or those named, to what EPOCH held.

    The return is a change of its own, with a new epoch: history is never rewritten. Appointments
    that were deleted or changed since stay so, unless they are named.
    """
    wanted = [parse_key(text) for text in keys] or None
    with change_definitions() as definitions:
        _ask_registries(definitions, lambda: _rolled_back(definitions, epoch, wanted))
        change = definitions.rollback(
            epoch, keys=wanted, actor=actor(), reason=reason or f"back to epoch {epoch}"
        )
    show(as_json, change_data(change), lambda console: render_change(console, change))


@click.command("diff")
@click.option(
    "-f", "--file", "paths", multiple=True, metavar="FILE|DIR", help="Files or folders to compare."
)
@click.option("--from", "start", type=int, help="Compare from this epoch.")
@click.option("--to", "end", type=int, help="Compare to this epoch; else the current one.")
@click.option("--prune", multiple=True, metavar="KIND", help="As `apply --prune` would.")
@json_option
def diff(
    paths: tuple[str, ...],
    start: int | None,
    end: int | None,
    prune: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what applying files would change, or what changed between two epochs.

    Files are checked as `apply` would check them; nothing is stored.
    """
    from penstock.definitions import after_applying, differences, read_paths
    from penstock.definitions.document_checks import fill_streams

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
            documents = fill_streams(reading.documents, snapshot.documents)
            after = after_applying(snapshot.documents, documents, prune=map(parse_kind, prune))
            meaning.change(
                documents,
                [key for key in snapshot.documents if key not in after],
                locate=reading.locate,
                problems=reading.problems,
            )
            found = differences(snapshot.documents, _keep_signatures(snapshot.documents, after))
    show(as_json, difference_data(found), lambda console: render_differences(console, found))


def _after(
    definitions: CheckedDefinitions, reading: Reading, prune: Sequence[str]
) -> DefinitionSet:
    """Return the set that files would lead to."""
    from penstock.definitions import after_applying
    from penstock.definitions.document_checks import fill_streams

    snapshot, meaning = definitions.current()
    documents = fill_streams(reading.documents, snapshot.documents)
    after = after_applying(snapshot.documents, documents, prune=prune)
    gone = [key for key in snapshot.documents if key not in after]
    return meaning.change(documents, gone, locate=reading.locate, problems=reading.problems)


def _rolled_back(
    definitions: CheckedDefinitions, epoch: int, keys: Sequence[Key] | None
) -> DefinitionSet:
    then = definitions.definitions.snapshot_at(epoch)
    if keys is None:
        return definitions.meaning(then)
    held = [then.documents[key] for key in keys if key in then.documents]
    return definitions.current()[1].change(held, [key for key in keys if key not in then.documents])


def _ask_registries(definitions: CheckedDefinitions, after: Callable[[], DefinitionSet]) -> None:
    """Refuse a change that the schema registries of streams and views do not go along with.

    Asked before the change is made, outside of its transaction. Sets without Avro ask nothing.
    """
    config = configuration()
    if config.kafka.bootstrap is None:
        return
    from penstock.kafka.schemas import find_schema_conflicts

    problems = list(find_schema_conflicts(definitions.current()[1], after(), config.kafka))
    if problems:
        raise InvalidError("schemas", problems)


def _keep_signatures(
    before: Mapping[Key, Document], after: Mapping[Key, Document]
) -> dict[Key, Document]:
    """Let appointments that are written without a signature have the one they have: apply signs."""
    kept = dict(after)
    for key, document in after.items():
        held = before.get(key)
        if key.kind == "appointment" and held is not None and "signature" not in document.body:
            signature = {it: held.body[it] for it in ("signature",) if it in held.body}
            kept[key] = replace(document, body={**document.body, **signature})
    return kept


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
            "means_the_same": item.means_the_same,
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
        if item.means_the_same:
            console.print("  written differently; it means the same", style="dim")
            continue
        for line in item.lines():
            colour = {"+": "green", "-": "red"}.get(line[:1], "dim")
            console.print(Text(f"  {line}", style=colour))
