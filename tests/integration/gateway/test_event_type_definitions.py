"""Clients define event types: with the right to, which a role carries, at two gateways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from penstock.client import PurposeClient
from penstock.components import MosquittoServer
from penstock.definitions import read_text
from penstock.model.document import Document, Key
from penstock.mqtt import V3, ReasonCode
from penstock.store.audit.reader import read_after
from penstock.store.database import Database
from penstock.store.definitions.history import Definitions
from tests.integration.gateway.test_roles import Site, appoint, epoch_of
from tests.support.gateway.harness import run_gateway, share
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

RULES = """
{kind: vocabulary, name: v, subject: {uid: string}}
---
{kind: role, name: type-manager, parameters: [ward]}
---
kind: activation-rule
name: type-managers
role: type-manager(w)
requires: [{appointment: manages(w), membership: true}]
---
kind: authorisation-rule
name: types-of-ward-3
role: type-manager("3")
define: [{stream: "w3-*", below: [w3/#]}]
---
kind: stream
name: w3-scales
from: [w3/+patient/scales]
subject: patient
fields:
- {name: patient, type: string, category: identifier}
- {name: weight, type: double, category: sensitive}
"""
USERS = {"ann": "a", "eve": "e"}
VITALS: dict[str, Any] = {
    "from": ["w3/+patient/vitals"],
    "fields": [{"name": "patient", "type": "string"}, {"name": "pulse", "type": "int"}],
    "conform": True,
}


@pytest.fixture
def site(broker: MosquittoServer, tmp_path: Path) -> Iterator[Site]:
    sections = share(tmp_path)
    sections["store"]["lease"] = "60s"
    passwords = write_passwords(tmp_path / "passwords", USERS)
    settings = {"open_mode": False, "authentication": {"passwords": str(passwords)}}
    with (
        run_gateway(tmp_path / "one", broker.port, settings, **sections) as one,
        run_gateway(tmp_path / "two", broker.port, settings, **sections) as two,
    ):
        made = Site((one, two))
        made.change(*read_text(RULES, "rules").documents, appoint("m", 'manages("3")', "ann"))
        yield made
        for client in made.clients:
            client.close()


@pytest.fixture(autouse=True)
def _passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.integration.gateway.test_roles.USERS", USERS)


def define(client: RawClient, name: str, body: object) -> Any:
    return client.publish(f"!DEFINE/{name}", json.dumps(body).encode(), qos=1)


def stored(site: Site) -> dict[Key, Document]:
    with Database.open(site.config.store.connection_url()) as database:
        return dict(Definitions(database).snapshot().documents)


def settle(site: Site) -> None:
    """Wait until both gateways know what is stored."""
    with Database.open(site.config.store.connection_url()) as database:
        epoch = Definitions(database).snapshot().epoch
    wait_until(lambda: all(epoch_of(it) >= epoch for it in site.gateways))


def test_who_may_define_defines_and_all_gateways_know_the_type(site: Site) -> None:
    ann, eve = site.login("ann"), site.login("eve", 1)
    refused = eve.subscribe("w3/+/vitals", user=(("content-filter", "r.pulse > 120"),))
    assert refused.reasons[0] >= 0x80
    assert not define(ann, "w3-vitals", VITALS).failed
    settle(site)
    answer = eve.subscribe("w3/+/vitals", user=(("content-filter", "r.pulse > 120"),))
    assert answer.reasons[0] < 3
    for pulse in (60, 130):
        assert not ann.publish("w3/p1/vitals", b'{"pulse": %d}' % pulse, qos=1).failed
    assert [payload for _, payload in eve.texts(1)] == [b'{"pulse": 130}']
    other = site.login("eve").publish("w3/p1/vitals", b'{"pulse": "x"}', qos=1)
    assert other.reason == ReasonCode.PAYLOAD_FORMAT_INVALID
    # Again with more: an extension. Old protocols can do it, too.
    more = {**VITALS, "fields": [*VITALS["fields"], {"name": "n", "type": "int", "optional": True}]}
    define(site.login("ann", 1, version=V3), "w3-vitals", more)
    wait_until(lambda: stored(site)[Key("stream", "w3-vitals")].body == more)
    url = site.config.store.connection_url()
    with Database.open(url) as database, database.read() as connection:
        kinds = [json.loads(it.entry.details) for it in read_after(connection, -1, 1_000)]
    assert sum(it.get("operation") == "define" for it in kinds) == 2


def test_nobody_defines_without_the_right_or_beyond_it(site: Site) -> None:
    before = stored(site)
    ann, eve = site.login("ann"), site.login("eve", 1)
    elsewhere = {**VITALS, "from": ["w4/+patient/vitals"]}
    denied = [
        define(eve, "w3-vitals", VITALS),
        define(ann, "w4-vitals", VITALS),
        define(ann, "w3-vitals", elsewhere),
        define(ann, "w3-vitals", {**VITALS, "from": ["w3/+patient/vitals", "#"]}),
    ]
    assert {it.reason for it in denied} == {int(ReasonCode.NOT_AUTHORIZED)}
    scales = before[Key("stream", "w3-scales")].body
    weaker = [
        {**scales, "subject": None},
        {key: it for key, it in scales.items() if key != "subject"},
        {**scales, "fields": [scales["fields"][0], {"name": "weight", "type": "double"}]},
        {**scales, "fields": [scales["fields"][0]]},
        {**scales, "erasure": "none"},
        {**scales, "fields": "nonsense"},
        {**scales, "from": ["w3/+patient/other"]},
        # Read by the first that fits, messages would be about somebody else, or nobody.
        {**scales, "from": ["w3/+/+patient", *scales["from"]]},
        {**scales, "from": ["w3/+/scales", *scales["from"]]},
    ]
    answers = [define(ann, "w3-scales", it) for it in weaker]
    answers.append(define(ann, "w3-new", {"from": ["w3/x"], "fields": [{"name": "a"}]}))
    # A second type could ask all who publish here for what nobody sends, and record it once more.
    answers.append(define(ann, "w3-new", {**VITALS, "from": ["w3/+/scales"], "conform": True}))
    answers.append(ann.publish("!DEFINE/w3-vitals", b"", qos=1))
    answers.append(define(ann, "", VITALS))
    assert all(it.failed for it in answers), [it.reason for it in answers]
    assert stored(site) == before


def test_the_right_goes_with_the_role(site: Site) -> None:
    ann = site.login("ann")
    assert not define(ann, "w3-vitals", VITALS).failed
    site.change(delete=("m",))
    more = {**VITALS, "from": [*VITALS["from"], "w3/+patient/more"]}
    assert define(ann, "w3-vitals", more).reason == ReasonCode.NOT_AUTHORIZED
    assert stored(site)[Key("stream", "w3-vitals")].body == VITALS


def test_the_sdk_defines(site: Site) -> None:
    wrapped = Client(CallbackAPIVersion.VERSION2, "ann:sdk", protocol=MQTTv5)
    wrapped.username_pw_set("ann", "a")
    client = PurposeClient(wrapped)
    client.connect("127.0.0.1", site.gateways[0].port)
    wrapped.loop_start()
    try:
        client.define("w3-vitals", VITALS).wait(20)
        assert stored(site)[Key("stream", "w3-vitals")].body == VITALS
    finally:
        client.disconnect()
        wrapped.loop_stop()
