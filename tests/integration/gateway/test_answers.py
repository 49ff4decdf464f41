"""Answers to CRES and ARES on the topics of the questions, for clients that know no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.model.document import Document, Key
from penstock.mqtt import V3, V5, ReasonCode, Will
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.definitions import apply
from tests.support.gateway.harness import GatewayThread, run_gateway, share, write_config
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

USERS = {"alice": "a", "carol": "c", "olga": "o", "mallory": "m"}
DEFINED = [
    Document("right", "alice", {"subjects": ["user:alice"], "reserve": ["home/#"]}),
    Document("right", "carol", {"subjects": ["user:carol"], "reserve": ["home/garden/#"]}),
    Document("right", "olga", {"subjects": ["user:olga"], "administer": True}),
    Document("reservation", "home/#", {"allow": ["care"]}),
    Document("reservation", "home/garden/#", {"prohibit": ["ads"]}),
]
GARDEN = {"topic": "home/garden/pond", "purposes": {"allow": ["care"], "prohibit": ["ads"]}}


@pytest.fixture
def pair(broker: MosquittoServer, tmp_path: Path) -> Iterator[list[GatewayThread]]:
    """Run two gateways on one store that publish answers."""
    passwords = write_passwords(tmp_path / "p", USERS)
    chosen: dict[str, Any] = {
        "open_mode": False,
        "authentication": {"passwords": str(passwords)},
        "filtering": {"publish_answers": True, "strict": True},
    }
    common = share(tmp_path)
    common["store"]["lease"] = "60s"
    apply(write_config(tmp_path / "one", broker.port, chosen, **common), DEFINED)
    with (
        run_gateway(tmp_path / "one", broker.port, chosen, **common) as one,
        run_gateway(tmp_path / "two", broker.port, chosen, **common) as two,
    ):
        yield [one, two]


def login(gateway: GatewayThread, name: str, version: int = V5, **how: Any) -> RawClient:
    client = RawClient(gateway.port, version=version)
    user = name.partition(":")[0]
    answer = client.connect(name, username=user, password=user[0].encode(), **how)
    assert answer.reason == 0
    return client


def told(client: RawClient, count: int = 0) -> list[tuple[str, Any]]:
    return [(topic, json.loads(text)) for topic, text in client.texts(count)]


@pytest.mark.parametrize("version", [V3, V5])
def test_an_old_client_gets_its_answer_once_by_its_subscription(
    pair: list[GatewayThread], version: int
) -> None:
    question = "!PBAC/CRES/home/garden/pond"
    with login(pair[0], "alice", version) as alice:
        alice.publish(question, qos=1)
        assert told(alice, 1) == [(question, GARDEN)]  # as without the setting
        assert alice.subscribe("!PBAC/CRES/#", qos=1).reasons == (1,)
        alice.publish(question, b"forged", qos=1, retain=True)
        assert told(alice, 1) == [(question, GARDEN)]
        affected = "!PBAC/ARES/home/garden/HASH"
        assert alice.subscribe(affected, qos=0).reasons == (0,)
        alice.publish(affected, qos=1)
        ((topic, listed),) = told(alice, 1)
        assert topic == affected
        assert set(listed["reservations"]) == {"home/#", "home/garden/#"}
        alice.unsubscribe("!PBAC/CRES/#")
        with login(pair[0], "olga") as olga:
            olga.publish(question, qos=1)
        assert told(alice) == []


def test_who_may_ask_reads_answers_at_any_gateway_and_nobody_else(
    pair: list[GatewayThread],
) -> None:
    with (
        login(pair[0], "olga") as olga,
        login(pair[1], "alice:1", V3) as alice,
        login(pair[1], "carol") as carol,
        login(pair[1], "mallory") as mallory,
    ):
        for listening in (alice, carol):
            assert listening.subscribe("!PBAC/CRES/#", "!PBAC/ARES/#", qos=1).reasons == (1, 1)
        wanted = (
            "!PBAC/CRES/#",
            "!PBAC/CRES/home/garden/pond",
            "!PBAC/#",
            "!PBAC/TREE",
            "!PBAC/+/#",
        )
        refused = (ReasonCode.NOT_AUTHORIZED,) * 2 + (ReasonCode.TOPIC_FILTER_INVALID,) * 3
        assert mallory.subscribe(*wanted).reasons == refused
        for spying in (mallory, carol):  # neither `#` nor a group means what is asked by name
            spying.subscribe("#", "+/CRES/#", "$share/g/!PBAC/CRES/#", qos=1)
        for asked in ("CRES/home/garden/pond", "CRES/home/kitchen", "ARES/home/HASH", "TREE"):
            assert olga.publish(f"!PBAC/{asked}", qos=1).reason == 0
        assert [topic for topic, _ in told(alice, 3)] == [
            "!PBAC/CRES/home/garden/pond",
            "!PBAC/CRES/home/kitchen",
            "!PBAC/ARES/home/HASH",
        ]
        assert told(carol, 1) == [("!PBAC/CRES/home/garden/pond", GARDEN)]
        assert mallory.texts() == []


def test_a_right_that_is_taken_away_ends_the_reading(pair: list[GatewayThread]) -> None:
    with login(pair[0], "olga") as olga, login(pair[1], "alice") as alice:
        alice.subscribe("!PBAC/CRES/#", qos=1)
        with Database.open(pair[0].config.store.connection_url()) as database:
            change = CheckedDefinitions(Definitions(database)).delete(
                [Key("right", "alice")], actor="test"
            )
        rules = [it.gateway.rules for it in pair]
        wait_until(lambda: all(it.epoch >= change.epoch for it in rules))
        olga.publish("!PBAC/CRES/home/kitchen", qos=1)
        olga.settle()
        assert alice.texts() == []


def test_nobody_forges_an_answer(pair: list[GatewayThread]) -> None:
    topic = "!PBAC/CRES/home/kitchen"
    with login(pair[0], "alice") as alice, login(pair[1], "mallory") as mallory:
        alice.subscribe("!PBAC/CRES/#", qos=1)
        for forged in (topic, f"!AIP/{topic}{{care}}"):
            assert mallory.publish(forged, b"forged", qos=1).reason >= 0x80
            mallory.publish(forged, b"forged", retain=True)
        assert mallory.publish("x", b"forged", qos=1, response_topic=topic).reason >= 0x80
        will = Will(topic, b"forged")
        with RawClient(pair[1].port) as late:
            assert late.connect("mallory:2", username="mallory", password=b"m", will=will).reason
        mallory.settle()
        assert alice.texts() == []


def test_a_kept_session_keeps_its_subscription_to_answers(pair: list[GatewayThread]) -> None:
    keep: dict[str, Any] = {"clean": False, "expiry": 600}
    topic = "!PBAC/CRES/home/kitchen"
    with login(pair[0], "olga") as olga:
        with login(pair[0], "alice", **keep) as alice:
            alice.subscribe("!PBAC/CRES/#", qos=1)
        olga.publish(topic, qos=1)
        with login(pair[1], "alice", **keep) as alice:
            assert [it for it, _ in told(alice, 1)] == [topic]
            olga.publish("!PBAC/CLEAR", qos=1)  # it is for no purpose
            olga.publish(topic, qos=1)
            assert [it for it, _ in told(alice, 1)] == [topic]


def test_without_the_setting_nobody_subscribes_to_answers(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with (
        run_gateway(tmp_path, broker.port) as gateway,
        RawClient(gateway.port) as one,
        RawClient(gateway.port) as two,
    ):
        one.connect("one")
        two.connect("two")
        refused = two.subscribe("!PBAC/CRES/#", "#").reasons
        assert refused == (ReasonCode.TOPIC_FILTER_INVALID, 2)
        one.publish("!PBAC/CRES/home", qos=1)
        assert [topic for topic, _ in one.texts(1)] == ["!PBAC/CRES/home"]
        assert two.texts() == []
