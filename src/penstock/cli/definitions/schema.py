"""`penstock schema`: JSON Schema of the kinds, for editors."""

from __future__ import annotations

import json

import click
from rich.console import Console

from penstock.cli.definitions.keys import parse_kind
from penstock.cli.output import json_option, show, table
from penstock.definitions.schemas import schema_of, schema_of_all
from penstock.model.kinds import KINDS


@click.command("schema")
@click.argument("kind", required=False)
@click.option("--all", "everything", is_flag=True, help="One schema for files of any kind.")
@json_option
def command(kind: str | None, everything: bool, as_json: bool) -> None:
    """Print the JSON Schema of a KIND; without one, list the kinds."""
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
