"""`penstock get`, `history` and `schema`: definitions, their changes, and what kinds look like.

A command names definitions by `KIND`, `KIND NAME` or `KIND/NAME`.
"""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, show, table
from penstock.cli.session import open_history
from penstock.errors import UsageError, quote

if TYPE_CHECKING:
    from penstock.model.document import Document, Key
    from penstock.store.definitions.history import Epoch, Revision

SUMMARY = 120
MOST_WORDS = 6
NAMING = ("name", "key", "anonymizer", "field", "event", "id")
"""The fields that name an item of a list, the best first."""
COLUMNS = ("epoch", "at", "who", "why")


def parse_kind(text: str) -> str:
    """Return the kind; plural forms are taken too."""
    from penstock.model.kinds import KINDS

    for word in (text, text.removesuffix("s"), text.removesuffix("ies") + "y"):
        if word in KINDS:
            return word
    near = difflib.get_close_matches(text, KINDS, n=1)
    raise UsageError(
        f"there is no kind {quote(text)}",
        fix=f"did you mean {near[0]!r}?" if near else f"kinds are {', '.join(sorted(KINDS))}",
    )


def parse_key(text: str) -> Key:
    """Return the key of `KIND/NAME`; the name may hold further slashes."""
    from penstock.model.document import Key

    kind, slash, name = text.partition("/")
    if not slash or not name:
        raise UsageError(
            f"{quote(text)} does not name a definition", fix="write KIND/NAME, such as policy/nurse"
        )
    return Key(parse_kind(kind), name)


@click.command("get")
@click.argument("kind", required=False)
@click.argument("name", required=False)
@click.option("--epoch", type=int, help="Show what an earlier epoch held.")
@click.option("--yaml", "as_yaml", is_flag=True, help="Print YAML that can be applied again.")
@json_option
def get(
    kind: str | None, name: str | None, epoch: int | None, as_yaml: bool, as_json: bool
) -> None:
    """Show definitions: all, those of a KIND, or one by KIND and NAME."""
    if kind and not name and "/" in kind:
        kind, _, name = kind.partition("/")
    wanted = parse_kind(kind) if kind else None
    with open_history() as store:
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
            from penstock.definitions.documents import write_yaml

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
    noun = "definition" if len(documents) == 1 else "definitions"
    console.print(f"{len(documents)} {noun} at epoch {epoch}", style="dim")


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
def history(key: str | None, limit: int, as_json: bool) -> None:
    """Show the changes of a definition, or of the whole set, newest first."""
    with open_history() as store:
        if key is None:
            epochs = store.epochs(limit)
            show(
                as_json,
                [_epoch_data(item) for item in epochs],
                lambda target: _draw_epochs(target, epochs),
            )
            return
        wanted = parse_key(key)
        revisions = store.history(wanted, limit)
    if not revisions:
        raise UsageError(
            f"there never was a {wanted}", fix=f"`penstock get {wanted.kind}` lists them"
        )
    show(
        as_json,
        [_revision_data(item) for item in revisions],
        lambda target: _draw_revisions(target, revisions),
    )


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


def _draw_epochs(console: Console, epochs: list[Epoch]) -> None:
    shown = table(*COLUMNS, "changed")
    for item in epochs:
        at = f"{item.at:%Y-%m-%d %H:%M:%S}"
        shown.add_row(str(item.epoch), at, item.actor, item.reason, str(item.changes))
    console.print(shown)


def _draw_revisions(console: Console, revisions: list[Revision]) -> None:
    shown = table(*COLUMNS, "became")
    for item in revisions:
        became = item.document.canonical() if item.document else "deleted"
        shown.add_row(
            str(item.epoch), f"{item.at:%Y-%m-%d %H:%M:%S}", item.actor, item.reason, became
        )
    console.print(shown)


@click.command("schema")
@click.argument("kind", required=False)
@click.option("--all", "everything", is_flag=True, help="One schema for files of any kind.")
@json_option
def schema(kind: str | None, everything: bool, as_json: bool) -> None:
    """Print the JSON Schema of a KIND; without one, list the kinds."""
    from penstock.definitions.documents import schema_of, schema_of_all
    from penstock.model.kinds import KINDS

    if everything or kind:
        schema = schema_of_all() if everything or kind is None else schema_of(parse_kind(kind))
        indented = json.dumps(schema, indent=2, ensure_ascii=False)
        show(as_json, schema, lambda console: console.print(indented, markup=False, soft_wrap=True))
        return

    def render(console: Console) -> None:
        shown = table("kind", "what it is")
        for name in sorted(KINDS):
            shown.add_row(name, KINDS[name].summary)
        console.print(shown)

    show(as_json, {name: KINDS[name].summary for name in sorted(KINDS)}, render)
