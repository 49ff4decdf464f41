from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from penstock.gateway.authorization.denials import Denials
from penstock.gateway.session import Session
from penstock.policy.decision import Applied, Decision
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import read_last
from penstock.store.audit.signatures import AuditFullError, Signer
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
    details = json.loads(alice.details)
    assert details.pop("duration_us") < 10_000_000
    assert details == {
        "client": PSEUDONYMS.client("alice:phone"),
        "count": 2,
        "reason": "purpose",
    }
    assert (alice.rule, alice.epoch) == (PSEUDONYMS.rule("reservation a"), 7)


def test_what_the_log_does_not_take_is_tried_again(database: Database) -> None:
    ended = AuditWriter(AuditLog(database, Signer.generate()))
    ended.close()
    denials = Denials(ended, PSEUDONYMS)
    denials.command(ALICE, "right")
    denials.refused(NOBODY, "malformed")
    denials.flush(1)
    denials.command(ALICE, "right")
    assert list(denials.denials.waiting().values()) == [2, 1]


def test_one_who_floods_takes_nobody_the_actor(database: Database) -> None:
    now = 0.0
    writer = AuditWriter(AuditLog(database, Signer.generate()))
    denials = Denials(writer, PSEUDONYMS, per_principal=20, clock=lambda: now)
    mallory = [Session(f"mallory:{number}", "mallory", 0) for number in range(5_000)]
    nameless = [Session(f"id{it}", "anonymous", 0, address="10.0.0.9") for it in range(5_000)]
    for second in range(5):
        now = float(second)
        for session in (*mallory, *nameless):
            denials.subscription(session, f"reservation {session.client_id}")
        denials.delivery(ALICE, f"reservation {second}")
        denials.flush(1)
    denials.flush(1, ending=True)
    writer.close()
    found = entries(database)
    assert all(it.actor for it in found)
    by_alice = [it for it in found if it.actor == PSEUDONYMS.person("alice")]
    assert [it.rule for it in by_alice] == [PSEUDONYMS.rule(f"reservation {it}") for it in range(5)]
    by_mallory = [it for it in found if it.actor == PSEUDONYMS.person("mallory")]
    assert len(by_mallory) <= 22
    assert sum(json.loads(it.details)["count"] for it in by_mallory) == 25_000
    folded = [it for it in found if json.loads(it.details).get("folded")]
    assert {it.actor for it in folded} == {
        PSEUDONYMS.person("mallory"),
        PSEUDONYMS.client("10.0.0.9"),
    }
    assert {it.rule for it in folded} == {None}


def test_grants_and_overrides_do_not_wait_behind_denials(database: Database) -> None:
    writer = AuditWriter(AuditLog(database, Signer.generate()))
    denials = Denials(writer, PSEUDONYMS, per_principal=1, per_hour=1)
    for number in range(100):
        denials.delivery(ALICE, f"reservation {number}")
    granted = Decision(
        allowed=True,
        rule="emergency-policy doctors",
        applied=Applied("covid", "wearer", "Severe"),
        overridden=True,
    )
    denials.emergency(ALICE, granted)
    denials.flush(1)
    writer.close()
    with database.read() as connection:
        kinds = [it.entry.kind for it in read_last(connection, 10)]
    assert kinds == ["audit.started", "preference.overridden", "delivery.denied"]


class FullWriter:
    """Takes nothing until it is told to."""

    def __init__(self) -> None:
        self.full = True
        self.taken: list[Entry] = []

    def submit(self, entry: Entry) -> int:
        if self.full:
            raise AuditFullError("full")
        self.taken.append(entry)
        return len(self.taken)


def test_what_was_done_waits_for_room_and_comes_first() -> None:
    writer = FullWriter()
    denials = Denials(cast("AuditWriter", writer), PSEUDONYMS)
    denials.delivery(ALICE, "reservation a")
    denials.command_given(ALICE, "reserve")
    denials.record(lambda _: Entry.make("situation.changed", Outcome.DONE))
    denials.flush(3)
    assert writer.taken == []
    writer.full = False
    denials.flush(3)
    kinds = ["situation.changed", "command.given", "delivery.denied"]
    assert [it.kind for it in writer.taken] == kinds
    assert writer.taken[1].actor == PSEUDONYMS.person("alice")
