"""Preferences of people whose messages were retained before there was any preference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.definitions.documents import read_text
from penstock.mqtt import Will
from tests.support.gateway.definitions import apply
from tests.support.gateway.harness import run_gateway
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")

USERS = {"pat": "p", "watch": "w", "ward": "a", "reader": "r"}
WEARER = """
{kind: vocabulary, name: house, subject: {uid: string}}
---
{kind: attributes, name: "client:watch", values: {}, on_behalf_of: pat}
"""
TURNED = """
kind: stream
name: raw
from: [raw/pulse]
fields: [{name: pulse, type: int}]
---
kind: stream
name: worn
from: [worn/pulse]
fields: [{name: pulse, type: int}]
---
kind: transformation
name: worn
at: publication
filter: raw/pulse
stream: raw
into: {topic: worn/pulse, stream: worn, keep: false}
"""
PREFERENCE = """
{kind: preference, name: pat, user: pat, filter: worn/#, when: 's.uid == "ward"'}
"""


@pytest.mark.parametrize(
    ("publisher", "qos"), [("pat", 1), ("watch", 0), ("watch", 1), ("watch", None)]
)
def test_what_was_retained_before_the_first_preference_keeps_to_it(
    mosquitto: MosquittoServer, tmp_path: Path, publisher: str, qos: int | None
) -> None:
    """Whatever way it came: over a lane, over its own connection, or as a will."""
    passwords = write_passwords(tmp_path / "passwords", USERS)
    settings = {"authentication": {"passwords": str(passwords)}}
    with run_gateway(tmp_path / "g", mosquitto.port, settings) as gateway:

        def login(user: str, **options: Any) -> RawClient:
            client = RawClient(gateway.port)
            answer = client.connect(user, username=user, password=USERS[user].encode(), **options)
            assert answer.reason == 0
            return client

        apply(gateway.config, list(read_text(WEARER).documents))
        wait_until(lambda: gateway.gateway.rules.epoch == 1)
        will = Will("worn/pulse", b"80", 1, retain=True) if qos is None else None
        with login(publisher, will=will) as sender:
            if qos is None:
                sender.vanish()
            else:
                sender.publish("worn/pulse", b"80", qos=qos, retain=True)
                sender.settle()
        with RawClient(mosquitto.port) as behind:
            behind.connect("behind")
            behind.subscribe("worn/#")
            assert behind.texts(1) == [("worn/pulse", b"80")]
        apply(gateway.config, list(read_text(PREFERENCE).documents))
        wait_until(lambda: gateway.gateway.rules.epoch == 2)
        with login("ward") as ward, login("reader") as reader:
            for client in (ward, reader):
                client.subscribe("worn/#", qos=1)
            assert ward.texts(1) == [("worn/pulse", b"80")]
            assert reader.texts() == []


def test_what_a_retained_message_was_turned_into_keeps_to_it_as_well(
    mosquitto: MosquittoServer, tmp_path: Path
) -> None:
    passwords = write_passwords(tmp_path / "passwords", USERS)
    settings = {"authentication": {"passwords": str(passwords)}}
    with run_gateway(tmp_path / "g", mosquitto.port, settings) as gateway:

        def login(user: str) -> RawClient:
            client = RawClient(gateway.port)
            assert not client.connect(user, username=user, password=USERS[user].encode()).reason
            return client

        apply(gateway.config, [*read_text(WEARER).documents, *read_text(TURNED).documents])
        wait_until(lambda: gateway.gateway.rules.epoch == 1)
        with login("watch") as sender:
            assert not sender.publish("raw/pulse", b'{"pulse": 80}', qos=1, retain=True).reason
        apply(gateway.config, list(read_text(PREFERENCE).documents))
        wait_until(lambda: gateway.gateway.rules.epoch == 2)
        with login("ward") as ward, login("reader") as reader:
            for client in (ward, reader):
                client.subscribe("worn/#", qos=1)
            assert ward.texts(1) == [("worn/pulse", b'{"pulse":80}')]
            assert reader.texts() == []
