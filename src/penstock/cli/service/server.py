"""`penstock server`: run the server of privacy requests in the foreground."""

from __future__ import annotations

import click

from penstock.cli.output import json_option
from penstock.cli.session import configuration
from penstock.errors import UnavailableError


@click.group("server")
def command() -> None:
    """Let front ends and services hand in and answer privacy requests over the network."""


@command.command()
@json_option
def run(*, as_json: bool) -> None:
    """Run the server until Ctrl-C or SIGTERM.

    `penstock up` runs it where `parts` names it. With --json the log is JSON, one entry per line.
    """
    from penstock.telemetry import configure, install_hooks

    try:
        from penstock.server.process import run_until_told
    except ImportError as error:
        raise UnavailableError(
            f"the server is not installed: {error.name} is missing",
            fix="pip install 'penstock[server]'",
        ) from None

    config = configuration()
    configure(level=config.log.level, style="json" if as_json else config.log.format)
    install_hooks()
    config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        import uvloop
    except ImportError:
        import asyncio

        asyncio.run(run_until_told(config))
    else:
        uvloop.run(run_until_told(config))
