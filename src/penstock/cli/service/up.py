"""`penstock up`: run the parts named in penstock.yaml under one supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console

from penstock.cli.output import json_option, print_json, show
from penstock.cli.service.status import render_status, status_data
from penstock.config import Config, load
from penstock.errors import UnavailableError
from penstock.supervisor import RunFolder, Status
from penstock.supervisor.supervisor import prepare
from penstock.telemetry import configure, install_hooks

POLL_SECONDS = 0.05
LAST_WORDS = 20


@click.command("up")
@click.option("-d", "--detach", is_flag=True, help="Return when the parts run; they go on.")
@json_option
@click.pass_context
def command(ctx: click.Context, detach: bool, as_json: bool) -> None:
    """Run the parts named in penstock.yaml.

    They run until Ctrl-C or SIGTERM, then stop in order; a second signal hurries. A part
    that fails is started again, with growing pauses, and given up if it fails too often;
    SIGUSR1 tries given-up parts again. With --json every change is one line.
    """
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


def print_status(status: Status) -> None:
    """Print one line of JSON for a change."""
    print_json(status_data(status))
    sys.stdout.flush()


def _detach(config: Config, *, as_json: bool) -> None:
    """Start a supervisor that outlives this command, and wait until its parts run."""
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


def _settled(status: Status | None, pid: int) -> bool:
    """Whether every part runs or has been given up, or waits for one that has been."""
    if status is None or status.pid != pid:
        return False
    states = {part.state for part in status.parts}
    return states <= {"running", "failed"} or (
        "failed" in states and states <= {"running", "failed", "waiting"}
    )
