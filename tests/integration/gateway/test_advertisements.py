"""Publishing where a domain asks for an advertisement, and where a stream asks for its type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.definitions import read_text
from penstock.model.document import Key
from penstock.mqtt import V3, ReasonCode, Will
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

RULES = """
{kind: domain, name: ward, manager: "user:ann", members: [anyone], advertised: [home/+/vitals]}
---
{kind: right, name: devices, subjects: ["user:dev"], advertise: [home/#]}
---
kind: stream
name: notes
from: [notes/+patient]
conform: true
fields:
- {name: patient, type: string}
- {name: pulse, type: int}
- {name: text, type: string, optional: true}
"""
TOPIC = "home/p1/vitals"


class Site:
    def __init__(self, gateway: GatewayThread) -> None:
        self.gateway = gateway
        self.clients: list[RawClient] = []

    def change(self, text: str = "", *delete: Key) -> None:
        with Database.open(self.gateway.config.store.connection_url()) as database:
            checked = CheckedDefinitions(Definitions(database))
            if text:
                epoch = checked.apply(read_text(text, "rules").documents, actor="test").epoch
            if delete:
                epoch = checked.delete(delete, actor="test").epoch
        wait_until(lambda: self.gateway.do(lambda: self.gateway.gateway.rules.epoch) >= epoch)

    def login(self, user: str, **more: Any) -> RawClient:
        client = RawClient(self.gateway.port, **{k: more.pop(k) for k in ("version",) if k in more})
        self.clients.append(client)
        name = f"{user}:{len(self.clients)}"
        assert not client.connect(name, username=user, password=user.encode(), **more).reason
        return client


@pytest.fixture
def site(broker: MosquittoServer, tmp_path: Path) -> Iterator[Site]:
    passwords = write_passwords(tmp_path / "passwords", {"dev": "dev", "eve": "eve"})
    settings = {"open_mode": False, "authentication": {"passwords": str(passwords)}}
    store = {"url": f"sqlite:///{tmp_path / 'store.db'}", "lease": "60s"}
    with run_gateway(tmp_path / "one", broker.port, settings, store=store) as running:
        made = Site(running)
        made.change(RULES)
        yield made
        for client in made.clients:
            client.close()


def refused(answer: Any) -> bool:
    return bool(answer.reason == ReasonCode.NOT_AUTHORIZED)


def test_publishing_needs_an_advertisement(site: Site) -> None:
    reader, device, other = site.login("eve"), site.login("dev"), site.login("dev")
    reader.subscribe("home/#")
    first = device.publish(TOPIC, b"0", qos=1)
    assert refused(first)
    assert "advertise" in first.properties.reason_string
    assert not device.publish("!ADVERTISE/home/PLUS/vitals", qos=1).failed
    for qos in (1, 2):
        assert not device.publish(TOPIC, b"%d" % qos, qos=qos).failed
    # It is the client's own, and nobody's without the right.
    assert refused(other.publish(TOPIC, b"3", qos=1))
    assert refused(reader.publish("!ADVERTISE/home/PLUS/vitals", qos=1))
    assert refused(reader.publish(TOPIC, b"4", qos=1))
    assert not reader.publish("home/p1/door", b"5", qos=1).failed
    assert not device.publish("!ADVERTISE/home/PLUS/vitals{}", qos=1).failed
    assert refused(device.publish(TOPIC, b"6", qos=1))
    assert [payload for _, payload in reader.texts(3)] == [b"1", b"2", b"5"]


def test_an_advertisement_ends(site: Site) -> None:
    device = site.login("dev")
    now = site.gateway.do(site.gateway.gateway.rules.clock)
    assert not device.publish("!ADVERTISE/home/p1/vitals", b"60", qos=1).failed
    assert not device.publish(TOPIC, b"1", qos=1).failed

    def shift() -> None:
        site.gateway.gateway.rules.clock = lambda: now + 120_000

    site.gateway.do(shift)
    assert refused(device.publish(TOPIC, b"2", qos=1))
    assert not device.publish("!ADVERTISE/home/p1/vitals", qos=1).failed
    assert not device.publish(TOPIC, b"3", qos=1).failed
    # With the right to it,
    site.change("", Key("right", "devices"))
    assert refused(device.publish(TOPIC, b"4", qos=1))
    site.change('{kind: right, name: devices, subjects: ["user:dev"], advertise: [home/#]}')
    assert not device.publish(TOPIC, b"5", qos=1).failed
    # and with the connection.
    again = RawClient(site.gateway.port)
    site.clients.append(again)
    name = f"dev:{site.clients.index(device) + 1}"
    assert not again.connect(name, username="dev", password=b"dev").reason
    assert refused(again.publish(TOPIC, b"6", qos=1))
    # Where no domain asks for it any more, nobody needs one.
    site.change("", Key("domain", "ward"))
    assert not again.publish(TOPIC, b"7", qos=1).failed


def test_a_malformed_advertisement_is_refused(site: Site) -> None:
    device = site.login("dev")
    for topic, payload in (
        ("!ADVERTISE/home/HASH/x", b""),
        ("!ADVERTISE/home/x", b"soon"),
        ("!ADVERTISE/home/x", b"0"),
    ):
        answer = device.publish(topic, payload, qos=1)
        assert answer.reason == ReasonCode.TOPIC_NAME_INVALID
    old = site.login("dev", version=V3)
    old.publish("!ADVERTISE/home/PLUS/vitals", b"", qos=1)
    reader = site.login("eve")
    reader.subscribe("home/#")
    old.publish(TOPIC, b"1", qos=1)
    assert [payload for _, payload in reader.texts(1)] == [b"1"]


def test_a_message_is_of_its_type(site: Site) -> None:
    reader, sender = site.login("eve"), site.login("eve")
    reader.subscribe("notes/#")
    for good in ({"pulse": 1}, {"pulse": 2, "text": "x"}, {"pulse": 3, "text": None, "more": 1}):
        assert not sender.publish("notes/p1", json.dumps(good).encode(), qos=1).failed
    for bad in (
        b"",
        b"[]",
        b"{}",
        b'{"pulse": "1"}',
        b'{"pulse": 1, "text": 2}',
        b'{"pulse": 1.5}',
    ):
        answer = sender.publish("notes/p1", bad, qos=1)
        assert answer.reason == ReasonCode.PAYLOAD_FORMAT_INVALID, bad
        assert "notes" in answer.properties.reason_string
    assert len(reader.texts(3)) == 3


def test_who_may_not_write_learns_of_no_type_and_no_domain(site: Site) -> None:
    required = "{kind: enforcement, name: default, policies: required}"
    allowed = "{kind: policy, name: dev, subject: 'user:dev', filter: '#', allow: write}"
    site.change(f"{required}\n---\n{allowed}")
    eve, device = site.login("eve"), site.login("dev")
    told = {
        (answer.reason, answer.properties.reason_string)
        for topic in ("notes/p1", TOPIC, "somewhere/else")
        for answer in [eve.publish(topic, b"nonsense", qos=1)]
    }
    assert told == {(ReasonCode.NOT_AUTHORIZED, "not allowed to write here")}
    assert device.publish("notes/p1", b"nonsense", qos=1).reason == (
        ReasonCode.PAYLOAD_FORMAT_INVALID
    )
    assert "advertise" in device.publish(TOPIC, b"1", qos=1).properties.reason_string


def test_a_will_of_another_type_is_not_sent(site: Site) -> None:
    reader = site.login("eve")
    reader.subscribe("notes/#")
    for payload in (b"nonsense", b'{"pulse": 1}'):
        leaver = site.login("eve", will=Will("notes/p1", payload, 1))
        leaver.vanish()
    assert [payload for _, payload in reader.texts(1)] == [b'{"pulse": 1}']
