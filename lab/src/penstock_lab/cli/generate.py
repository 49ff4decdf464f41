"""`penstock generate`: made-up records in any volume."""

from __future__ import annotations

import time

import click

from penstock.cli.output import console, json_option, print_json

MOST_ROWS = 2_000_000_000
MOST_SEED = 2**63 - 1


@click.group("generate")
def command() -> None:
    """Generate synthetic records, the same for the same seed."""


@command.command("hospital")
@click.option("--rows", type=click.IntRange(0, MOST_ROWS), default=1000, show_default=True)
@click.option("--seed", type=click.IntRange(0, MOST_SEED), default=0, show_default=True)
@click.option(
    "--format", "form", type=click.Choice(["csv", "json", "parquet"]), default="csv",
    show_default=True, help="What to write; json is one record per line.",
)  # fmt: skip
@click.option("--out", default="-", help="The file to write; - is standard output.")
@json_option
def hospital(rows: int, seed: int, form: str, out: str, as_json: bool) -> None:
    """Generate patients of a German hospital's diabetes ward.

    Row number n of a seed is the same however many rows are asked for.
    """
    from penstock.errors import UsageError
    from penstock_lab.generate.hospital import SCHEMA, generate
    from penstock_lab.generate.writers import write

    if as_json and out == "-":
        raise UsageError("--json reports on a file", fix="name one with --out")
    started = time.monotonic()
    written = write(generate(rows, seed), SCHEMA, form, out)
    seconds = time.monotonic() - started
    if as_json:
        print_json({"rows": written, "file": out, "seconds": round(seconds, 3)})
    elif out != "-":
        console(errors=True).print(f"{written:,} rows in {out}, {seconds:.1f} s")
