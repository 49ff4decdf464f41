"""The hospital with its events at Kafka: from an MQTT client to readers that Kafka lets in.

    reception ──▶ gateway ──▶ Kafka: patients ──▶ Spark ──▶ four topics ──▶ four readers
    visitor ──✗                                                       ✗── every other reader

Rules that hold here:
- Everything is real: broker, gateway, Kafka and Spark, each reader with a login of its own.
- What the gateway took is in every view, each patient once; what it refused is in none.
"""

from __future__ import annotations

import importlib.resources
import json
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from rich.padding import Padding
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from penstock.components import KafkaCluster
from penstock.config import defaults
from penstock.config.brokers import KafkaSettings
from penstock.config.installation import PipelineSettings
from penstock.config.secrets import KeyFile, SecretFile
from penstock.definitions import read_text
from penstock.eventlog.connection import BrokerError
from penstock.eventlog.kafka import KafkaLog
from penstock.kafka import Administration, Cluster, make_topics, open_administration
from penstock.model.document import Document
from penstock.model.kinds import Stream
from penstock.pipeline.control import Control
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock_lab.demo.hospital import AUDIENCES, PATIENTS, SEED, compare
from penstock_lab.demo.hospital_clients import TAKEN, Message, Publisher
from penstock_lab.demo.stage import Place, set_up
from penstock_lab.demo.story import INDENT, Story
from penstock_lab.generate.hospital import generate

READERS: Final = {
    "doctor": ("dora", "doctor"),
    "nurse": ("nina", "nurse"),
    "administration": ("otto", "administration"),
    "research": ("rosa", "researcher"),
}
ADMISSIONS: Final = "hospital/admissions"
RECEPTION: Final = "reception"
VISITOR: Final = "visitor"
INVENTED: Final = 1_000_000
"""The number of a patient that nobody admitted."""

Record = dict[str, Any]


def run(story: Story) -> None:
    """Admit patients, make views, and let every reader try every view."""
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name, ExitStack() as stack:
        folder = Path(name)
        story.step("Start a Kafka broker that lets in only who logs in")
        with story.console.status("Kafka starts …"):
            cluster = stack.enter_context(KafkaCluster())
        settings = KafkaSettings(
            bootstrap=cluster.bootstrap,
            security="sasl_plaintext",
            password=SecretFile(cluster.admin_password_file),
            key=KeyFile(folder / "credentials.key"),
        )
        story.step("Start an MQTT broker, and the gateway in front of it")
        sections = _sections(cluster)
        place = stack.enter_context(set_up((RECEPTION, VISITOR), _documents(), sections))
        story.note(f"clients connect to the gateway on 127.0.0.1:{place.port}")
        with Database.open(place.store_url) as database:
            _run_steps(story, folder, settings, place, database)


def _run_steps(
    story: Story, folder: Path, settings: KafkaSettings, place: Place, database: Database
) -> None:
    store = CheckedDefinitions(Definitions(database))
    story.step("Give each audience a reader, with a password and a role at Kafka")
    with Cluster(settings) as cluster:
        make_topics(cluster, store.current()[1])
    passwords = _add_readers(story, open_administration(settings, database, store, actor="demo"))
    stream = store.current()[1].of(Stream)["patients"]
    _admit_patients(story, place, stream)
    _refuse_others(story, place)
    _count_records(story, KafkaLog(settings), stream)
    dead = _run_views(story, defaults(folder, {}).pipeline, settings, store)
    compare(story, _try_all(story, settings, passwords), dead)


def _documents() -> list[Document]:
    """Return the definitions of the hospital, with its events at Kafka and a gateway before."""
    found = []
    for name in ("hospital.yaml", "hospital_gateway.yaml"):
        text = importlib.resources.files(__package__).joinpath(name).read_text("utf-8")
        found += read_text(text, name).documents
    more: Mapping[str, Mapping[str, Any]] = {
        "stream": {"source": "kafka", "from": [f"{ADMISSIONS}/+pid"]},
        "view": {"format": "topic"},
    }
    placed = [Document(it.kind, it.name, {**it.body, **more.get(it.kind, {})}) for it in found]
    return [*placed, *(Document("role", role, {}) for _, role in READERS.values())]


def _sections(cluster: KafkaCluster) -> dict[str, dict[str, Any]]:
    """Return what the gateway has to know: the reception is answered when Kafka has it."""
    return {
        "recording": {"acknowledge": "recorded"},
        "kafka": {
            "bootstrap": cluster.bootstrap,
            "security": "sasl_plaintext",
            "password": {"file": str(cluster.admin_password_file)},
        },
    }


def _add_readers(story: Story, officer: Administration) -> dict[str, str]:
    passwords = {}
    for audience, (user, role) in READERS.items():
        passwords[user] = secrets.token_urlsafe(16)
        officer.add_user(user, passwords[user], [role])
        story.note(f"{user} has the role {role}, and may read the view {audience}")
    return passwords


