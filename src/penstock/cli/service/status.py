"""`penstock status`: show the parts that run."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, show, table
from penstock.cli.session import configuration
from penstock.config import Config
from penstock.errors import UnavailableError
from penstock.supervisor import PartStatus, RunFolder, Status

COLOURS = {
    "running": "green",
    "starting": "yellow",
    "waiting": "yellow",
    "stopping": "yellow",
    "backoff": "red",
    "failed": "bold red",
    "stopped": "red",
    "degraded": "bold red",
    "down": "bold red",
}


@click.command("status")
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Show the parts that run.

    The exit code is 0 if all parts run, and 3 if one does not or no supervisor runs.
    """
    config = configuration()
    status = RunFolder(config.data).read()
    if status is None:
        show(as_json, _down_data(config), lambda console: _render_down(console, config))
    else:
        show(as_json, status_data(status), lambda console: render_status(console, status))
    if status is None or status.state != "running":
        ctx.exit(UnavailableError.exit_code)


def status_data(status: Status) -> dict[str, Any]:
    """Return the status for machines: what the file says, and how long each state lasts."""
    data = status.model_dump(mode="json")
    now = time.time()
    for part in (data, *data["parts"]):
        part["seconds"] = round(max(0.0, now - part["since"]), 1)
    return data


def render_status(console: Console, status: Status) -> None:
    """Draw the table of parts."""
    head = f"supervisor {status.pid}, up {show_seconds(time.time() - status.since)}"
    if status.monitor:
        head += f", {status.monitor}/metrics"
    console.print(Text.assemble(_word(status.state), f"  {head}"))
    made = table("part", "state", "pid", "uptime", "restarts", "last exit", "address")
    for part in status.parts:
        made.add_row(*_row(part))
    console.print(made)
    for part in status.parts:
        # Below, not beside: sentences would squeeze the table on a narrow terminal.
        if part.detail:
            console.print(Text.assemble((f"{part.part}: ", "bold"), part.detail))


def _row(part: PartStatus) -> list[str | Text]:
    running = part.state == "running"
    return [
        part.part,
        _word(part.state),
        str(part.pid or "-"),
        show_seconds(time.time() - part.since) if running else "-",
        str(part.restarts),
        part.last_exit or "-",
        (part.address or "-").replace(", ", "\n"),
    ]


def _word(state: str) -> Text:
    return Text(state, COLOURS[state])


def show_seconds(seconds: float) -> str:
    """Write a length of time in its two largest units: `3h 5m`."""
    left = max(0, int(seconds))
    shown: list[str] = []
    for unit, worth in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, worth)
        if count or (unit == "s" and not shown):
            shown.append(f"{count}{unit}")
    return " ".join(shown[:2])


def _down_data(config: Config) -> dict[str, Any]:
    parts = [{"part": name, "state": "down"} for name in config.parts]
    return {"state": "down", "data": str(config.data), "parts": parts}


def _render_down(console: Console, config: Config) -> None:
    console.print(Text.assemble(_word("down"), f"  no supervisor runs on {config.data}"))
    made = table("part", "state")
    for name in config.parts:
        made.add_row(name, _word("down"))
    console.print(made)
    console.print("→ `penstock up` runs them")
