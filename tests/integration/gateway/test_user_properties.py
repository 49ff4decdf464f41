"""User properties that repeat: policies never see one value where readers see another."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.components import MosquittoServer
from penstock.mqtt.codes import FAILURE
from tests.support.gateway.harness import run_gateway, write_config
from tests.support.gateway.ward import define, login, settings

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

RULES = """
kind: enforcement
name: default
policies: required
---
kind: policy
name: reading-public
filter: notes
allow: read
when: t.properties.label == "public"
---
kind: policy
name: reading-unlabelled
filter: plain
allow: read
when: '!has(t.properties.secret)'
---
kind: policy
name: writing
filter: '#'
allow: write
when: t.topic != "checked" || t.properties.label == "public"
"""
PUBLIC, SECRET = ("label", "public"), ("label", "secret")


def test_a_repeated_property_is_neither_of_its_values(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    chosen = settings(tmp_path)
    define(write_config(tmp_path, broker.port, chosen), RULES)
    with (
        run_gateway(tmp_path, broker.port, chosen) as gateway,
        login(gateway.port, "nurse") as reader,
        login(gateway.port, "sensor") as writer,
    ):
        reader.subscribe("notes", "plain", qos=1)
        for topic, user in (
            ("notes", (SECRET, PUBLIC)),
            ("notes", (PUBLIC, SECRET)),
            ("notes", (PUBLIC, PUBLIC)),
            ("notes", (SECRET,)),
            ("plain", (("secret", "1"), ("secret", "2"))),
            ("plain", (("secret", "1"),)),
        ):
            assert writer.publish(topic, b"hidden", qos=1, user=user).reason < FAILURE
        # What no condition asks for may repeat.
        shown: list[tuple[str, tuple[tuple[str, str], ...]]] = [
            ("notes", (PUBLIC, ("colour", "red"), ("colour", "blue"))),
            ("plain", (PUBLIC, SECRET)),
        ]
        for name, pairs in shown:
            assert writer.publish(name, b"shown", qos=1, user=pairs).reason < FAILURE
        assert [(it.payload, len(it.properties.user)) for it in reader.messages(2)] == [
            (b"shown", 3),
            (b"shown", 2),
        ]
        reader.settle()
        assert reader.texts() == []
        for user, allowed in (((PUBLIC,), True), ((SECRET, PUBLIC), False)):
            assert (writer.publish("checked", qos=1, user=user).reason < FAILURE) is allowed
