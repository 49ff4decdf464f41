"""`penstock views erase` and `rebuild`: take back what a view published, and publish it anew.

    running ──erase───▶ paused, empty, behind what it has read      resume: new records only
       └────rebuild───▶ running, empty, at the first record         publishes by its definition now

Rules that hold here:
- What was published goes as a whole: files, dead letters, counts of persons, and the records of the
  view's topic. A view is not written meanwhile; one that runs is paused first.
- The audit log has who asked for it before anything goes, and what went.
- What readers have copied is beyond reach, and the commands say so.
- Noisy figures are not published twice: both together tell more than their budget promises.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import Function, json_option, show
from penstock.cli.session import configuration, open_definitions
from penstock.cli.streams.view_access import note_use
from penstock.errors import UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.config import Config
    from penstock.definitions import DefinitionSet
    from penstock.model.kinds import Stream, View
    from penstock.pipeline.control import Control

WAIT_SECONDS = 60.0
LOOK_SECONDS = 0.2
BEYOND = "copies that readers made, backups and snapshots of disks are beyond Penstock's reach"


def confirming(function: Function) -> Function:
    """Add the option that answers the question beforehand."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(function)


@click.command("erase")
@click.argument("name", metavar="VIEW")
@confirming
@json_option
def erase(name: str, *, yes: bool, as_json: bool) -> None:
    """Take back all that VIEW has published: its files, or the records of its topic.

    The view is paused and goes on with new records when it is resumed. What readers have copied
    meanwhile is beyond reach; the audit log records who took it back, and when.
    """
    _confirm(yes, f"All that {name} has published will be erased.")
    _carry_out(name, as_json, anew=False)


@click.command("rebuild")
@click.argument("name", metavar="VIEW")
@click.option(
    "--accept-risk",
    is_flag=True,
    help="Publish figures with differential privacy a second time: to those who kept the first, "
    "both together tell more about a person than the budget promises.",
)
@confirming
@json_option
def rebuild(name: str, *, accept_risk: bool, yes: bool, as_json: bool) -> None:
    """Take back what VIEW has published, and publish it again under its current definition.

    The view reads its stream from the first record, and leaves out people who have opted out
    meanwhile. If records of the stream are gone, nothing is taken back.
    """
    _confirm(yes, f"All that {name} has published will be erased and published anew.")
    _carry_out(name, as_json, anew=True, accept_risk=accept_risk)


def _confirm(yes: bool, what: str) -> None:
    if yes:
        return
    try:
        click.confirm(f"{what} Go on?", abort=True, err=True)
    except click.Abort:
        raise UsageError("nothing was changed", fix="say yes, or add --yes") from None


def _carry_out(name: str, as_json: bool, *, anew: bool, accept_risk: bool = False) -> None:
    from penstock.definitions.differential_privacy import coarsen
    from penstock.hadoop import remove
    from penstock.model.kinds import View
    from penstock.pipeline.control import PAUSED, RUNNING, Control, find_private_streams
    from penstock.pipeline.sinks.commits import TAKING_BACK, take_back

    config = configuration()
    with open_definitions() as store:
        definitions = store.current()[1]
    control = Control(config.pipeline.folder)
    stream, view = _find(definitions, control, name, anew=anew)
    # Asks Kafka first, so that one that is out of reach is told soon.
    places = _list_topics(config, stream, view)
    if anew:
        _check_rebuild(config, definitions, view, accept_risk=accept_risk)
    state = control.wanted(name).state
    runs = control.condition(name) is not None
    folder = control.view(name)
    last = folder.last()
    records = last.totals.published if last else 0
    if stream.name in find_private_streams([view, *definitions.of(View).values()]):
        records = coarsen(records)
    if state == RUNNING:
        control.put(name, PAUSED)
    try:
        with _writing_alone(control, name):
            note_use("view.erasure", view=name)
            own = _find_state(config, stream, folder.folder) if anew else None
            files = take_back(
                folder, lambda: _erase_topics(config, stream, view, places), anew=anew
            )
            if own is not None:
                remove(own)
            note_use("view.rebuilt" if anew else "view.erased", view=name, count=records)
    except BaseException:
        if state == RUNNING and not (folder.folder / TAKING_BACK).exists():
            control.put(name, RUNNING)
        raise
    if anew:
        control.put(name, RUNNING)
    data: dict[str, Any] = {
        "view": name,
        "records": records,
        "files": files,
        "topics": places,
        "state": control.wanted(name).state,
    }

    def render(target: Console) -> None:
        also = "".join(f", and the records of {it}" for it in places)
        what = f"erased {_count(records, 'record')} in {_count(files, 'file')}{also}"
        target.print(Text.assemble((name, "bold"), f": {what}"))
        target.print(f"{BEYOND}", style="yellow")
        if anew:
            how = "the pipeline that runs publishes" if runs else "`penstock views run` publishes"
            target.print(f"{how} it again, from the first record")
        elif control.wanted(name).state == PAUSED:
            target.print(
                f"it is paused; `penstock views resume {name}` goes on with new records, "
                f"`penstock views rebuild {name}` publishes again from the first"
            )

    show(as_json, data, render)


