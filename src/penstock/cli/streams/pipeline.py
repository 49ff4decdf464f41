"""`penstock pipeline`: event detection by Spark, over streams."""

from __future__ import annotations

import itertools
import signal
import threading
from contextlib import closing
from functools import partial
from typing import Any

import click
from rich.console import Console

from penstock.cli.output import json_option, show, table
from penstock.cli.session import configuration, open_database, open_definitions
from penstock.errors import UsageError, quote

COLUMNS = ("kind", "name", "subject", "at", "source", "target", "event", "topic", "said")
MOST_ROWS = 10_000


@click.group("pipeline")
def command() -> None:
    """Detect events in streams, at scale and over long windows."""


@command.command("detect")
@click.option("--stream", required=True, help="The stream to read.")
@click.option("--once", is_flag=True, help="Process the existing records, and exit.")
@json_option
def detect(stream: str, once: bool, as_json: bool) -> None:
    """Detect events in the records of a stream, until Ctrl-C or SIGTERM.

    Detection uses the same definitions as the gateway. Complex events, transitions and what
    actions would publish are reported, each once; access remains the gateway's decision.
    """
    from penstock.definitions import DefinitionSet
    from penstock.definitions.differential_privacy import coarsen
    from penstock.model.kinds import View
    from penstock.pipeline.control import find_private_streams
    from penstock.pipeline.detection.runner import open_detection, run_detection
    from penstock.pipeline.records.parser import use_keys
    from penstock.pipeline.session import open_session
    from penstock.store.consent import ConsentBook
    from penstock.telemetry import configure, install_hooks

    config = configuration()
    configure(level=config.log.level, style=config.log.format)
    install_hooks()
    config.require_files("kafka")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with open_definitions() as store, open_database(config) as database:
        consent = ConsentBook.open(database, config.consent.key).opt_outs

        def definitions() -> DefinitionSet:
            return store.current()[1]

        definitions()  # what is wrong with the store is told before Spark starts
        spark = open_session(config.pipeline)
        use_keys(config)
        begin = partial(open_detection, config, spark, stream=stream, consent=consent)
        try:
            if once:
                with closing(begin(definitions())) as runner:
                    runner.catch_up()
            else:
                runner = run_detection(begin, definitions, config.pipeline.interval, stop)
        finally:
            spark.stop()
    totals = runner.totals
    figures = {"read": totals.read, "rejected": totals.rejected}
    private = stream in find_private_streams(runner.plan.definitions.of(View).values())
    if private:
        figures = {name: coarsen(it) for name, it in figures.items()}
    more = "+" if private else ""

    def render(target: Console) -> None:
        target.print(
            f"{figures['read']:,}{more} records, {totals.published:,} results, "
            f"{figures['rejected']:,}{more} rejected"
        )

    show(as_json, {**figures, "results": totals.published}, render)


@command.command("detected")
@click.option("--stream", required=True, help="The stream whose detection is shown.")
@click.option(
    "--kind",
    type=click.Choice(["event", "transition", "publication"]),
    default="transition",
    show_default=True,
)
@click.option("--rows", type=click.IntRange(1, MOST_ROWS), default=20, show_default=True)
@json_option
def detected(stream: str, kind: str, rows: int, as_json: bool) -> None:
    """Show what was detected in a stream, the newest batches first."""
    from penstock.model.kinds import Stream
    from penstock.pipeline.detection.runner import results_folder
    from penstock.pipeline.sinks.commits import ViewFolder
    from penstock.pipeline.sinks.published import read_published

    config = configuration()
    with open_definitions() as store:
        known = store.current()[1].of(Stream)
    if stream not in known:
        fix = f"streams are {', '.join(known) or 'none yet'}"
        raise UsageError(f"there is no stream {quote(stream)}", fix=fix)
    folder = ViewFolder(results_folder(config.pipeline, stream))
    chosen = (it for it in read_published(folder) if it["kind"] == kind)
    found = list(itertools.islice(chosen, rows))
    show(as_json, found, lambda target: _render(target, found))


def _render(target: Console, found: list[dict[str, Any]]) -> None:
    if not found:
        target.print("nothing was detected yet")
        return
    columns = [name for name in COLUMNS if any(it[name] is not None for it in found)]
    shown = table(*columns)
    for it in found:
        shown.add_row(*("" if it[name] is None else str(it[name]) for name in columns))
    target.print(shown)
