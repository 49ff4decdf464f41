"""Tokens of a view: made by workers of Spark, kept in the store, turned back by the right key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet  # type: ignore[import-untyped]
import pytest

from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.definitions.views import plan_view
from penstock.eventlog import EventLog
from penstock.masks import Tokenization
from penstock.masks.supplies import KEY_VAULT, fingerprint
from penstock.model.document import Document
from penstock.model.kinds import Stream, View
from penstock.store.database import Database
from penstock.store.detokenization import StoreVault, VaultAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java")

STREAM = Document(
    "stream",
    "patients",
    {"fields": [{"name": "pid", "type": "string"}, {"name": "age", "type": "int"}]},
)
TOKENS = {"anonymizer": "tokenization", "keys": ["pid"], "method": "vault", "vault": "patients"}


def _define(**more: Any) -> DefinitionSet:
    body = {"stream": "patients", "anonymizers": [TOKENS], **more}
    return DefinitionSet.build([STREAM, Document("view", "research", body)])


def _published(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "research" / "data").glob("*.parquet"))
    return [row for path in files for row in pyarrow.parquet.read_table(path).to_pylist()]


def test_tokens_are_kept_before_they_are_published(spark: SparkSession, tmp_path: Path) -> None:
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

    settings = defaults(tmp_path, {}).pipeline
    url = f"sqlite:///{tmp_path}/penstock.db"
    people = [f"P-{number % 50}" for number in range(400)]
    topic = EventLog(settings.event_log).topic("patients")
    topic.append([json.dumps({"pid": pid, "age": 30}).encode() for pid in people])
    definitions = _define()
    manager = Manager(spark, settings, lambda: definitions, VaultAddress(url))
    manager.control.change("research", "start")
    manager.run_once()
    rows = _published(settings.folder)
    assert len(rows) == 400
    secret = settings.key.read()
    view, stream = definitions.get(View, "research"), definitions.get(Stream, "patients")
    assert view is not None
    assert stream is not None
    with Database.open(url) as database:
        vault = StoreVault(database)
        assert vault.get(KEY_VAULT, fingerprint(secret)) == b""
        chain, _ = plan_view(view, stream, {}).make_chains("research", secret, {}, vault)
        mask, stage = chain.stages[0]
        assert isinstance(mask, Tokenization)
        reverse = mask.reverse(stage.target("pid"))
        assert sorted(reverse(row["pid"]) for row in rows) == sorted(people)
        with database.read() as connection:
            count = connection.exec_driver_sql(
                "SELECT count(*) FROM vault_entries WHERE vault = 'patients'"
            ).scalar()
    assert count == 50
    assert not any(row["pid"].startswith("P-") for row in rows)
    # Without a vault the view does not run, and says why.
    changed = _define(roles=["research"])
    lost = Manager(spark, settings, lambda: changed)
    lost.run_once()
    said = lost.control.condition("research")
    assert said is not None
    assert said.error is not None
    assert "1 problem" in said.error