def _admit_patients(story: Story, place: Place, stream: Stream) -> None:
    story.step(f"The reception publishes patients below {ADMISSIONS}/, and the gateway records")
    with (
        Publisher(place.port, RECEPTION, place.passwords[RECEPTION]) as reception,
        Progress(
            console=story.console, transient=True, disable=not story.console.is_terminal
        ) as progress,
    ):
        bar = progress.add_task("   admitting", total=PATIENTS)
        answers = reception.publish(
            _messages(stream), lambda count: progress.update(bar, completed=count)
        )
    story.expect(
        f"{answers.taken:,} patients are acknowledged: Kafka has them",
        actual=(answers.taken, dict(answers.refused)),
        wanted=(PATIENTS, {}),
    )


def _messages(stream: Stream) -> Iterator[Message]:
    """Yield a message for each patient; the topic says who it is, the payload the rest."""
    fields = [field.name for field in stream.fields if field.name != stream.subject]
    for batch in generate(PATIENTS, SEED):
        for row in batch.to_pylist():
            payload = json.dumps({name: row[name] for name in fields}).encode()
            yield f"{ADMISSIONS}/{row[stream.subject]}", payload


def _refuse_others(story: Story, place: Place) -> None:
    story.step("Others try to admit a patient who does not exist")
    forged = [(f"{ADMISSIONS}/{INVENTED}", b'{"name": "Nobody"}')]
    with Publisher(place.port, VISITOR, place.passwords[VISITOR]) as visitor:
        answers = visitor.publish(forged)
    story.expect(
        f"the visitor has a login, and the gateway answers: {', '.join(answers.refused)}",
        actual=(answers.taken, answers.refused.total()),
        wanted=(0, 1),
    )
    with Publisher(place.port, RECEPTION, secrets.token_urlsafe(12)) as thief:
        entry = thief.entry
    story.expect(
        f"who claims to be the reception without its password is told: {entry}",
        actual=entry == TAKEN,
        wanted=False,
    )


def _count_records(story: Story, log: KafkaLog, stream: Stream) -> None:
    records = [json.loads(it.value) for it in log.topic(stream.topic).read()]
    story.expect(
        f"Kafka holds {len(records):,} records: each patient once, and nobody else",
        actual=sorted(record["pid"] for record in records),
        wanted=list(range(1, PATIENTS + 1)),
    )


def _run_views(
    story: Story, pipeline: PipelineSettings, settings: KafkaSettings, store: CheckedDefinitions
) -> int:
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.session import open_session  # noqa: PLC0415 - loads Spark

    story.step("Let Spark derive four topics from the topic (it takes a moment to start)")
    control = Control(pipeline.folder)
    definitions = store.current()[1]
    with story.console.status("Spark works …"):
        spark = open_session(pipeline)
        try:
            for action in ("start", "stop"):
                # Stopping lets go what is still held back for k-anonymity.
                for name in AUDIENCES:
                    control.change(name, action)
                Manager(spark, pipeline, lambda: definitions, kafka=settings).run_once()
        finally:
            spark.stop()
    for name in AUDIENCES:
        last = control.view(name).last()
        read = last.totals.read if last else 0
        story.expect(f"{name} has seen {read:,} records", actual=read, wanted=PATIENTS)
    return sum(1 for _ in control.view("research").dead_letters())


def _try_all(
    story: Story, settings: KafkaSettings, passwords: dict[str, str]
) -> dict[str, list[Record]]:
    """Let every reader try every view; return what was read of each."""
    story.step("Every reader tries every view")
    views: dict[str, list[Record]] = {}
    shown = Table("", *AUDIENCES, box=None, pad_edge=False, header_style="bold")
    got: dict[str, list[str]] = {}
    for user, role in READERS.values():
        log = KafkaLog(settings, user, passwords[user])
        found = {audience: _read(log, f"patients-{audience}") for audience in AUDIENCES}
        read = {audience: rows for audience, rows in found.items() if rows is not None}
        views |= read
        got[user] = list(read)
        cells = [
            Text("refused", "red") if rows is None else Text(f"reads {len(rows):,}", "green")
            for rows in found.values()
        ]
        shown.add_row(f"{user}, {role}", *cells)
    story.console.print(Padding(shown, INDENT))
    story.expect(
        "each of them reads their own view, and Kafka refuses the three others",
        actual=got,
        wanted={user: [audience] for audience, (user, _) in READERS.items()},
    )
    return views


def _read(log: KafkaLog, topic: str) -> list[Record] | None:
    """Return the records of a topic, or None where Kafka says that the reader may not."""
    try:
        return [json.loads(record.value) for record in log.topic(topic).read()]
    except BrokerError as error:
        cause = error.__cause__
        if isinstance(cause, KafkaException) and (
            cause.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        ):
            return None
        raise
