"""`penstock get`: show definitions."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.definitions.keys import parse_kind
from penstock.cli.output import json_option, show, table
from penstock.cli.session import open_definitions
from penstock.definitions import write_yaml
from penstock.errors import UsageError, quote
from penstock.model.document import Document

SUMMARY = 120
MOST_WORDS = 6
NAMING = ("name", "key", "anonymizer", "field", "event", "id")
"""The fields that tell what an item of a list is, the best first."""


@click.command("get")
@click.argument("kind", required=False)
@click.argument("name", required=False)
@click.option("--epoch", type=int, help="Show what an earlier epoch held.")
@click.option("--yaml", "as_yaml", is_flag=True, help="Print YAML that can be applied again.")
@json_option
def command(
    kind: str | None, name: str | None, epoch: int | None, as_yaml: bool, as_json: bool
) -> None:
    """Show definitions: all, those of a KIND, or one by KIND and NAME."""
    if kind and not name and "/" in kind:
        kind, _, name = kind.partition("/")
    wanted = parse_kind(kind) if kind else None
    with open_definitions() as checked:
        store = checked.definitions
        snapshot = store.snapshot() if epoch is None else store.snapshot_at(epoch)
    found = [
        document
        for key, document in sorted(snapshot.documents.items())
        if wanted in {None, key.kind} and name in {None, key.name}
    ]
    if name and not found:
        raise UsageError(
            f"there is no {wanted} {quote(name)} at epoch {snapshot.epoch}",
            fix=f"`penstock get {wanted}` lists them",
        )

    def render(console: Console) -> None:
        if as_yaml or name:
            console.print(write_yaml(found), markup=False, soft_wrap=True, end="")
            return
        _render_list(console, found, snapshot.epoch)

    show(as_json, [document.fields() for document in found], render)


def _render_list(console: Console, documents: list[Document], epoch: int) -> None:
    if not documents:
        console.print(f"no definitions at epoch {epoch}; `penstock apply -f FILE` adds some")
        return
    shown = table("kind", "name", "says")
    for document in documents:
        shown.add_row(document.kind, Text(document.name, "bold"), Text(_summary(document)))
    console.print(shown)
    console.print(f"{len(documents)} definitions at epoch {epoch}", style="dim")


def _summary(document: Document) -> str:
    """Say in one short line what a definition is; `get KIND NAME` shows all of it."""
    about = document.body.get("description")
    text = (
        str(about)
        if about
        else "; ".join(
            f"{field}: {_shorten(value)}"
            for field, value in document.body.items()
            if value not in (None, "", [], {})
        )
    )
    return text if len(text) <= SUMMARY else text[: SUMMARY - 1] + "…"


def _shorten(value: Any) -> str:
    """Write a value in a few words: names of what is in a list, never its whole content."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return _join(list(value))
    if isinstance(value, list):
        return _join([_find_name(item) for item in value])
    return str(value)


def _find_name(item: Any) -> str:
    """Return what an item of a list is known by."""
    if isinstance(item, dict):
        named = (item[it] for it in NAMING if isinstance(item.get(it), str))
        return next(named, next(iter(item), ""))
    return _shorten(item)


def _join(words: list[str]) -> str:
    left = len(words) - MOST_WORDS
    shown = ", ".join(words[:MOST_WORDS])
    return f"{shown} and {left} more" if left > 0 else shown
