"""`penstock up`, `down` and `status`: the parts named in penstock.yaml under one supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, print_json, show, table
from penstock.cli.service.kept_sessions import count_kept_sessions, render_kept_sessions
from penstock.cli.session import configuration
from penstock.errors import UnavailableError

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.supervisor.status import PartStatus, SupervisorStatus

POLL_SECONDS = 0.05
LAST_WORDS = 20
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


@click.command("up")
@click.option("-d", "--detach", is_flag=True, help="Return when the parts run; they go on.")
@json_option
@click.pass_context
def up(ctx: click.Context, detach: bool, as_json: bool) -> None:
    """Run the parts named in penstock.yaml.

    They run until Ctrl-C or SIGTERM, then stop in order; a second signal hurries. A part
    that fails is started again, with growing pauses, and given up if it fails too often;
    SIGUSR1 tries given-up parts again. With --json every change is one line.
    """
    from penstock.config import load
    from penstock.supervisor.supervisor import prepare
    from penstock.telemetry import configure, install_hooks

    named = ctx.find_root().obj

    def load_settings(environ: Mapping[str, str]) -> Config:
        return load(Path(named) if named else None, environ)

    config, supervisor = prepare(load_settings, os.environ)
    if detach:
        _detach(config, as_json=as_json)
        return
    configure(level=config.log.level, style=config.log.format)
    install_hooks()
    supervisor.run(print_status if as_json else None)


def print_status(status: SupervisorStatus) -> None:
    """Print one line of JSON for a change."""
    print_json(status_data(status))
    sys.stdout.flush()


def _detach(config: Config, *, as_json: bool) -> None:
    """Start a supervisor that outlives this command, and wait until its parts run."""
    from penstock.supervisor.status import RunFolder

    folder = RunFolder(config.data)
    if folder.is_held():
        raise UnavailableError(
            "a supervisor runs already", fix="see `penstock status`; `penstock down` stops it"
        )
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = folder.path / "supervisor.log"
    with log.open("wb") as output:
        log.chmod(0o600)
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "--config", str(config.file), "up"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + config.supervisor.ready_timeout * (1 + len(config.parts))
    status = folder.read()
    while time.monotonic() < deadline and not _settled(status, process.pid):
        if process.poll() is not None:
            lines = log.read_text(errors="replace").splitlines()[-LAST_WORDS:]
            raise UnavailableError(
                "the supervisor ended; its last words:\n" + "\n".join(lines),
                fix=f"see {log}, and `penstock doctor`",
            )
        time.sleep(POLL_SECONDS)
        status = folder.read()
    if status is None:
        raise UnavailableError("the supervisor does not answer", fix=f"see {log}")

    def render(console: Console) -> None:
        render_status(console, status)
        console.print("`penstock down` stops them")

    show(as_json, status_data(status), render)
    if status.state != "running":
        click.get_current_context().exit(UnavailableError.exit_code)


def _settled(status: SupervisorStatus | None, pid: int) -> bool:
    """Whether every part runs or has been given up, or waits for one that has been."""
    if status is None or status.pid != pid:
        return False
    states = {part.state for part in status.parts}
    return states <= {"running", "failed"} or (
        "failed" in states and states <= {"running", "failed", "waiting"}
    )


@click.command("down")
@json_option
def down(as_json: bool) -> None:
    """Stop the parts that `penstock up` runs, and wait until they have ended."""
    from penstock.supervisor.status import RunFolder

    config = configuration()
    folder = RunFolder(config.data)
    status = folder.read()
    if status is None or not folder.is_held():
        show(as_json, {"stopped": False}, lambda console: console.print("nothing runs"))
        return
    os.kill(status.pid, signal.SIGTERM)
    deadline = time.monotonic() + config.supervisor.grace * (len(status.parts) + 1)
    while folder.is_held():
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the supervisor {status.pid} has not ended in time",
                fix="see `penstock status`; calling this again hurries it",
            )
        time.sleep(POLL_SECONDS)
    stopped = {"stopped": True, "parts": [part.part for part in status.parts]}
    show(as_json, stopped, lambda console: console.print(f"stopped {len(status.parts)} parts"))


@click.command("status")
@json_option
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show the parts that run, and how many sessions are kept.

    The exit code is 0 if all parts run, and 3 if one does not or no supervisor runs.
    """
    from penstock.supervisor.status import RunFolder

    config = configuration()
    status = RunFolder(config.data).read()
    kept = count_kept_sessions(config)

    def render(console: Console) -> None:
        if status is None:
            _render_down(console, config)
        else:
            render_status(console, status)
        render_kept_sessions(console, kept)

    show(as_json, (_down_data(config) if status is None else status_data(status)) | kept, render)
    if status is None or status.state != "running":
        ctx.exit(UnavailableError.exit_code)


def status_data(status: SupervisorStatus) -> dict[str, Any]:
    """Return the status for machines: what the file says, and how long each state lasts."""
    data = status.model_dump(mode="json")
    now = time.time()
    for part in (data, *data["parts"]):
        part["seconds"] = round(max(0.0, now - part["since"]), 1)
    return data


def render_status(console: Console, status: SupervisorStatus) -> None:
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
