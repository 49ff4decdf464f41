"""`penstock gateway`: run the MQTT gateway in the foreground."""

from __future__ import annotations

import resource
import sys
from typing import TYPE_CHECKING

import click

from penstock.cli.output import json_option
from penstock.cli.session import configuration

if TYPE_CHECKING:
    from penstock.config import Config

DESCRIPTORS_PER_CLIENT = 2
DESCRIPTORS_BESIDE = 256
_RUN = "import sys; from penstock.cli import main; main(sys.argv[1:])"


@click.command("gateway")
@click.option("--worker", type=click.IntRange(0, 255), hidden=True)
@json_option
@click.pass_context
def command(ctx: click.Context, *, worker: int | None, as_json: bool) -> None:
    """Run the MQTT gateway in front of the broker, until Ctrl-C or SIGTERM.

    `penstock up` runs it together with the broker. Where the broker runs elsewhere, name
    its host and port in penstock.yaml. With --json the log is JSON, one entry per line.
    """
    from penstock.gateway.service.process import run_until_told
    from penstock.gateway.service.workers import run_workers
    from penstock.telemetry import configure, install_hooks

    config = configuration()
    configure(level=config.log.level, style="json" if as_json else config.log.format)
    install_hooks()
    config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    raise_descriptor_limit(config)
    count = config.gateway.workers
    if count > 1 and worker is None:
        named = ctx.find_root().obj
        options = ["--config", named] if named else []
        style = ["--json"] if as_json else []
        run_workers(
            [
                [sys.executable, "-c", _RUN, *options, "gateway", "--worker", str(number), *style]
                for number in range(count)
            ]
        )
        return
    try:
        import uvloop
    except ImportError:
        import asyncio

        asyncio.run(run_until_told(config, worker=worker or 0))
    else:
        uvloop.run(run_until_told(config, worker=worker or 0))


def raise_descriptor_limit(config: Config) -> None:
    """Let the process have as many open files as its clients need, if the system lets it."""
    wanted = config.gateway.limits.connections * DESCRIPTORS_PER_CLIENT + DESCRIPTORS_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
