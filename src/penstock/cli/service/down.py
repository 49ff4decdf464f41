"""`penstock down`: stop the supervisor and its parts, in order."""

from __future__ import annotations

import os
import signal
import time

import click

from penstock.cli.output import json_option, show
from penstock.cli.session import configuration
from penstock.errors import UnavailableError
from penstock.supervisor import RunFolder

POLL_SECONDS = 0.05


@click.command("down")
@json_option
def command(as_json: bool) -> None:
    """Stop the parts that `penstock up` runs, and wait until they have ended."""
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
