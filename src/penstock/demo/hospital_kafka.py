"""The hospital with its events at Kafka: each audience logs in, and Kafka itself refuses others."""

from __future__ import annotations

import importlib.resources
import json
import secrets
import tempfile
from pathlib import Path
from typing import Any, Final

from penstock.components import KafkaCluster
from penstock.config import defaults
from penstock.config.secrets import KeyFile, SecretFile
from penstock.config.sections.kafka import KafkaSettings
from penstock.config.sections.pipeline import PipelineSettings
from penstock.definitions import read_text
from penstock.demo.hospital import AUDIENCES, PATIENTS, SEED, compare
from penstock.demo.story import Story
from penstock.eventlog.connection import BrokerError
from penstock.eventlog.kafka import KafkaLog
from penstock.eventlog.transactions import TransactionalTopic
from penstock.generate.hospital import SCHEMA, generate
from penstock.generate.writers import write
from penstock.kafka import Administration, Cluster, make_topics, open_administration
from penstock.model.document import Document
from penstock.model.kinds import Stream
from penstock.pipeline.connecting import Connector
from penstock.pipeline.control import Control
from penstock.store.checked import CheckedDefinitions
from penstock.store.database import Database
from penstock.store.definitions import Definitions

READERS: Final = {
    "doctor": ("dora", "doctor"),
    "nurse": ("nina", "nurse"),
    "administration": ("otto", "administration"),
    "research": ("rosa", "researcher"),
}


def run(story: Story) -> None:
    """Admit patients, make views, and let every reader try every view."""
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name:
        folder = Path(name)
        story.step("Start a Kafka broker that lets in only who logs in")
        with KafkaCluster() as cluster:
            settings = KafkaSettings(
                bootstrap=cluster.bootstrap,
                security="sasl_plaintext",
                password=SecretFile(cluster.admin_password_file),
                key=KeyFile(folder / "credentials.key"),
            )
            database = Database.open(f"sqlite:///{folder}/penstock.db")
            try:
                _tell(story, folder, settings, database)
            finally:
                database.close()


def _tell(story: Story, folder: Path, settings: KafkaSettings, database: Database) -> None:
    store = CheckedDefinitions(Definitions(database))
    pipeline = defaults(folder, {}).pipeline
    story.step("Declare what each audience may see, and who they are")
    text = importlib.resources.files("penstock.demo").joinpath("hospital.yaml").read_text("utf-8")
    documents = [_at_kafka(document) for document in read_text(text, "hospital.yaml").documents]
    roles = [Document("role", role, {}) for _, role in READERS.values()]
    store.apply([*documents, *roles], actor="demo")
    with Cluster(settings) as cluster:
        make_topics(cluster, store.current()[1])
    officer = open_administration(settings, database, store, actor="demo")
    passwords = _add_readers(story, officer)
    log = KafkaLog(settings)
    _admit_patients(story, folder, log, store)
    dead = _run_views(story, pipeline, settings, store)
    _compare(story, settings, passwords, dead)


def _at_kafka(document: Document) -> Document:
    more = {"stream": {"source": "kafka"}, "view": {"format": "topic"}}
    return Document(document.kind, document.name, {**document.body, **more.get(document.kind, {})})


def _add_readers(story: Story, officer: Administration) -> dict[str, str]:
    passwords = {}
    for audience, (user, role) in READERS.items():
        passwords[user] = secrets.token_urlsafe(16)
        officer.add_user(user, passwords[user], [role])
        story.tell(f"{user} has the role {role}, and may read the view {audience}")
    return passwords


def _admit_patients(story: Story, folder: Path, log: KafkaLog, store: CheckedDefinitions) -> None:
    story.step("Admit patients: a CSV file becomes records of the topic")
    file = folder / "patients.csv"
    write(generate(PATIENTS, SEED), SCHEMA, "csv", str(file))
    stream = store.current()[1].of(Stream)["patients"]
    connector = Connector(
        stream, lambda name: TransactionalTopic(log, stream.topic, f"feed {stream.topic} {name}")
    )
    done = connector.feed(file)
    story.expect(f"{done.rows:,} patients are at Kafka", actual=done.rows, wanted=PATIENTS)
    again = connector.feed(file).rows
    story.expect("feeding the file once more adds none", actual=again, wanted=0)


def _run_views(
    story: Story, pipeline: PipelineSettings, settings: KafkaSettings, store: CheckedDefinitions
) -> int:
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.session import open_session  # noqa: PLC0415 - loads Spark

    story.step("Let Spark turn the topic into four topics (it takes a moment to start)")
    control = Control(pipeline.folder)
    definitions = store.current()[1]
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


def _compare(story: Story, settings: KafkaSettings, passwords: dict[str, str], dead: int) -> None:
    story.step("Every reader tries every view")
    views: dict[str, list[dict[str, Any]]] = {}
    for user, _ in READERS.values():
        log = KafkaLog(settings, user, passwords[user])
        got = []
        for audience in AUDIENCES:
            try:
                records = [json.loads(it.value) for it in log.topic(f"patients-{audience}").read()]
            except BrokerError:
                continue
            got.append(audience)
            views[audience] = records
        own = [audience for audience, (reader, _) in READERS.items() if reader == user]
        others = ", ".join(it for it in AUDIENCES if it not in own)
        story.expect(f"{user} reads {own[0]}, and Kafka refuses {others}", actual=got, wanted=own)
    compare(story, views, dead)
