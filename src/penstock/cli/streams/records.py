"""`connect`, `views feed`, `consume`: rows become records; readers read views at Kafka.

Rules that hold here:
- Each row of a file is ingested once, also after a crash in the middle. A row that is no record
  is reported with its place and left out.
- A view is read as one of its readers: with their password, and as far as Kafka lets them.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import console, json_option, print_json, show, table
from penstock.cli.session import configuration, open_definitions
from penstock.cli.streams.view_access import note_use
from penstock.errors import DeniedError, UsageError, quote

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from penstock.config import Config
    from penstock.eventlog.kafka import KafkaLog
    from penstock.eventlog.registry import SchemaRegistry
    from penstock.feeding.ingest import ChunkWriter, Fed
    from penstock.model.kinds import Stream

BAD_ROWS_TOLD = 1000
BAD_ROWS_SHOWN = 20


@click.group("connect")
def connect() -> None:
    """Ingest files that others write into streams."""


@connect.command("csv")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--stream", "name", required=True, help="The stream to append the rows to.")
@json_option
def feed_csv(folder: Path, name: str, as_json: bool) -> None:
    """Ingest the CSV files of FOLDER into a stream, each row once.

    The first line of a file names its columns. Rows that were ingested already are skipped, also
    after a crash in the middle; files that have grown are continued. Invalid rows are reported
    with their place and the reason, and left out.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from penstock.feeding.ingest import Connector
    from penstock.model.kinds import Stream

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
        TextColumn("{task.description}", markup=False),
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
            for row in [row for it in done for row in it.bad][:BAD_ROWS_TOLD]
        ],
    }
    show(as_json, data, lambda target: _render_fed(target, done))


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
    log.greet()
    log.make_topic(stream.topic)
    return lambda name: TransactionalTopic(log, stream.topic, f"feed {stream.topic} {name}")


def _render_fed(target: Console, done: list[Fed]) -> None:
    shown = table("file", "fed", "bad", "fed in all", "bad in all")
    for it in done:
        figures = (it.rows, len(it.bad), it.mark.fed, it.mark.bad)
        shown.add_row(Text(it.file), *(f"{figure:,}" for figure in figures))
    target.print(shown if done else "there are no files that end in .csv")
    rows = [row for it in done for row in it.bad]
    for row in rows[:BAD_ROWS_SHOWN]:
        target.print(Text.assemble((f"{row.file}:{row.line}: ", "bold"), row.reason))
    if len(rows) > BAD_ROWS_SHOWN:
        target.print(
            f"… and {len(rows) - BAD_ROWS_SHOWN:,} more: see them with --json", style="dim"
        )


@click.command("feed")
@click.argument("stream")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--delimiter", metavar="CHARACTER", help="The cell delimiter of CSV; default: detected."
)
@click.option("--encoding", help="The encoding of CSV, such as cp1252.")
@click.option(
    "--header/--no-header",
    default=None,
    help="Whether the first line of CSV names the columns; without it they are the fields of the "
    "stream, in order.",
)
@click.option("--again", is_flag=True, help="Also feed files that were fed before.")
@json_option
def feed(
    stream: str,
    *,
    files: tuple[str, ...],
    delimiter: str | None,
    encoding: str | None,
    header: bool | None,
    again: bool,
    as_json: bool,
) -> None:
    """Append the records of files to STREAM: CSV, JSON lines, Parquet or Avro, by file extension.

    The encoding, the delimiter and the header of CSV are detected, and shown. A file that was fed
    to the stream before is refused, whatever its name.
    """
    from penstock.eventlog import EventLog
    from penstock.feeding.ingest import CsvOptions, FedFiles
    from penstock.feeding.ingest import feed as feed_file
    from penstock.model.kinds import Stream

    if delimiter is not None:
        delimiter = "\t" if delimiter == "\\t" else delimiter
        if len(delimiter) != 1:
            raise UsageError(
                f"{quote(delimiter)} is not one character", fix="write one, such as ';' or '\\t'"
            )

    config = configuration()
    with open_definitions() as store:
        definitions = store.current()[1]
    found = definitions.get(Stream, stream)
    if found is None:
        known = ", ".join(definitions.of(Stream)) or "none yet"
        raise UsageError(f"there is no stream {quote(stream)}", fix=f"streams are {known}")
    topic = EventLog(config.pipeline.event_log).topic(found.topic)
    options = CsvOptions(encoding, delimiter, header)
    earlier = FedFiles(config.pipeline.folder, found.name)
    fed: dict[str, int] = {}
    dialects: dict[str, str] = {}
    for file in files:
        path = Path(file)
        digest = "" if again else earlier.refuse(path)
        fed[file], dialect = feed_file(path, found, topic, options)
        earlier.note(path, digest or earlier.digest(path), fed[file])
        note_use("stream.fed", stream=found.name, count=fed[file])
        if dialect is not None:
            dialects[file] = str(dialect)

    def render(target: Console) -> None:
        for file, rows in fed.items():
            told = f" ({dialects[file]})" if file in dialects else ""
            target.print(f"{rows:,} {'record' if rows == 1 else 'records'} of {file}{told}")

    show(as_json, {"fed": fed, "csv": dialects, "next": topic.next_offset}, render)


