"""`penstock access`: the access matrix, as a table, JSON or a page of HTML."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console

from penstock.cli.access.decision_context import open_questions
from penstock.cli.output import json_option, show, table
from penstock.cli.session import configuration, read_home
from penstock.errors import UsageError
from penstock.json_text import read_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.definitions.access_matrix import Cell, Example

NO_PURPOSE: Final = "none"


@click.command("access")
@click.option("--subject", "subjects", multiple=True, metavar="USER", help="Only this user.")
@click.option("--stream", "streams", multiple=True, metavar="NAME", help="Only this stream.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="A topic to ask about, such as home/p-17/vitals; else one is made up for each pattern.",
)
@click.option(
    "--purpose",
    "purposes",
    multiple=True,
    metavar="PURPOSE",
    help="Only this purpose; `none`: without one.",
)
@click.option(
    "--payload", default="{}", metavar="JSON", help="Fields of the example that are not made up."
)
@click.option(
    "--publisher", metavar="USER", help="Who publishes the examples; default: nobody known."
)
@click.option("--all", "everything", is_flag=True, help="Also show who sees nothing.")
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page of HTML to this file.",
)
@json_option
def command(
    *,
    subjects: tuple[str, ...],
    streams: tuple[str, ...],
    topics: tuple[str, ...],
    purposes: tuple[str, ...],
    payload: str,
    publisher: str | None,
    everything: bool,
    page: Path | None,
    as_json: bool,
) -> None:
    """Show who sees which attribute of which stream, for which purpose, in which situation.

    Each row shows what a gateway delivers of an example message of the stream, after masks and
    transformations on publication and on delivery, or what a view leaves of it for those who may
    read the view at Kafka. In a situation, the people of the example are in it. Opt-outs are not
    considered: ask `check` about a person.
    """
    from penstock.definitions.access_matrix import Question, make_examples, make_matrix
    from penstock.definitions.authorizer import authorizer_of
    from penstock.kafka.acls import list_view_cells

    given = read_object(payload.encode())
    if given is None:
        raise UsageError("--payload is not a JSON object", fix="write --payload '{\"pulse\": 60}'")
    with open_questions() as (checked, _):
        snapshot, definitions = checked.current()
    config = configuration()
    settings = config.gateway
    environment: dict[str, Any] = {"time": datetime.now(UTC)}
    if settings.place is not None:
        environment["place"] = settings.place
    question = Question(
        subjects,
        streams,
        topics,
        tuple(None if it == NO_PURPOSE else it for it in purposes),
        given,
        environment,
        publisher,
    )
    examples = make_examples(definitions, question)
    # Masks that hash need some key; what they leave of an attribute does not depend on which.
    authorizer = authorizer_of(
        settings, definitions, read_key=lambda: bytes(32), home=read_home(config)
    )
    cells = list(make_matrix(authorizer, definitions, question, examples))
    if not topics:
        cells += list_view_cells(definitions, subjects, streams)
    shown = [it for it in cells if everything or it.degree != "none"]
    told = [
        {"stream": it.stream, "topic": it.topic, "payload": json.loads(it.payload)}
        for it in examples
    ]
    data = {"epoch": snapshot.epoch, "examples": told, "cells": [it.as_dict() for it in shown]}
    if page is not None:
        page.write_text(_write_page(shown, examples, snapshot.epoch), encoding="utf-8")
    show(as_json, data, lambda target: _render(target, shown, examples, snapshot.epoch))


def _rows(cells: Iterable[Cell]) -> Iterator[tuple[str, str, str, str, dict[str, list[str]]]]:
    """Yield a row for all that one subject sees in one message: names by degree and rule."""
    for (subject, source, purpose, situation), some in groupby(
        cells, key=lambda it: (it.subject, it.source, it.purpose, it.situation)
    ):
        seen: dict[str, list[str]] = {}
        for cell in some:
            word = cell.degree if cell.degree == "full" else f"{cell.degree} ({cell.rule})"
            seen.setdefault(word, []).append(cell.attribute)
        yield subject, source, purpose or "-", situation, seen


def _render(target: Console, cells: list[Cell], examples: list[Example], epoch: int) -> None:
    made = table("subject", "topic or view", "for", "situation", "sees")
    for subject, source, purpose, situation, seen in _rows(cells):
        told = "; ".join(f"{word}: {', '.join(names)}" for word, names in seen.items())
        made.add_row(subject, source, purpose, situation, told)
    target.print(made if cells else "nobody sees anything")
    for it in examples:
        told = f"example of {it.stream}{_remark(it)}: {it.topic} {it.payload.decode()}"
        target.print(told, style="dim")
    target.print(f"under epoch {epoch}", style="dim")


def _remark(example: Example) -> str:
    return ", where none of the others becomes one" if example.converted else ""


_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Access matrix</title><style>
body {{ font-family: sans-serif; margin: 2em }}
table {{ border-collapse: collapse }}
th, td {{ border: 1px solid #ccc; padding: .3em .6em; text-align: left; vertical-align: top }}
.full {{ background: #fde2e2 }} .changed {{ background: #fff3cd }}
.removed, .none {{ background: #e6f4ea }}
</style></head><body><h1>Access matrix</h1><p>Under epoch {epoch}. Each row is what happens to an
example message.</p><table><tr><th>subject</th><th>topic or view</th><th>for</th>
<th>situation</th><th>sees</th></tr>
{rows}
</table><h2>Examples</h2><ul>
{examples}
</ul></body></html>
"""


def _write_page(cells: list[Cell], examples: list[Example], epoch: int) -> str:
    """Return a page; whatever comes from definitions is text in it."""
    rows = []
    for *names, seen in _rows(cells):
        told = "<br>".join(
            f'<span class="{word.partition(" ")[0]}">{escape(word)}</span>: '
            f"{escape(', '.join(attributes))}"
            for word, attributes in seen.items()
        )
        heads = "".join(f"<td>{escape(str(it))}</td>" for it in names)
        rows.append(f"<tr>{heads}<td>{told}</td></tr>")
    shown = [
        f"<li>{escape(it.stream + _remark(it))}: <code>{escape(it.topic)}</code> "
        f"<code>{escape(it.payload.decode())}</code></li>"
        for it in examples
    ]
    return _PAGE.format(epoch=epoch, rows="\n".join(rows), examples="\n".join(shown))
