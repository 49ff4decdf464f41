"""A client without rights cannot drown the audit log, and nobody's name gets into it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.config import Config
from penstock.model.document import Document
from penstock.mqtt import RequestedSubscription, Suback, Subscribe
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import read_after
from penstock.store.audit.signatures import anchor_path, load_head
from penstock.store.audit.verification import verify
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.harness import GatewayThread, run_gateway, write_config
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

PATIENTS = 3_000
SECONDS = 4


LONG_AGO = int((time.time() - 40 * 86_400) * 1e6)


def login(gateway: GatewayThread, client: str) -> RawClient:
    raw = RawClient(gateway.port)
    user = client.partition(":")[0]
    raw.connect(client, username=user, password=user.encode())
    return raw


def recorded(config: Config) -> list[Entry]:
    with Database.open(config.store.connection_url()) as database, database.read() as connection:
        return [it.entry for it in read_after(connection, -1, 100_000)]


@pytest.fixture
def ward(broker: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    """Run a gateway where everybody's records are reserved, under their names."""
    users = {it: it for it in ("mallory", "alice-meyer", "officer")}
    passwords = write_passwords(tmp_path / "passwords", users)
    settings: dict[str, Any] = {
        "open_mode": False,
        "authentication": {"passwords": str(passwords)},
        "filtering": {"mode": "subscribe"},
        "limits": {"commands": 50, "subscriptions": 10_000},
    }
    config = write_config(tmp_path / "g", broker.port, settings)
    config.data.mkdir(parents=True, exist_ok=True)
    rights = {"subjects": ["user:officer"], "reserve": ["#"], "administer": True}
    documents = [
        Document("right", "officer", rights),
        Document("purpose", "care", {}),
        *(
            Document("reservation", f"ward/patient-{number}/bob-smith", {"allow": ["care"]})
            for number in range(PATIENTS)
        ),
    ]
    with Database.open(config.store.connection_url()) as database:
        CheckedDefinitions(Definitions(database)).apply(documents, actor="test", reason="")
    with run_gateway(tmp_path / "g", broker.port, settings) as running:
        yield running


def ask_for_all(client: RawClient) -> None:
    """Subscribe to everybody's records, for no purpose: each is refused by another rule."""
    filters = [f"ward/patient-{number}/bob-smith" for number in range(PATIENTS)]
    asked = tuple(RequestedSubscription(it, 0) for it in filters)
    for first in range(0, PATIENTS, 1_000):
        client.send(Subscribe(client.next_id(), asked[first : first + 1_000]))
    for _ in range(0, PATIENTS, 1_000):
        client.expect(Suback, 60)


def test_one_client_without_rights_neither_fills_the_log_nor_takes_others_their_actor(
    ward: GatewayThread,
) -> None:
    people = Pseudonyms.load(ward.config.audit.pseudonym_key)
    with contextlib.ExitStack() as stack:
        attackers = [stack.enter_context(login(ward, f"mallory:{number}")) for number in range(2)]
        alice = stack.enter_context(login(ward, "alice-meyer"))
        officer = stack.enter_context(login(ward, "officer"))
        for second in range(SECONDS):
            started = time.monotonic()
            for attacker in attackers:
                ask_for_all(attacker)
            alice.subscribe(f"ward/patient-{second}/bob-smith")
            officer.publish(f"!RESERVE/lab/{second}{{care}}", qos=1)
            if second == SECONDS - 1:
                officer.publish("!PBAC/SET/auto_persist", b"false", qos=1)
                officer.publish("!RESERVE/tried{care}", qos=1)
            # Each second's denials are written at its end.
            time.sleep(max(0.0, started + 1.1 - time.monotonic()))
        port = ward.config
    ward.stop()
    entries = recorded(port)
    assert len(entries) < 500
    by_mallory = [it for it in entries if it.actor == people.person("mallory")]
    denied = sum(json.loads(it.details)["count"] for it in by_mallory)
    assert (len(by_mallory) <= 110, denied) == (True, 2 * SECONDS * PATIENTS)
    assert [it.actor for it in entries if it.outcome == "denied" and it.actor is None] == []
    by_alice = [it for it in entries if it.actor == people.person("alice-meyer")]
    assert sorted(it.rule or "" for it in by_alice) == sorted(
        people.rule(f"reservation ward/patient-{second}/bob-smith{{care}}") or ""
        for second in range(SECONDS)
    )
    commands = [it for it in entries if it.kind == "definitions.changed"]
    assert [it.actor for it in commands] == [people.person("officer")] * (SECONDS + 1)
    # What was only tried out changed what this gateway enforces: nobody's flood hides it.
    tried = [(it.actor, it.outcome) for it in entries if it.kind == "command.given"]
    assert tried == [(people.person("officer"), "done")]
    # Nobody is named, in no field of any entry.
    text = repr(entries)
    assert [
        it for it in ("bob", "smith", "meyer", "mallory", "officer", "ward") if it in text
    ] == []


def test_a_running_gateway_prunes_what_a_flood_left_and_keeps_the_commands(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    audit = {"denials_keep": "30d", "denials_entries": 1000, "prune_every": "1s"}
    config = write_config(tmp_path, broker.port, {"filtering": {"mode": "subscribe"}}, audit=audit)
    config.data.mkdir(parents=True, exist_ok=True)
    with Database.open(config.store.connection_url()) as database:
        log = AuditLog.open(database, config.audit.signing_key)
        changed = Entry.make("definitions.changed", Outcome.DONE, at=LONG_AGO, epoch=1)
        denied = Entry.make("delivery.denied", Outcome.DENIED, at=LONG_AGO)
        log.append([changed, *[denied] * 30_000, changed, *[denied] * 9_000, changed])
        log.close()
        with run_gateway(
            tmp_path, broker.port, {"filtering": {"mode": "subscribe"}}, audit=audit
        ) as gateway:
            deadline = time.monotonic() + 60
            while "delivery.denied" in [it.kind for it in recorded(config)]:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            with RawClient(gateway.port) as ada:
                ada.connect("ada")
                ada.publish("!RESERVE/lab{care}", qos=1)
        kinds = [it.kind for it in recorded(config)]
        changed_once_more = ["audit.pruned", "audit.pruned", "definitions.changed"]
        assert kinds == ["audit.started", *["definitions.changed"] * 3, *changed_once_more]
        kept = [load_head(anchor_path(config.audit.signing_key.path))]
        verdict = verify(database, log.signer.public_keys, kept=kept)
        assert verdict.ok, verdict.findings
        assert (verdict.pruned, verdict.survivors) == (39_004, 4)
