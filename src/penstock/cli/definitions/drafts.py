"""`penstock hierarchy` and `suggest`: drafts of definitions, made of values and of samples.

    values ─── from-values: prefixes, ranges, or none ──┐
    CSV, such as ARX writes it ─── from-csv ────────────┼──▶ a definition, printed ──▶ apply
    sample: CSV, JSON lines, Parquet ─── suggest ───────┘

Rules that hold here:
- What is printed has been checked as `apply` checks it.
- A row of CSV is a value and what it is generalized to, from the nearest to the most general.
  Levels that repeat a name are one level. Where rows do not end alike, all end at `*`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from penstock.cli.output import console, json_option, print_json, show, table
from penstock.cli.session import open_definitions
from penstock.errors import UsageError, quote

if TYPE_CHECKING:
    from penstock.model.kinds.views import HierarchyNode

ROOT = "*"
MOST_VALUES = 100_000
SHOWN = 12
WHOLE = re.compile(r"-?[0-9]{1,18}")
NAME = click.argument("name")
FILE = click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE"
)
DELIMITER = click.option(
    "--delimiter", metavar="CHARACTER", help="The cell delimiter; default: detected."
)
ENCODING = click.option("--encoding", help="The encoding of the file, such as cp1252.")
MOST_ROWS = 100_000
COLOURS = {"identifier": "bold red", "quasi-identifier": "yellow", "sensitive": "magenta"}


@click.group("hierarchy")
def hierarchy() -> None:
    """Build hierarchies of values for generalization, and draw them.

    Definitions go to standard output: redirect them to a file, look at it, and apply it.
    """


@hierarchy.command("from-values")
@NAME
@FILE
@click.option(
    "--column", help="Take the values of this column of a CSV file; default: one value per line."
)
@click.option(
    "--keep",
    metavar="N,…",
    help="Generalize by prefixes: with 3,1 the postcode 48149 becomes 481** and then 4****.",
)
@click.option(
    "--ranges",
    metavar="N,…",
    help="Generalize whole numbers by ranges: with 10,50, 34 becomes [30 - 40], then [0 - 50].",
)
@DELIMITER
@ENCODING
@json_option
def from_values(
    name: str,
    *,
    file: Path,
    column: str | None,
    keep: str | None,
    ranges: str | None,
    delimiter: str | None,
    encoding: str | None,
    as_json: bool,
) -> None:
    """Build the hierarchy NAME over the different values of FILE.

    Without --keep and --ranges all values lie directly below `*`.
    """
    if keep and ranges:
        raise UsageError("--keep and --ranges exclude each other", fix="leave one of them out")
    rows = list(_rows(file, delimiter, encoding, column))
    values = sorted({row[0] for row in rows if row and row[0]}, key=_by_size)
    if not values:
        raise UsageError(f"{quote(file.name)} has no values", fix="name another file or column")
    if keep:
        levels = _numbers(keep, "--keep")
        ways = {value: _prefixes(value, sorted(levels, reverse=True)) for value in values}
    elif ranges:
        ways = _ranges(values, sorted(_numbers(ranges, "--ranges")))
    else:
        ways = {value: [ROOT] for value in values}
    _print(name, ways, as_json=as_json)


@hierarchy.command("from-csv")
@NAME
@FILE
@DELIMITER
@ENCODING
@json_option
def from_csv(
    name: str, file: Path, delimiter: str | None, encoding: str | None, *, as_json: bool
) -> None:
    """Build the hierarchy NAME of a CSV file without a header, as ARX writes it.

    Each row is a value, then what it is generalized to, level by level:
    `48149;481**;4****;*`. Delimiter and encoding are detected.
    """
    ways: dict[str, list[str]] = {}
    for number, row in enumerate(_rows(file, delimiter, encoding, None), 1):
        cells = [cell for place, cell in enumerate(row) if place == 0 or cell != row[place - 1]]
        if not any(cells):
            continue
        if not all(cells):
            raise UsageError(
                f"{quote(file.name)}:{number}: a cell is empty", fix="give each level a name"
            )
        if ways.setdefault(cells[0], cells[1:]) != cells[1:]:
            raise UsageError(
                f"{quote(file.name)}:{number}: {quote(cells[0])} is listed twice, with "
                "different levels",
                fix="leave one of the rows out",
            )
    if not ways:
        raise UsageError(f"{quote(file.name)} has no rows", fix="name another file")
    roots = {way[-1] if way else value for value, way in ways.items()}
    if len(roots) > 1 or not all(ways.values()):
        ways = {
            value: [*way, *([] if way[-1:] == [ROOT] else [ROOT])] for value, way in ways.items()
        }
        ways.pop(ROOT, None)
    _print(name, ways, as_json=as_json)


@hierarchy.command("show")
@NAME
@click.option("--all", "everything", is_flag=True, help="Draw all values of a group.")
@json_option
def show_tree(name: str, *, everything: bool, as_json: bool) -> None:
    """Draw the hierarchy NAME as a tree."""
    from penstock.model.kinds import Hierarchy
    from penstock.model.kinds.views import HierarchyNode

    with open_definitions() as store:
        known = store.current()[1].of(Hierarchy)
    if name not in known:
        fix = f"hierarchies are {', '.join(known) or 'none yet'}"
        raise UsageError(f"there is no hierarchy {quote(name)}", fix=fix)
    nested = known[name].nested()

    def render(target: Console) -> None:
        drawn = Tree("")
        _grow(drawn, HierarchyNode.model_validate(nested), None if everything else SHOWN)
        target.print(drawn.children[0])

    show(as_json, nested, render)


def _grow(tree: Tree, node: HierarchyNode, limit: int | None) -> None:
    size = _count(node)
    told = f"  {size:,} values" if node.children and size > 1 else ""
    branch = tree.add(Text.assemble(node.value, (told, "dim")))
    for child in node.children[:limit]:
        _grow(branch, child, limit)
    hidden = len(node.children) - len(node.children[:limit])
    if hidden:
        branch.add(Text(f"… and {hidden:,} more: see them with --all", "dim"))


def _count(node: HierarchyNode) -> int:
    return sum(map(_count, node.children)) if node.children else 1


def _rows(
    file: Path, delimiter: str | None, encoding: str | None, column: str | None
) -> Iterator[list[str]]:
    """Yield the rows of a file; with a column, its cells, each as a row."""
    from penstock.feeding.dialects import detect, read_rows

    fields = [column] if column else []
    dialect = detect(file, fields, encoding=encoding, delimiter=delimiter)
    rows = (
        [cell.strip().removeprefix("\ufeff") for cell in row] for row in read_rows(file, dialect)
    )
    if column is None:
        yield from rows
        return
    header = next(rows, [])
    if column not in header:
        raise UsageError(
            f"{quote(file.name)} has no column {quote(column)}",
            fix=f"columns there are {', '.join(header[:20]) or 'none'}",
        )
    place = header.index(column)
    yield from ([row[place]] for row in rows if len(row) > place)


def _numbers(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise UsageError(
            f"{option} {quote(text)} is not a list of whole numbers above 0", fix="write it as 3,1"
        )
    return sorted({int(part) for part in parts})


def _by_size(value: str) -> tuple[int, int, str]:
    return (0, int(value), value) if WHOLE.fullmatch(value) else (1, 0, value)


def _prefixes(value: str, levels: Sequence[int]) -> list[str]:
    kept = [
        value[:length] + "*" * (len(value) - length) for length in levels if length < len(value)
    ]
    return [*kept, ROOT]


def _ranges(values: Iterable[str], widths: Sequence[int]) -> dict[str, list[str]]:
    for small, wide in itertools.pairwise(widths):
        if wide % small:
            raise UsageError(
                f"--ranges: {wide} is not a multiple of {small}",
                fix="let each range be made of whole smaller ones, such as 10,50",
            )
    ways = {}
    for value in values:
        if not WHOLE.fullmatch(value):
            raise UsageError(f"{quote(value)} is not a whole number", fix="leave --ranges out")
        lows = [int(value) // width * width for width in widths]
        steps = [f"[{low} - {low + width}]" for low, width in zip(lows, widths, strict=True)]
        ways[value] = [*steps, ROOT]
    return ways


def _print(name: str, ways: Mapping[str, Sequence[str]], *, as_json: bool) -> None:
    """Print the definition, once it has been checked."""
    from penstock.definitions import DefinitionSet
    from penstock.definitions.documents import write_yaml
    from penstock.model.document import Document

    if len(ways) > MOST_VALUES:
        raise UsageError(
            f"{len(ways):,} values are more than {MOST_VALUES:,}",
            fix="generalize the field by a mask first, such as bucketizing or beginning",
        )
    values: dict[str, Any] = {value: list(way) for value, way in ways.items()}
    document = Document("hierarchy", name, {"values": values})
    DefinitionSet.build([document])
    if as_json:
        print_json(document.fields())
    else:
        click.echo(write_yaml([document]), nl=False)


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
def suggest(file: Path, name: str | None, out: Path | None, *, as_json: bool) -> None:
    """Suggest which fields of FILE are identifiers, quasi-identifiers or sensitive.

    FILE is a sample: CSV, JSON lines or Parquet; the first 100,000 records are looked at. Each
    suggestion comes with its reasons. The draft declares the stream and a k-anonymous view of
    it, and can be applied as it is; review it first, since only you know the data.
    """
    from penstock.definitions.documents import write_yaml
    from penstock.definitions.suggestions import suggest as look_at

    stream = name or re.sub(r"[^a-z0-9_-]+", "-", file.stem.lower()).strip("-_") or "sample"
    columns = _read_columns(file)
    found = look_at(stream, columns)
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


def _read_columns(file: Path) -> Mapping[str, Sequence[Any]]:
    """Return the first records of a file, by columns."""
    from penstock.feeding.dialects import detect, read_rows
    from penstock.json_text import read_object

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
