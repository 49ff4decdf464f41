"""`penstock views`: anonymized versions of streams: import, run, control, read."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.definitions.changes import change_data, render_change
from penstock.cli.output import console, json_option, show, table
from penstock.cli.session import (
    actor,
    change_definitions,
    configuration,
    open_database,
    open_definitions,
    refuse_missing_store,
)
from penstock.cli.streams.records import feed
from penstock.cli.streams.view_access import admit_reader, asking_reader
from penstock.cli.streams.view_erasure import erase, rebuild
from penstock.cli.streams.view_risk import command as risk
from penstock.cli.streams.view_risk import compare
from penstock.errors import UsageError, quote

if TYPE_CHECKING:
    from penstock.definitions import DefinitionSet
    from penstock.model.kinds import View

COLOURS = {"running": "green", "paused": "yellow", "waiting": "yellow", "failed": "bold red"}
COLUMNS = (
    "view", "stream", "state", "rate", "lag", "read", "published", "rejected", "held", "loss",
)  # fmt: skip
# On narrow terminals less is shown: columns that cannot be read show nothing.
NARROW = 100
SPARED = {"stream", "read"}
MOST_ROWS = 10_000
PROGRESS_SECONDS = 2.0
GAP = 2
"""Spaces between columns."""
RELEASE = "they leave when views run: `penstock views run --once`"


@click.group("views")
def command() -> None:
    """Make anonymized versions of streams, each for its audience."""


@command.command("import")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("-m", "--message", "reason", default="", help="The reason; kept in the history.")
@click.option("--subject", help="The field that identifies persons; k counts persons.")
@click.option(
    "--log",
    type=click.Choice(["files", "kafka"]),
    help="Where the stream and its views are; default: at Kafka if the file names a broker.",
)
@json_option
def import_file(
    file: str, reason: str, subject: str | None, log: str | None, as_json: bool
) -> None:
    """Import a requirements file: a stream and its anonymized versions as JSON.

    The file has globalConfig (bootstrapServer, topic, dataSchema) and streamProperties
    (applicationId, anonymizers). Everything is checked first; all of it is applied, or nothing.
    """
    from penstock.definitions.requirements import LIMITS, check_owners, read_requirements
    from penstock.model.kinds import View

    try:
        with Path(file).open("rb") as source:
            content = source.read(LIMITS.size + 1)
    except OSError as error:
        raise UsageError(
            f"{quote(file)} cannot be read: {error.strerror}", fix="name a readable file"
        ) from None
    found = read_requirements(content, file, subject=subject, log=log)
    brokers = configuration().kafka.bootstrap
    if found.at_kafka and found.brokers not in {None, brokers}:
        found.notes.append(
            f"the file names the brokers {quote(found.brokers)}; the stream is read, and its "
            f"views go, where kafka.bootstrap says: {quote(brokers) if brokers else 'not set yet'}"
        )
    with change_definitions() as definitions:
        _, known = definitions.current()
        check_owners(found, {name: view.stream for name, view in known.of(View).items()})
        change = definitions.apply(
            found.documents,
            actor=actor(),
            reason=reason,
            locate=found.locate,
            problems=found.problems,
        )
    unchanged = len(found.documents) - len(change.created) - len(change.updated)

    def render(target: Console) -> None:
        render_change(target, change, unchanged=unchanged)
        for note in found.notes:
            target.print(Text.assemble(("note ".ljust(9), "yellow"), note))

    show(as_json, {**change_data(change), "notes": found.notes}, render)


@command.command("list")
@json_option
def list_views(as_json: bool) -> None:
    """Show each view: its state, rate, lag, and what became of its records."""
    from penstock.pipeline.control import COUNTS

    rows = _describe()

    def render(target: Console) -> None:
        narrow = target.width < NARROW
        columns = [name for name in COLUMNS if not narrow or name not in SPARED]
        shown = table(*columns)
        for row in rows:
            state = Text(row["state"], style=COLOURS.get(row["state"], ""))
            write = _shorten if narrow else _write
            written = {name: write(row[name]) for name in columns}
            if row["coarse"]:
                written |= {name: f"{written[name]}+" for name in COUNTS if name in written}
            shown.add_row(*(state if name == "state" else written[name] for name in columns))
        target.print(shown if rows else "no views yet → define one, or `penstock views import`")
        for row in rows:
            if row["error"]:
                target.print(Text.assemble((f"{row['view']}: ", "bold red"), row["error"]))

    show(as_json, rows, render)


def _make_action(action: str, about: str) -> None:
    @command.command(action, help=about)
    @click.argument("names", nargs=-1, metavar="[VIEW]...")
    @click.option("--all", "everything", is_flag=True, help="All views.")
    @json_option
    def act(names: tuple[str, ...], everything: bool, as_json: bool) -> None:
        if bool(names) == everything:
            raise UsageError(
                "name the views, or --all, not both",
                fix=f"`penstock views {action} VIEW`, or `--all`",
            )
        from penstock.pipeline.control import ACTIONS, Control

        config = configuration()
        with open_definitions() as store:
            chosen = _choose(store.current()[1], names)
        control = Control(config.pipeline.folder)
        if everything:
            # Those for which it makes no sense are passed over, not refused.
            target, sources = ACTIONS[action]
            allowed = sources | {target}
            chosen = [name for name in chosen if control.wanted(name).state in allowed]
        states = {name: control.change(name, action) for name in chosen}
        held = [it for it in _describe() if it["view"] in states] if action == "stop" else []

        def render(target: Console) -> None:
            for name, state in states.items():
                target.print(Text.assemble((name, "bold"), f" {state}"))
            for row in held:
                if row["held"]:
                    runs = control.condition(row["view"]) is not None
                    told = "the running pipeline releases them" if runs else RELEASE
                    target.print(
                        f"{row['view']} still holds {_count_records(row['held'])} → {told}"
                    )

        show(as_json, states, render)


for _action, _about in {
    "initialize": "Initialize views; they read nothing yet.",
    "start": "Start views from their checkpoint, or from the beginning of the stream.",
    "pause": "Pause views; buffered records are kept.",
    "resume": "Resume paused views.",
    "stop": "Stop views. Records that they hold back are published or rejected first: at once "
    "if `penstock views run` is running, else in its next run.",
}.items():
    _make_action(_action, _about)


@command.command("run")
@click.option("--once", is_flag=True, help="Catch up with the ends of the streams, and exit.")
def run(once: bool) -> None:
    """Run the views that should run, until Ctrl-C or SIGTERM.

    Records are published batch by batch, each once. A view with `trigger: real-time` publishes each
    as it comes, at least once: records of the last ten seconds before it ended are repeated.

    With --once, a summary tells what each view read, published and rejected, what it holds back
    and why, and what releases it.
    """
    from penstock.eventlog import EventLog
    from penstock.pipeline.manager import Manager, run_until_told
    from penstock.pipeline.records.parser import use_keys
    from penstock.pipeline.session import open_session
    from penstock.risk.watch import Observer
    from penstock.store.consent import ConsentBook
    from penstock.store.definitions.checked import CheckedDefinitions
    from penstock.store.definitions.history import Definitions
    from penstock.store.detokenization import VaultAddress
    from penstock.telemetry import configure, install_hooks

    config = configuration()
    refuse_missing_store(config)
    configure(level=config.log.level, style=config.log.format)
    install_hooks()
    config.require_files("kafka")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    spark = open_session(config.pipeline)
    use_keys(config)
    try:
        with open_database(config) as database:
            store = CheckedDefinitions(Definitions(database))
            vault = VaultAddress(config.store.connection_url())
            consent = ConsentBook.open(database, config.consent.key).opt_outs

            def definitions() -> DefinitionSet:
                return store.current()[1]

            manager = Manager(spark, config.pipeline, definitions, vault, config.kafka, consent)
            if once:
                with _telling_progress():
                    manager.run_once()
                _say_held(console(), definitions())
            else:
                confirmed = store.definitions.confirmed
                log = EventLog(config.pipeline.event_log)
                watching = Observer(manager.control, log, definitions).looking()
                run_until_told(config, spark, manager, definitions, stop, confirmed, watching)
    finally:
        spark.stop()


@contextmanager
def _telling_progress() -> Iterator[None]:
    """Say now and then how far views are, where somebody looks."""
    target = console(errors=True)
    done = threading.Event()

    def tell() -> None:
        told = ""
        while not done.wait(PROGRESS_SECONDS):
            rows = [it for it in _describe() if it["wanted"] == "running"]
            text = ", ".join(
                f"{it['view']} {it['read']:,} of {it['read'] + it['lag']:,}" for it in rows
            )
            if text != told:
                target.print(f"records read: {text}")
                told = text

    teller = threading.Thread(target=tell, daemon=True)
    if target.is_terminal:
        teller.start()
    try:
        yield
    finally:
        done.set()
        if teller.is_alive():
            teller.join()


def _say_held(target: Console, definitions: DefinitionSet) -> None:
    """Say what became of records, what is held back, why, and what releases it."""
    from penstock.model.kinds import View

    rows = [it for it in _describe() if it["wanted"] != "absent"]
    shown = table("view", "read", "published", "rejected", "held")
    for row in rows:
        shown.add_row(
            row["view"], *(_write(row[name]) for name in ("read", "published", "rejected", "held"))
        )
    target.print(shown if rows else "no view is started → `penstock views start --all`")
    for row in rows:
        if row["rejected"]:
            target.print(f"`penstock views dead {row['view']}` says why records were rejected")
        if row["held"]:
            why = _explain_held(definitions.of(View)[row["view"]])
            target.print(
                f"{row['view']} holds back {_count_records(row['held'])}: {why}\n"
                f"  → to release them now: `penstock views stop {row['view']}`, then "
                "`penstock views run --once`; those without a group are rejected"
            )


def _explain_held(view: View) -> str:
    """Say until when a view holds records back."""
    from penstock.definitions.k_anonymity import KAnonymization

    for step in view.anonymizers:
        if "delta" in step or "quasi_identifiers" in step:
            delta = step.get("delta", KAnonymization.model_fields["delta"].default)
            wait = f", or have waited {step['max_wait']}" if "max_wait" in step else ""
            return f"groups are formed when {delta:,} are there{wait}"
    return "their window is not over yet"


def _count_records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"


@command.command("read")
@click.argument("name", metavar="VIEW")
@click.option("--rows", type=click.IntRange(1, MOST_ROWS), default=20, show_default=True)
@asking_reader
@json_option
def read(
    name: str, rows: int, user: str | None, password_file: Path | None, *, as_json: bool
) -> None:
    """Show what VIEW has published, the newest files or records first.

    A view that names roles is shown to users with one of them only: say who reads with --as. The
    audit log records who read. This guards the command: the files themselves are guarded by the
    operating system, which lets whoever runs Penstock read them.
    """
    from penstock.eventlog import EventLog
    from penstock.model.kinds import View
    from penstock.pipeline.control import Control
    from penstock.pipeline.sinks.published import read_published, read_topic

    config = configuration()
    with open_definitions() as store:
        definitions = store.current()[1]
    (found,) = _choose(definitions, (name,))
    admit_reader(found, user, password_file)
    topic = EventLog(config.pipeline.event_log).topic(definitions.of(View)[found].topic)
    # A view has either, or both if its format was changed.
    folder = Control(config.pipeline.folder).view(found)
    published = itertools.chain(read_topic(topic), read_published(folder))
    records = list(itertools.islice(published, rows))
    show(as_json, records, lambda target: _render_records(target, records))


@command.command("dead")
@click.argument("name", metavar="VIEW")
@json_option
def dead(name: str, as_json: bool) -> None:
    """Count the records that VIEW could not publish, by reason."""
    from collections import Counter

    from penstock.definitions.differential_privacy import coarsen
    from penstock.model.kinds import View
    from penstock.pipeline.control import Control, find_private_streams

    config = configuration()
    with open_definitions() as store:
        known = store.current()[1]
    (found,) = _choose(known, (name,))
    folder = Control(config.pipeline.folder).view(found)
    reasons: Counter[str] = Counter()
    first: dict[str, str] = {}
    for letter in folder.dead_letters():
        reasons[letter["reason"]] += 1
        first.setdefault(letter["reason"], _write_place(letter))

    last = folder.last()
    counts, read = dict(reasons.most_common()), last.totals.read if last else 0
    coarse = known.of(View)[found].stream in find_private_streams(known.of(View).values())
    if coarse:
        counts, read = {reason: coarsen(it) for reason, it in counts.items()}, coarsen(read)
    more = "+" if coarse else ""

    def render(target: Console) -> None:
        shown = table("records", "first at", "reason")
        for reason, count in counts.items():
            place = "" if coarse else first[reason]
            shown.add_row(f"{count:,}{more}", place, reason)
        target.print(shown if counts else f"no dead letters; {read:,}{more} records were read")

    show(as_json, counts, render)


command.add_command(feed)
command.add_command(risk)
command.add_command(compare)
command.add_command(erase)
command.add_command(rebuild)


def _choose(definitions: DefinitionSet, names: Iterable[str]) -> list[str]:
    """Return the views of these names, or all where none is named."""
    from penstock.model.kinds import View

    known = definitions.of(View)
    chosen = list(names) or list(known)
    for name in chosen:
        if name not in known:
            fix = f"views are {', '.join(known) or 'none yet'}"
            raise UsageError(f"there is no view {quote(name)}", fix=fix)
    return chosen


def _describe() -> list[dict[str, Any]]:
    from penstock.eventlog import EventLog
    from penstock.model.kinds import Stream, View
    from penstock.pipeline.control import (
        Control,
        describe,
        find_private_streams,
        own_log,
    )

    config = configuration()
    with open_definitions() as store:
        definitions = store.current()[1]
    log = EventLog(config.pipeline.event_log)
    logs = {name: own_log(stream, log) for name, stream in definitions.of(Stream).items()}
    control = Control(config.pipeline.folder)
    private = find_private_streams(definitions.of(View).values())
    return [
        describe(name, view.stream, control, logs[view.stream], coarse=view.stream in private)
        for name, view in definitions.of(View).items()
    ]


def _write_place(letter: dict[str, Any]) -> str:
    """Write where a record stands in its source."""
    if "file" in letter:
        return f"{letter['file']}, row {letter['row']:,}"
    if "partition" in letter:
        return f"partition {letter['partition']}, offset {letter['offset']:,}"
    return f"{letter['offset']:,}"


def _shorten(value: Any) -> str:
    """Write large numbers with few digits: 1,234,567 as 1.23M."""
    if isinstance(value, int | float):
        for unit, worth in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if value >= worth * 10:
                return f"{value / worth:.3g}{unit}"
    return _write(value)


def _write(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _render_records(target: Console, records: list[dict[str, Any]]) -> None:
    if not records:
        target.print("nothing is published yet")
        return
    texts = [["" if it is None else str(it) for it in record.values()] for record in records]
    names = list(records[0])
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=False)]
    if sum(widths) + GAP * len(widths) > target.width:
        # Too wide for a line: one record per block.
        for record in records:
            shown = table("field", "value")
            for name, value in record.items():
                shown.add_row(Text(name), Text("" if value is None else str(value)))
            target.print(shown)
            target.print()
        return
    shown = table(*names)
    for row in texts:
        shown.add_row(*map(Text, row))
    target.print(shown)
