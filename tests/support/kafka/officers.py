"""What tests of Kafka share: an officer on a store of its own, and clients of users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from penstock.components import KafkaCluster
from penstock.config.brokers import KafkaSettings
from penstock.config.secrets import KeyFile, SecretFile
from penstock.eventlog.connection import admin_settings
from penstock.kafka import AccessAudit, Administration, open_administration
from penstock.model.document import Document
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import read_after
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions, recorder
from penstock.store.definitions.history import Definitions


class Officer:
    """An administration with the store under it, at a real cluster."""

    def __init__(self, cluster: KafkaCluster, folder: Path) -> None:
        self.cluster = cluster
        self.settings = settings_for(cluster, folder)
        self.database = Database.open(f"sqlite:///{folder}/penstock.db")
        self.log = AuditLog.open(self.database, SecretFile(folder / "audit.key"))
        self.people = Pseudonyms.open(SecretFile(folder / "pseudonyms.key"))
        self.definitions = CheckedDefinitions(
            Definitions(self.database), recorder(self.log, self.people), signer=self.log.signer
        )
        self.does: Administration = self.open()

    def open(self, settings: KafkaSettings | None = None) -> Administration:
        """Return an administration, as another process would open it."""
        return open_administration(
            settings or self.settings,
            self.database,
            self.definitions,
            actor="officer",
            audit=AccessAudit(self.log, self.people, self.people.person("officer")),
        )

    def recorded(self) -> list[dict[str, Any]]:
        """Return what the audit log has about Kafka, the oldest first."""
        with self.database.read() as connection:
            found = read_after(connection, -1, 100_000)
        documents = (it.as_document() for it in found)
        return [it for it in documents if it["kind"].startswith("kafka.")]

    def apply(self, *documents: Document) -> None:
        self.definitions.apply(documents, actor="officer")

    def produce(self, topic: str, *values: str) -> None:
        producer = Producer(admin_settings(self.settings))
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(20) == 0


def settings_for(cluster: KafkaCluster, folder: Path) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=cluster.bootstrap,
        security="sasl_plaintext",
        password=SecretFile(cluster.admin_password_file),
        key=KeyFile(folder / "credentials.key"),
        iterations=4096,
        timeout=20,
    )


@contextmanager
def open_officer(cluster: KafkaCluster, folder: Path) -> Iterator[Officer]:
    """Give an officer whose users are gone from the cluster afterwards."""
    officer = Officer(cluster, folder)
    try:
        yield officer
    finally:
        keys = [key for key in officer.definitions.current()[0].documents if key.kind == "user"]
        if keys:
            officer.definitions.delete(keys, actor="officer")
        officer.open().reconciler.repair()
        officer.database.close()


def stream(name: str) -> Document:
    return Document("stream", name, {"fields": [{"name": "pid", "type": "int"}]})


def view(stream_name: str, name: str, *roles: str) -> Document:
    return Document("view", name, {"stream": stream_name, "roles": list(roles)})
