"""`penstock get`: show definitions."""

from __future__ import annotations

import click
from rich.console import Console

from penstock.cli.keys import parse_kind
from penstock.cli.output import json_option, show, table
from penstock.cli.session import open_definitions
from penstock.definitions import write_yaml
from penstock.errors import UsageError, quote
from penstock.model.document import Document


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
        shown.add_row(document.kind, document.name, _summary(document))
    console.print(shown)
    console.print(f"{len(documents)} definitions at epoch {epoch}", style="dim")


def _summary(document: Document) -> str:
    parts = []
    for field, value in document.body.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        parts.append(shown if field == "description" else f"{field}: {shown}")
    text = "; ".join(parts)
    limit = 160
    return text if len(text) <= limit else text[: limit - 1] + "…"
