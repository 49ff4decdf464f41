"""A house whose patients are known from payloads, for attacks on emergencies.

Whoever may publish chooses any text as the patient, and a message and its topic need not
agree. A pulse above 100 is an alert, one below 50 ends it. Doctors read and write what an
alert is about; nurses read everything; an alert is announced by a call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.mqtt import Publish
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.database import Database
from penstock.store.detection.situations import Situations
from tests.support.gateway.harness import GatewayThread, run_gateway, write_config
from tests.support.gateway.raw import RawClient
from tests.support.gateway.ward import define, login, settings

Login = Callable[..., RawClient]

HOUSE = """
kind: enforcement
name: default
policies: required
---
kind: vocabulary
name: house
subject: {uid: string}
object: {patientId: string}
payload: {value: double, pid: string, number: int}
---
kind: object
name: house
topics: "house/#"
payload: {patientId: pid}
---
kind: object
name: rooms
topics: "house/room/+patientId"
---
kind: purpose
name: care
---
kind: purpose
name: research
---
kind: reservation
name: house/reserved
allow: [care]
---
kind: event
name: Reading
attributes: {pid: string, value: double}
packet:
  filters: ["house/pulse"]
  set: {pid: o.patientId, value: t.payload.value}
---
kind: event
name: Peak
attributes: {pid: string, value: double}
pattern: {event: Reading, where: it.value > 100.0}
---
kind: event
name: Rest
attributes: {pid: string, value: double}
pattern: {event: Reading, where: it.value < 50.0}
---
kind: action
name: Call
event: Peak
topic: "calls/{pid}"
payload: {pid: it.pid}
---
kind: plan
name: alert
situations: [{id: Alert, level: 1}]
evolutions:
  - {event: Peak, to: Alert, actions: [Call]}
  - {event: Rest, from: Alert}
---
kind: scenario
name: alert
plan: alert
attribute: pid
---
kind: policy
name: sensor
subject: user:sensor
filter: house/#
allow: write
---
kind: policy
name: nurse
subject: user:nurse
filter: "#"
allow: read
---
kind: emergency-policy
name: doctor
subject: user:doctor
filter: "#"
allow: read
plan: alert
about: o.patientId
---
kind: emergency-policy
name: doctor/write
subject: user:doctor
filter: house/#
allow: write
plan: alert
about: o.patientId
---
kind: preference
name: patient/private
user: patient
filter: house/#
when: '"nurse" == s.uid || "stranger" == s.uid'
---
kind: preference
name: patient/calls
user: patient
filter: calls/#
when: '"nurse" == s.uid'
---
kind: emergency-policy
name: stranger/calls
subject: user:stranger
filter: calls/#
allow: read
plan: alert
about: t.payload.pid
---
kind: policy
name: patient
subject: user:patient
filter: house/#
allow: write
"""


@contextmanager
def open_house(
    folder: Path, broker_port: int, text: str = HOUSE, **emergencies: Any
) -> Iterator[GatewayThread]:
    chosen = settings(folder, **emergencies)
    define(write_config(folder, broker_port, chosen), text)
    with run_gateway(folder, broker_port, chosen) as running:
        yield running


@contextmanager
def open_doors(gateway: GatewayThread) -> Iterator[Login]:
    """Let users in, who leave together."""
    made: list[RawClient] = []

    def connect(user: str, **options: Any) -> RawClient:
        made.append(login(gateway.port, user, **options))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@contextmanager
def open_situations(gateway: GatewayThread) -> Iterator[Situations]:
    config = gateway.config
    gateway.call(gateway.gateway.emergencies.detection.journal.finish)
    with Database.open(config.store.connection_url()) as database:
        log = AuditLog.open(database, config.audit.signing_key)
        yield Situations(database, log, Pseudonyms.open(config.audit.pseudonym_key))
        log.close()


def about(patient: str, value: float = 0.0, number: int = 0) -> bytes:
    return json.dumps({"pid": patient, "value": value, "number": number}).encode()


def situation(gateway: GatewayThread, patient: str) -> str | None:
    return gateway.do(lambda: gateway.gateway.emergencies.detection.board.current("alert", patient))


def numbers(client: RawClient, count: int = 0) -> list[int]:
    found = [json.loads(it.payload) for it in client.messages(count)]
    return [it["number"] for it in found if "number" in it]


def numbers_until(client: RawClient, number: int) -> bool:
    """Wait for a message of this number."""
    while True:
        packet = client.expect(Publish, timeout=60)
        if json.loads(packet.payload)["number"] == number:
            return True