VARIABLE = "PENSTOCK_READER_PASSWORD"
WAIT_SECONDS = 0.5
MOST_AT_ONCE = 500
LONGEST_CELL = 60


@click.command("consume")
@click.argument("name", metavar="VIEW")
@click.option("--user", required=True, help="Who reads.")
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"The file of the password; else ${VARIABLE}, else the file that `penstock user add "
    "--generate` wrote, else it is asked for.",
)
@click.option("--rows", type=click.IntRange(1, 1_000_000), default=20, show_default=True,
              help="How many of the newest records.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Keep printing new records, until Ctrl-C.")
@json_option
def consume(
    *, name: str, user: str, password_file: Path | None, rows: int, follow: bool, as_json: bool
) -> None:
    """Print the records of VIEW that Kafka lets a user read.

    Kafka itself decides: a user without a role of the view is refused. With --json, one line
    per record.
    """
    from penstock.eventlog.kafka import KafkaLog
    from penstock.model.kinds import View

    config = configuration()
    with open_definitions() as store:
        views = store.current()[1].of(View)
    if name not in views:
        fix = f"views are {', '.join(views) or 'none yet'}"
        raise UsageError(f"there is no view {quote(name)}", fix=fix)
    log = KafkaLog(config.kafka, user, _password(config, user, password_file))
    read = _read
    if views[name].encoding == "avro":
        from penstock.eventlog.registry import SchemaRegistry

        read = partial(_read_avro, SchemaRegistry.of(config.kafka.registry))
    shown = 0
    for values in _batches(log, views[name].topic, rows, follow=follow):
        some = [read(value) for value in values]
        shown += len(some)
        if as_json:
            for record in some:
                print_json(record)
        else:
            _print(some)
    if not shown and not as_json:
        console().print("there are no records yet")


def _password(config: Config, user: str, file: Path | None) -> str:
    from penstock.config.secrets import SecretFile

    if file is not None:
        return SecretFile(file).read_text()
    if VARIABLE in os.environ:
        return os.environ[VARIABLE]
    made = config.kafka.passwords / user.replace("/", "%")
    if made.exists():
        return SecretFile(made).read_text()
    return str(click.prompt(f"Password of {user}", hide_input=True, err=True))


def _batches(log: KafkaLog, topic: str, rows: int, *, follow: bool) -> Iterator[list[bytes | None]]:
    """Yield the newest records, then others as they come, some at a time."""
    from confluent_kafka import KafkaException, TopicPartition

    partitions = _enter(log, topic)
    reader = log.consumer()
    try:
        ranges = {}
        for number in partitions:
            place = TopicPartition(topic, number)
            ranges[number] = reader.get_watermark_offsets(place, timeout=log.settings.timeout)
        yield _newest(log, topic, reader, ranges, rows)
        reader.assign([TopicPartition(topic, it, end) for it, (_, end) in ranges.items()])
        while follow:
            found = [it.value() for it in _poll(log, topic, reader) if it.error() is None]
            if found:
                yield found
    except KafkaException as error:
        raise log.explain(f"{quote(topic)} cannot be read", error) from error
    finally:
        reader.close()


