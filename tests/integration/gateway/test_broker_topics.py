"""The broker's own topics: whoever reads or writes them needs a right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.model.document import Document, Key
from penstock.mqtt import V3, V5, ReasonCode
from penstock.mqtt.codes import FAILURE
from penstock.store.audit.reader import read_last
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.commands import run_command
from tests.support.gateway.clients import VERSIONS
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")

USERS = {"ann": "a", "operator": "o", "narrow": "n", "chief": "c"}
GROUND = [
    Document("group", "operators", {"members": ["user:operator"]}),
    Document("right", "operators", {"subjects": ["group:operators"], "monitor": ["$SYS/#"]}),
    Document("right", "narrow", {"subjects": ["user:narrow"], "monitor": ["$SYS/broker/+"]}),
    Document("right", "chief", {"subjects": ["user:chief"], "administer": True}),
]
FORMS = (
    "$SYS/#",
    "$SYS/broker/uptime",
    "$SYS/broker/#",
    "$SYS/+/uptime",
    "$share/g/$SYS/#",
    "$share/g/$SYS/broker/uptime",
    "$CONTROL/#",
    "$anything",
)


@pytest.fixture
def gateway(mosquitto: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    path = write_passwords(tmp_path / "passwords", USERS)
    settings: dict[str, Any] = {
        "open_mode": False,
        "authentication": {"passwords": str(path), "anonymous": True},
    }
    with run_gateway(tmp_path / "g", mosquitto.port, settings) as running:
        change(running, *GROUND)
        yield running


def change(gateway: GatewayThread, *documents: Document, delete: tuple[Key, ...] = ()) -> None:
    with Database.open(gateway.config.store.connection_url()) as database:
        checked = CheckedDefinitions(Definitions(database))
        epoch = checked.apply(documents, actor="test").epoch if documents else 0
        if delete:
            epoch = checked.delete(delete, actor="test").epoch
    wait_until(lambda: gateway.do(lambda: gateway.gateway.rules.epoch) >= epoch)


def login(gateway: GatewayThread, user: str, version: int = V5, **options: Any) -> RawClient:
    made = RawClient(gateway.port, version=version)
    name = None if user == "anonymous" else user
    secret = USERS[user].encode() if name else None
    assert not made.connect(user, username=name, password=secret, **options).reason
    return made


@VERSIONS
def test_they_are_subscribed_to_by_right_only(gateway: GatewayThread, version: int) -> None:
    refused = 0x80 if version == V3 else ReasonCode.NOT_AUTHORIZED
    expected = {
        "ann": (),
        "anonymous": (),
        "chief": (),
        "operator": FORMS[:6],
        "narrow": ("$SYS/broker/uptime", "$share/g/$SYS/broker/uptime"),
    }
    for user, theirs in expected.items():
        with login(gateway, user, version) as who:
            for form in FORMS:
                (reason,) = who.subscribe(form, qos=0).reasons
                assert reason == (0 if form in theirs else refused), (user, form)


def test_no_wildcard_leads_there(gateway: GatewayThread) -> None:
    """A filter that begins with one means no topic that begins with $ (MQTT5 4.7.2)."""
    with login(gateway, "ann") as ann, login(gateway, "operator") as operator:
        assert ann.subscribe("#", "+/broker/uptime", "+/#", "$share/g/#").reasons == (2,) * 4
        operator.subscribe("$SYS/#")
        assert operator.messages(1)[0].topic.startswith("$SYS/")
        ann.settle()
        assert ann.texts() == []


def test_the_reason_is_told_and_on_record(gateway: GatewayThread) -> None:
    with login(gateway, "ann") as ann:
        answer = ann.subscribe("$SYS/#")
        assert "right to monitor '$SYS/#'" in (answer.properties.reason_string or "")
    gateway.do(gateway.gateway.tick)

    def recorded() -> bool:
        url = gateway.config.store.connection_url()
        with Database.open(url) as database, database.read() as connection:
            return any(
                (it.entry.kind, it.entry.rule) == ("subscription.denied", "right to monitor")
                for it in read_last(connection, 20)
            )

    wait_until(recorded)


def test_a_right_that_is_taken_away_ends_what_is_held_and_what_is_kept(
    gateway: GatewayThread,
) -> None:
    with login(gateway, "operator", clean=False, expiry=60) as operator:
        operator.subscribe("$SYS/#", "$SYS/broker/uptime", qos=1)
        assert operator.messages(1)
        change(gateway, Document("group", "operators", {"members": []}))
        held = gateway.do(lambda: gateway.gateway.clients["operator"].session)
        assert not held.by_number
        assert set(held.dormant) == {"$SYS/#", "$SYS/broker/uptime"}
    with login(gateway, "operator", clean=False, expiry=60):
        held = gateway.do(lambda: gateway.gateway.clients["operator"].session)
        assert not held.by_number
        change(gateway, GROUND[0])
        wait_until(lambda: len(held.by_number) == 2)


def test_they_are_written_to_by_administrators_only(gateway: GatewayThread) -> None:
    for user, allowed in (
        ("ann", False),
        ("operator", False),
        ("anonymous", False),
        ("chief", True),
    ):
        with login(gateway, user) as who:
            for topic in ("$CONTROL/dynamic-security/v1", "$home/x", "!AIP/$home/x{care}"):
                answer = who.publish(topic, b"{}", qos=1)
                assert (answer.reason < FAILURE) is allowed, (user, topic)
    with login(gateway, "ann") as ann:
        assert ann.publish("home/x", b"{}", qos=1).reason < FAILURE


def test_check_says_the_same(gateway: GatewayThread, tmp_path: Path) -> None:
    folder = tmp_path / "g"
    for user, action, topic, code in (
        ("ann", "read", "$SYS/broker/uptime", 1),
        ("operator", "read", "$SYS/broker/uptime", 0),
        ("narrow", "read", "$SYS/broker/clients/total", 1),
        ("operator", "write", "$CONTROL/x", 1),
        ("chief", "write", "$CONTROL/x", 0),
    ):
        asked = ("check", "--subject", user, "--topic", topic, "--action", action)
        done = run_command(folder, *asked)
        assert done.returncode == code, (user, action, topic, done.stdout, done.stderr)
