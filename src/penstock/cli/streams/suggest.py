"""`penstock suggest`: what the fields of a sample look like, why, and a draft definition."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import console, json_option, print_json, table
from penstock.errors import UsageError, quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_ROWS = 100_000
COLOURS = {"identifier": "bold red", "quasi-identifier": "yellow", "sensitive": "magenta"}


@click.command("suggest")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--stream", "name", help="The name of the stream; else that of the file.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the draft to this file, to be looked at and applied.",
)
@json_option
def command(file: Path, name: str | None, out: Path | None, *, as_json: bool) -> None:
    """Suggest which fields of FILE are identifiers, quasi-identifiers or sensitive.

    FILE is a sample: CSV, JSON lines or Parquet; the first 100,000 records are looked at. Each
    suggestion comes with its reasons. The draft declares the stream and a k-anonymous view of
    it, and can be applied as it is; look at it first, since nobody but you knows the data.
    """
    from penstock.definitions.documents import write_yaml
    from penstock.pipeline.risk.suggestions import suggest

    stream = name or re.sub(r"[^a-z0-9_-]+", "-", file.stem.lower()).strip("-_") or "sample"
    columns = _read(file)
    found = suggest(stream, columns)
    if out is not None:
        if out.exists():
            raise UsageError(f"{quote(out)} exists already", fix="name another file")
        out.write_text(write_yaml(found.documents), encoding="utf-8")
    if as_json:
        fields = [
            {
                "name": it.name,
                "type": it.type.value,
                "optional": it.optional,
                "category": it.category,
                "reasons": it.reasons,
                "different": it.different,
            }
            for it in found.fields
        ]
        documents = [it.fields() for it in found.documents]
        data = {"records": found.records, "alone": found.alone, "fields": fields}
        print_json({**data, "draft": documents})
        return
    target = console()
    shown = table("field", "type", "looks like", "because")
    for it in found.fields:
        kind = f"{it.type.value}, optional" if it.optional else it.type.value
        category = Text(it.category, COLOURS.get(it.category, ""))
        shown.add_row(Text(it.name), kind, category, Text("; ".join(it.reasons)))
    target.print(shown)
    _say_alone(target, found.alone, found.records)
    if out is None:
        target.print("\n# the draft; --out FILE writes it to a file")
        click.echo(write_yaml(found.documents), nl=False)
    else:
        target.print(f"draft written to {out} → look at it, then `penstock apply -f {out}`")


def _say_alone(target: Console, alone: int, records: int) -> None:
    share = alone / records if records else 0.0
    target.print(
        Text(
            f"\n{alone:,} of {records:,} records ({share:.1%}) are unique by quasi-identifiers",
            "bold red" if alone else "green",
        )
    )


def _read(file: Path) -> Mapping[str, Sequence[Any]]:
    """Return the first records of a file, by columns."""
    from penstock.json_text import read_object
    from penstock.pipeline.records.dialects import detect, read_rows

    ending = file.suffix.lower()
    if ending in {".csv", ".txt", ".tsv"}:
        rows = read_rows(file, detect(file))
        header = [name.strip().removeprefix("\ufeff") for name in next(rows, [])]
        if not any(header) or len(set(header)) < len(header):
            raise UsageError(
                f"the first line of {quote(file.name)} does not name its columns, each once",
                fix="add a line of names",
            )
        lines = [row for row in itertools.islice(rows, MOST_ROWS) if len(row) == len(header)]
        return {name: [row[place] for row in lines] for place, name in enumerate(header)}
    if ending in {".json", ".jsonl", ".ndjson"}:
        with file.open("rb") as source:
            read = map(read_object, itertools.islice(source, MOST_ROWS))
            objects = [record for record in read if record is not None]
        names = dict.fromkeys(name for record in objects for name in record)
        return {name: [record.get(name) for record in objects] for name in names}
    if ending == ".parquet":
        from pyarrow import parquet  # type: ignore[import-untyped]

        batch = next(parquet.ParquetFile(file).iter_batches(MOST_ROWS), None)
        return {} if batch is None else batch.to_pydict()
    raise UsageError(
        f"unsupported file type {ending or 'without an ending'}: {quote(file.name)}",
        fix="give a sample as .csv, .jsonl or .parquet",
    )
