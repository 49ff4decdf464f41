"""`penstock bench`: measure a part and print figures."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
import platform
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from penstock import __version__
from penstock.cli.output import console, json_option, print_json, table
from penstock.errors import UsageError, quote
from penstock_lab.bench import BENCHMARKS

PACKAGES = ("sqlalchemy", "cryptography", "pyspark", "uvloop", "paho-mqtt", "google-re2")


@click.command("bench")
@click.argument("part", type=click.Choice([*BENCHMARKS, "all"]))
@click.option("--quick", is_flag=True, help="Fewer rounds: to see that it runs, not to compare.")
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False),
    help="The Adult records as CSV, to compare the loss of k-anonymity with published figures.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Measure this of PART alone, where PART has parts of its own; can be repeated.",
)
@click.option("--large", is_flag=True, help="Also send ten million records through a view.")
@json_option
def command(
    part: str, quick: bool, data: str | None, only: tuple[str, ...], large: bool, as_json: bool
) -> None:
    """Measure PART, or all parts, and print figures.

    Ratios are taken within one run, because machines are noisy. With --json each part is
    one JSON object on one line: the figures, versions and the machine. Some parts print
    tables; what these leave out is in the JSON, too.
    """
    for name in BENCHMARKS if part == "all" else [part]:
        if not as_json:
            console(errors=True).print(f"measuring {name} …", style="dim")
        module = importlib.import_module(f"penstock_lab.bench.{name}")
        started = time.monotonic()
        taken = inspect.signature(module.run).parameters
        more: dict[str, Any] = {"data": data, "large": large}
        if only:
            _check_only(part, only, getattr(module, "PARTS", ()) if "only" in taken else ())
            more["only"] = only
        figures = module.run(quick=quick, **{key: more[key] for key in more if key in taken})
        result = {
            "part": name,
            "quick": quick,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - started, 1),
            "figures": figures,
            "versions": versions(),
            "machine": machine(),
        }
        if as_json:
            print_json(result)
        else:
            _render(console(), result, module)


def _check_only(part: str, only: tuple[str, ...], known: Sequence[str]) -> None:
    strange = [name for name in only if name not in known]
    if strange:
        fix = f"use some of {', '.join(known)}" if known else "leave out --only"
        raise UsageError(f"{part} has no part {quote(strange[0])}", fix=fix)


def versions() -> dict[str, str]:
    """Return the versions that figures depend on."""
    found = {"penstock": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Return what figures depend on, and nothing that names the machine."""
    load = os.getloadavg()[0]
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": round(load, 2),
        "implementation": sys.implementation.name,
    }


def _render(target: Console, result: dict[str, Any], module: ModuleType) -> None:
    figures = result["figures"]
    for one in module.tables(figures) if hasattr(module, "tables") else ():
        target.print(Text(one.title, style="bold"))
        drawn = table(*one.columns)
        for row in one.rows:
            drawn.add_row(*map(Text, row))
        target.print(drawn)
    in_tables = getattr(module, "IN_TABLES", ())
    shown = table(result["part"], "")
    for name, value in _flatten({k: v for k, v in figures.items() if k not in in_tables}, ""):
        shown.add_row(Text(name), Text(value))
    target.print(shown)
    target.print(f"{result['seconds']} s, {result['machine']['cores']} cores", style="dim")


def _flatten(value: Any, name: str) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        rows = []
        for key, item in value.items():
            rows += _flatten(item, f"{name}.{key}" if name else str(key))
        return rows
    if isinstance(value, list):
        return [
            row for index, item in enumerate(value) for row in _flatten(item, f"{name}.{index}")
        ]
    return [(name, f"{value:,.6g}" if isinstance(value, float) else str(value))]
