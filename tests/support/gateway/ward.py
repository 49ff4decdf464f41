"""A small ward for tests of emergencies, and the users that connect to it.

A pulse above 100 is an alert, which lasts until it is switched off. A warmth above 100 is
one, too, and lasts until all of the last seconds are below. Doctors read what the alert is
about; nurses read everything. An alert is announced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.config import Config
from penstock.definitions import read_text
from penstock.mqtt import V5
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.harness import GatewayThread, run_gateway, write_config
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

USERS = ("sensor", "nurse", "doctor", "stranger", "patient", "echo")

WARD = """
kind: enforcement
name: default
policies: required
---
kind: vocabulary
name: ward
object: {patientId: string}
payload: {value: double, pid: string, number: int}
---
kind: object
name: ward
topics: "ward/+patientId/#"
---
kind: event
name: Reading
attributes: {pid: string, value: double}
packet:
  filters: ["ward/+/pulse"]
  set: {pid: o.patientId, value: t.payload.value}
---
kind: event
name: "Off"
attributes: {pid: string}
packet:
  filters: ["ward/+/off"]
  set: {pid: o.patientId}
---
kind: event
name: Peak
attributes: {pid: string, value: double}
pattern: {event: Reading, where: it.value > 100.0}
---
kind: event
name: Warmth
attributes: {pid: string, value: double}
packet:
  filters: ["ward/+/warmth"]
  set: {pid: o.patientId, value: t.payload.value}
---
kind: event
name: High
attributes: {pid: string}
pattern:
  aggregate: [{event: Warmth}]
  by: [pid]
  window: {last: WINDOW}
  values: {most: max(it.value)}
  where: it.most > 100.0
  set: {pid: it.pid}
---
kind: event
name: Calm
attributes: {pid: string}
pattern:
  aggregate: [{event: Warmth}]
  by: [pid]
  window: {last: WINDOW}
  values: {most: max(it.value)}
  where: it.most <= 100.0
  set: {pid: it.pid}
---
kind: event
name: Twice
attributes: {pid: string}
pattern:
  aggregate: [{event: Knock}]
  by: [pid]
  window: {last: 1h}
  values: {knocks: count(it.pid)}
  where: it.knocks >= 2
  set: {pid: it.pid}
---
kind: event
name: Knock
attributes: {pid: string}
packet:
  filters: ["ward/+/knock"]
  set: {pid: o.patientId}
---
kind: event
name: Echo
attributes: {pid: string}
packet:
  filters: ["ward/+/echo"]
  set: {pid: o.patientId}
---
kind: action
name: Call
event: Peak
topic: "ward/{pid}/calls"
payload: {pid: it.pid}
---
kind: action
name: EchoAgain
event: Echo
topic: "ward/{pid}/echo"
payload: {pid: it.pid}
---
kind: plan
name: alert
situations: [{id: Alert, level: 1}]
evolutions:
  - {event: Peak, to: Alert, actions: [Call]}
  - {event: High, to: Alert}
  - {event: Calm, from: Alert}
  - {event: "Off", from: Alert}
---
kind: plan
name: knocking
situations: [{id: Knocked, level: 1}]
evolutions: [{event: Twice, to: Knocked}]
---
kind: plan
name: echoing
situations: [{id: Odd, level: 1}, {id: Even, level: 1}]
evolutions:
  - {event: Echo, to: Odd, actions: [EchoAgain]}
  - {event: Echo, from: Odd, to: Even, actions: [EchoAgain]}
  - {event: Echo, from: Even, to: Odd, actions: [EchoAgain]}
---
kind: scenario
name: alert
plan: alert
attribute: pid
---
kind: scenario
name: knocking
plan: knocking
attribute: pid
---
kind: scenario
name: echoing
plan: echoing
attribute: pid
---
kind: policy
name: sensor
subject: user:sensor
filter: ward/#
allow: write
---
kind: policy
name: echo
subject: user:echo
filter: ward/#
allow: write
---
kind: policy
name: nurse
subject: user:nurse
filter: ward/#
allow: read
---
kind: emergency-policy
name: doctor
subject: user:doctor
filter: ward/#
allow: read
plan: alert
about: o.patientId
"""


def settings(folder: Path, **emergencies: Any) -> dict[str, Any]:
    """Return the settings of a gateway that the users of the ward can log in to."""
    path = write_passwords(folder / "passwords", dict.fromkeys(USERS, "x"))
    return {
        "open_mode": False,
        "authentication": {"passwords": str(path), "anonymous": True},
        "emergencies": {"lease": "3s", **emergencies},
        "limits": {"packet": "2MiB"},  # room for payloads that are too large to be looked into
    }


def define(config: Config, text: str) -> None:
    """Put definitions into the store of a gateway."""
    config.data.mkdir(parents=True, exist_ok=True)
    with Database.open(config.store.connection_url()) as database:
        checked = CheckedDefinitions(Definitions(database))
        checked.apply(read_text(text).documents, actor="test", reason="")


@contextmanager
def open_ward(
    folder: Path, broker_port: int, *, window: str = "2s", **emergencies: Any
) -> Iterator[GatewayThread]:
    """Run a gateway with the definitions of the ward."""
    chosen = settings(folder, **emergencies)
    define(write_config(folder, broker_port, chosen), WARD.replace("WINDOW", window))
    with run_gateway(folder, broker_port, chosen) as gateway:
        yield gateway


def login(port: int, user: str, *, client_id: str = "", version: int = V5, **options: Any) -> Any:
    """Connect as a user of the ward."""
    client = RawClient(port, version=version)
    name = client_id or f"{user}:{id(client)}"
    accepted = client.connect(name, username=user, password=b"x", **options)
    assert not accepted.reason, accepted
    return client


def reading(value: float, number: int = 0) -> bytes:
    return json.dumps({"value": value, "number": number}).encode()
