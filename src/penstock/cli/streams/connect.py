"""`penstock connect`: files of a folder become records of a stream, each row once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import console, json_option, show, table
from penstock.cli.session import configuration, open_definitions
from penstock.errors import UsageError, quote

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.model.kinds import Stream
    from penstock.pipeline.ingest.connector import ChunkWriter, Fed

MOST_TOLD = 1000
MOST_SHOWN = 20


@click.group("connect")
def command() -> None:
    """Ingest what others write into streams."""


@command.command("csv")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--stream", "name", required=True, help="The stream that the rows are records of.")
@json_option
def feed_csv(folder: Path, name: str, as_json: bool) -> None:
    """Ingest the CSV files of FOLDER into a stream, each row once.

    Files have a first line of names. What was ingested already is skipped, also after a crash
    in the middle; files that grew are read on. Rows that are no records are reported with their
    place and the reason, and left out.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from penstock.model.kinds import Stream
    from penstock.pipeline.ingest.connector import Connector

    config = configuration()
    with open_definitions() as store:
        streams = store.current()[1].of(Stream)
    if name not in streams:
        fix = f"streams are {', '.join(streams) or 'none yet'}"
        raise UsageError(f"there is no stream {quote(name)}", fix=fix)
    files = sorted(path for path in folder.iterdir() if path.suffix == ".csv" and path.is_file())
    connector = Connector(streams[name], _writers(config, streams[name]))
    done = []
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console(errors=True),
        disable=as_json or not console(errors=True).is_terminal,
        transient=True,
    ) as progress:
        task = progress.add_task(name, total=sum(path.stat().st_size for path in files))
        for path in files:
            progress.update(task, description=path.name)
            done.append(connector.feed(path, lambda step: progress.advance(task, step)))
    data = {
        "fed": sum(it.rows for it in done),
        "bad": sum(len(it.bad) for it in done),
        "files": [
            {
                "file": it.file,
                "fed": it.rows,
                "bad": len(it.bad),
                "fed_in_all": it.mark.fed,
                "bad_in_all": it.mark.bad,
            }
            for it in done
        ],
        "problems": [
            {"file": row.file, "line": row.line, "reason": row.reason}
            for row in [row for it in done for row in it.bad][:MOST_TOLD]
        ],
    }
    show(as_json, data, lambda target: _render(target, done))


def _writers(config: Config, stream: Stream) -> Callable[[str], ChunkWriter]:
    """Return what opens the writer of a file."""
    if stream.source is None:
        from penstock.eventlog import EventLog
        from penstock.eventlog.files import MarkedTopic

        topic = EventLog(config.pipeline.event_log).topic(stream.topic)

        def open_file(name: str) -> ChunkWriter:
            digest = hashlib.sha256(name.encode()).hexdigest()[:24]
            return MarkedTopic(topic, config.pipeline.folder / ".fed" / stream.name / digest)

        return open_file
    from penstock.eventlog.kafka import KafkaLog
    from penstock.eventlog.transactions import TransactionalTopic

    log = KafkaLog(config.kafka)
    log.make_topic(stream.topic)
    return lambda name: TransactionalTopic(log, stream.topic, f"feed {stream.topic} {name}")


def _render(target: Console, done: list[Fed]) -> None:
    shown = table("file", "fed", "bad", "fed in all", "bad in all")
    for it in done:
        figures = (it.rows, len(it.bad), it.mark.fed, it.mark.bad)
        shown.add_row(Text(it.file), *(f"{figure:,}" for figure in figures))
    target.print(shown if done else "there are no files that end in .csv")
    rows = [row for it in done for row in it.bad]
    for row in rows[:MOST_SHOWN]:
        target.print(Text.assemble((f"{row.file}:{row.line}: ", "bold"), row.reason))
    if len(rows) > MOST_SHOWN:
        target.print(f"… and {len(rows) - MOST_SHOWN:,} more: see them with --json", style="dim")