def _find(
    definitions: DefinitionSet, control: Control, name: str, *, anew: bool
) -> tuple[Stream, View]:
    """Return a view and its stream as they were published last; it may be defined no more."""
    from penstock.model.kinds import Stream, View
    from penstock.pipeline.anonymizers.blueprint import Blueprint

    known = definitions.of(View)
    folder = control.view(name) if name in known or ".." not in name.split("/") else None
    last = folder.last() if folder is not None else None
    if name not in known and (anew or last is None):
        fix = f"views are {', '.join(known) or 'none yet'}"
        raise UsageError(f"there is no view {quote(name)}", fix=fix)
    if last is not None and folder is not None:
        plan = folder.folder / "plans" / f"{last.plan}.json"
        if plan.exists():
            made = Blueprint.from_json(plan.read_text(encoding="utf-8"))
            return made.stream, made.view
    if name not in known:
        raise UsageError(
            f"the folder of {quote(name)} does not say what it was published by",
            fix=f"remove {control.folder / name} by hand",
        )
    return definitions.of(Stream)[known[name].stream], known[name]


def _check_rebuild(
    config: Config,
    definitions: DefinitionSet,
    published: View,
    *,
    accept_risk: bool,
) -> None:
    """Raise where a view cannot, or should not, be published again."""
    from penstock.model.kinds import Stream, View
    from penstock.pipeline.control import find_private_streams
    from penstock.pipeline.sources.event_log import Position
    from penstock.pipeline.sources.source import open_source
    from penstock.pipeline.views.stream_runner import checkpoints_folder

    now = definitions.of(View)[published.name]
    if find_private_streams([published, now]) and not accept_risk:
        raise UsageError(
            f"{quote(now.name)} publishes figures with differential privacy: published twice, they "
            "tell more about a person than their budget promises",
            fix="define another view for later records, or acknowledge it with --accept-risk",
        )
    stream = definitions.of(Stream)[now.stream]
    source = open_source(stream, config.pipeline, config.kafka)
    source.begin()
    source.check_whole()
    checkpoints = checkpoints_folder(stream.name, config.pipeline)
    for folder in checkpoints.iterdir() if checkpoints.is_dir() else ():
        source.check(Position(folder, ""))


def _find_state(config: Config, stream: Stream, view: Path) -> Path | None:
    """Return where Spark keeps what a view holds back, if it is the view's own."""
    from penstock.pipeline.views.checkpoints import Checkpoint, read_place
    from penstock.pipeline.views.stream_runner import checkpoints_folder

    place = read_place(view)
    if place is None:
        return None
    checkpoint = Checkpoint(checkpoints_folder(stream.name, config.pipeline) / place.checkpoint)
    return checkpoint.folder if checkpoint.owner.view == view.name else None


def _list_topics(config: Config, stream: Stream, view: View) -> list[str]:
    """Return where records of a view are besides its folder, also where it was changed since."""
    from penstock.eventlog import EventLog
    from penstock.hadoop import is_remote

    if stream.source is not None and stream.source.kafka is not None:
        from penstock.eventlog.kafka import KafkaLog

        log = KafkaLog(config.kafka)
        log.greet()
        return [f"the topic {view.topic} at Kafka"] if view.topic in log.topics() else []
    topic = EventLog(config.pipeline.event_log).topic(view.topic)
    found = topic.segments()
    if found and is_remote(topic.folder):
        raise UsageError(
            f"records at {topic.folder} cannot be taken back: files at a store are not changed",
            fix="remove the topic's files there, and repeat this",
        )
    return [f"the topic {view.topic} of the event log"] if found else []


def _erase_topics(config: Config, stream: Stream, view: View, places: list[str]) -> None:
    from penstock.eventlog import EventLog
    from penstock.eventlog.erasure import erase as erase_log

    if not places:
        return
    if stream.source is not None and stream.source.kafka is not None:
        from penstock.eventlog.kafka import KafkaLog

        KafkaLog(config.kafka).topic(view.topic).delete_records()
        return
    topic = EventLog(config.pipeline.event_log).topic(view.topic)
    # The places of records stay, for whoever reads the topic goes on at an offset.
    erase_log(topic, lambda _: True, "", needle=None, keep=lambda: None)


@contextmanager
def _writing_alone(control: Control, name: str) -> Iterator[None]:
    """Wait until nobody writes a view, and keep others from it."""
    from penstock.eventlog.erasure import alone
    from penstock.pipeline.sinks.commits import lock_view

    folder = control.folder / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            lock = lock_view(folder)
        except UnavailableError:
            if time.monotonic() > end:
                raise
            time.sleep(LOOK_SECONDS)
        else:
            break
    with lock, alone(folder, lambda: None):
        yield


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