def _newest(
    log: KafkaLog,
    topic: str,
    reader: Consumer,
    ranges: Mapping[int, tuple[int, int]],
    rows: int,
) -> list[bytes | None]:
    """Return the values of the newest records of all partitions together, oldest first.

    Marks of transactions have offsets, too, so that as many offsets hold fewer records: who finds
    too few looks further back.
    """
    from confluent_kafka import TopicPartition

    held: dict[int, deque[tuple[int, int, int, bytes | None]]] = {}
    looking, reach = dict(ranges), rows
    while looking:
        starts = {it: max(first, end - reach) for it, (first, end) in looking.items()}
        reader.assign([TopicPartition(topic, it, start) for it, start in starts.items()])
        held |= {it: deque(maxlen=rows) for it in looking}
        unread = {it for it, (_, end) in looking.items() if starts[it] < end}
        deadline = time.monotonic() + log.settings.timeout
        while unread:
            if time.monotonic() > deadline:
                silence = TimeoutError(f"nothing came in {log.settings.timeout:g} s")
                raise log.explain(f"{quote(topic)} cannot be read", silence)
            for message in _poll(log, topic, reader):
                deadline = time.monotonic() + log.settings.timeout
                number, offset = message.partition() or 0, message.offset() or 0
                if message.error() is not None:
                    unread.discard(number)
                    continue
                if offset < ranges[number][1]:
                    moment = message.timestamp()[1]
                    held[number].append((moment, number, offset, message.value()))
                if offset + 1 >= ranges[number][1]:
                    unread.discard(number)
        looking = {
            it: bounds
            for it, bounds in looking.items()
            if len(held[it]) < rows and starts[it] > bounds[0]
        }
        reach *= 4
    newest = sorted((it for some in held.values() for it in some), key=itemgetter(0, 1, 2))
    return [value for *_, value in newest[-rows:]]


def _poll(log: KafkaLog, topic: str, reader: Consumer) -> Iterator[Message]:
    """Yield what has come: records, and where partitions end; raise what ends the reading."""
    from confluent_kafka import KafkaError, KafkaException

    for message in reader.consume(MOST_AT_ONCE, WAIT_SECONDS):
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
            yield message
        elif error.code() in _DENIALS:
            raise _denied(log, topic)
        elif not error.retriable():
            raise log.explain(f"reading {quote(topic)} ended", KafkaException(error))


# What Kafka answers to those who may not; librdkafka names them only as members.
_DENIALS = {29, 30}  # TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED


def _enter(log: KafkaLog, topic: str) -> list[int]:
    """Log in, and return the partitions of a topic, or say why the user gets none."""
    from confluent_kafka import KafkaException

    from penstock.eventlog.connection import GREETING_SECONDS

    deadline = time.monotonic() + min(GREETING_SECONDS, log.settings.timeout) - 2.0
    while True:
        try:
            found = log.admin.list_topics(topic, timeout=2.0).topics[topic]
        except KafkaException as error:
            if log.refused():
                raise DeniedError(
                    f"Kafka does not let {quote(log.user)} in: wrong user or password",
                    fix="check the password, or ask the data officer for one: penstock user",
                ) from None
            if time.monotonic() > deadline:
                raise log.explain("it does not answer", error) from error
        else:
            if found.error is not None and found.error.code() in _DENIALS:
                raise _denied(log, topic)
            if found.error is not None:
                what = f"there is no topic {quote(topic)}"
                raise log.explain(what, KafkaException(found.error))
            return sorted(found.partitions)


def _denied(log: KafkaLog, topic: str) -> DeniedError:
    return DeniedError(
        f"Kafka does not let {quote(log.user)} read {quote(topic)}",
        fix=f"`penstock explain --kafka-topic {topic}` says which roles may; ask the data officer "
        "for one of them",
    )


def _read(value: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(value or b"")
    except (ValueError, RecursionError):
        return {"(no record)": f"{len(value or b'')} bytes"}
    return found if isinstance(found, dict) else {"(no record)": str(type(found).__name__)}


def _read_avro(registry: SchemaRegistry, value: bytes | None) -> dict[str, Any]:
    from penstock.eventlog.registry import HEADER

    if value is None or len(value) < HEADER or value[0] != 0:
        return _read(value)  # from before the view was written as Avro
    try:
        found = registry.decode(value)
    except LookupError:
        return {"(no record)": "the registry does not know its schema"}
    return {
        name: item.isoformat() if hasattr(item, "isoformat") else item
        for name, item in found.items()
    }


def _print(records: list[dict[str, Any]]) -> None:
    """Print records as tables, a new one where the fields change."""
    for names, some in groupby(records, key=tuple):
        shown = table(*names)
        for record in some:
            shown.add_row(*(_cell(value) for value in record.values()))
        console().print(shown)


def _cell(value: Any) -> Text:
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    plain = "".join(it if it.isprintable() else "�" for it in text)
    short = plain if len(plain) <= LONGEST_CELL else plain[: LONGEST_CELL - 1] + "…"
    return Text(short)
