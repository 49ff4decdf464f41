from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.gateway.authorization.denials import Denials
from penstock.gateway.session import Session
from penstock.store.audit.entry import Entry
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import read_last
from penstock.store.audit.signatures import Signer
from penstock.store.audit.writer import AuditWriter
from penstock.store.database import Database

PSEUDONYMS = Pseudonyms(b"k" * 32)
ALICE = Session("alice:phone", "alice", 0)
NOBODY = Session("sensor", "anonymous", 0)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path}/penstock.db") as opened:
        yield opened


def entries(database: Database) -> list[Entry]:
    with database.read() as connection:
        found = [it.entry for it in read_last(connection, 10_000)]
    return [it for it in found if it.outcome == "denied"]


def test_people_are_found_and_nobody_is_named(database: Database) -> None:
    writer = AuditWriter(AuditLog(database, Signer.generate()))
    denials = Denials(writer, PSEUDONYMS)
    for session in (ALICE, ALICE, NOBODY):
        denials.delivery(session, "reservation a")
    denials.flush(7)
    writer.close()
    alice, nobody = entries(database)
    assert alice.actor == PSEUDONYMS.person("alice")
    assert nobody.actor == PSEUDONYMS.client("sensor")
    assert json.loads(alice.details) == {
        "client": PSEUDONYMS.client("alice:phone"),
        "count": 2,
        "reason": "purpose",
    }
    assert (alice.rule, alice.epoch) == ("reservation a", 7)


def test_what_the_log_does_not_take_is_tried_again(database: Database) -> None:
    ended = AuditWriter(AuditLog(database, Signer.generate()))
    ended.close()
    denials = Denials(ended, PSEUDONYMS)
    denials.command(ALICE, "right")
    denials.refused(NOBODY, "malformed")
    denials.flush(1)
    denials.command(ALICE, "right")
    assert list(denials._counts.values()) == [2, 1]


def test_a_flood_of_names_is_counted_together() -> None:
    denials = Denials(None, PSEUDONYMS)
    for number in range(5_000):
        denials.connection(f"10.0.{number // 256}.{number % 256}", "password")
    assert len(denials._counts) < 4_200
    assert sum(denials._counts.values()) == 5_000
