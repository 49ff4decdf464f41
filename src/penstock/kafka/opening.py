"""Puts the parts together, from settings and a store."""

from __future__ import annotations

from penstock.config.sections.kafka import KafkaSettings
from penstock.kafka.administration import Administration
from penstock.kafka.cluster import Cluster
from penstock.kafka.reconciling import Reconciler
from penstock.kafka.records import AccessRecord
from penstock.kafka.sealing import Sealer
from penstock.store.checked import CheckedDefinitions
from penstock.store.database import Database
from penstock.store.kafka_users import KafkaUsers


def open_reconciler(
    settings: KafkaSettings,
    database: Database,
    definitions: CheckedDefinitions,
    *,
    record: AccessRecord | None = None,
) -> Reconciler:
    """Return what compares and mends the cluster of these settings."""
    return Reconciler(
        definitions,
        KafkaUsers(database),
        lambda: Cluster(settings),
        Sealer.open(settings.key),
        own=[settings.user],
        record=record,
    )


def open_administration(
    settings: KafkaSettings,
    database: Database,
    definitions: CheckedDefinitions,
    *,
    actor: str,
    record: AccessRecord | None = None,
) -> Administration:
    """Return what a data officer works with."""
    return Administration(
        definitions,
        KafkaUsers(database),
        open_reconciler(settings, database, definitions, record=record),
        Sealer.open(settings.key),
        actor=actor,
        own=[settings.user],
        mechanism=settings.mechanism,
        iterations=settings.iterations,
        record=record,
    )
