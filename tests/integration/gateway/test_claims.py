"""Who may claim which purposes: at SUBSCRIBE, for what is held already, and in what is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.model.document import Document, Key
from penstock.mqtt import V3, V5, ReasonCode
from penstock.store.audit.reader import read_last
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock.store.session_state import PAUSED
from tests.support.commands import run_command
from tests.support.gateway.clients import VERSIONS
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")

GROUND = [
    Document("purpose", "care", {}),
    Document("purpose", "care/nursing", {}),
    Document("purpose", "research", {}),
    Document("reservation", "ward/#", {"allow": ["care", "research"]}),
    Document("group", "nurses", {"members": ["user:ann"]}),
    Document("right", "nurses", {"subjects": ["group:nurses"], "claim": ["care"]}),
    Document("right", "terminal", {"subjects": ["client:bob:t"], "claim": ["research"]}),
    Document("role", "scientist", {"claim": ["research"]}),
    Document("role", "professor", {"includes": ["scientist"]}),
    Document("user", "rosa", {"roles": ["professor"]}),
    Document("right", "chief", {"subjects": ["user:chief"], "administer": True}),
    Document(
        "presubscription", "display", {"client": "bob", "filter": "ward/7", "purpose": "care"}
    ),
    Document("presubscription", "mine", {"client": "ann", "filter": "ward/7", "purpose": "care"}),
]
USERS = {"ann": "a", "bob": "b", "rosa": "r", "chief": "c"}
CLAIM = "right to claim"


@pytest.fixture
def asking(mosquitto: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    """Run a gateway that asks for the right to claim a purpose."""
    path = write_passwords(tmp_path / "passwords", USERS)
    settings: dict[str, Any] = {
        "open_mode": False,
        "authentication": {"passwords": str(path), "anonymous": True},
        "filtering": {"claims_need_right": True},
    }
    with run_gateway(tmp_path / "g", mosquitto.port, settings) as running:
        change(running, *GROUND)
        yield running


def change(gateway: GatewayThread, *documents: Document, delete: tuple[Key, ...] = ()) -> None:
    """Change definitions beside the gateway, and wait until it knows."""
    with Database.open(gateway.config.store.connection_url()) as database:
        checked = CheckedDefinitions(Definitions(database))
        epoch = checked.apply(documents, actor="test").epoch if documents else 0
        if delete:
            epoch = checked.delete(delete, actor="test").epoch
    wait_until(lambda: gateway.do(lambda: gateway.gateway.rules.epoch) >= epoch)


def login(
    gateway: GatewayThread, user: str, client: str = "", version: int = V5, **options: Any
) -> RawClient:
    made = RawClient(gateway.port, version=version)
    name = None if user == "anonymous" else user
    secret = USERS[user].encode() if name else None
    assert not made.connect(client or user, username=name, password=secret, **options).reason
    return made


@VERSIONS
def test_a_claim_without_a_right_is_refused_at_subscribe(
    asking: GatewayThread, version: int
) -> None:
    refused = 0x80 if version == V3 else ReasonCode.NOT_AUTHORIZED
    expected = {
        ("ann", ""): ["care", "care/nursing"],
        ("bob", ""): [],
        ("bob", "bob:t"): ["research"],
        ("rosa", ""): ["research"],
        ("anonymous", "someone"): [],
    }
    for (user, client), theirs in expected.items():
        with login(asking, user, client, version) as who:
            for purpose in ("care", "care/nursing", "research"):
                (reason,) = who.subscribe(f"!AP/ward/1{{{purpose}}}").reasons
                assert reason == (2 if purpose in theirs else refused), (user, client, purpose)
            assert who.subscribe("ward/1").reasons == (2,)  # plain ones claim nothing


def test_user_properties_and_presubscriptions_claim_as_well_and_the_reason_is_told(
    asking: GatewayThread,
) -> None:
    with login(asking, "bob") as bob, login(asking, "ann") as ann:
        for answer in (
            bob.subscribe("ward/1", user=(("purpose-ap", "care"),)),
            bob.subscribe("ward/7"),
        ):
            assert answer.reasons == (ReasonCode.NOT_AUTHORIZED,)
            told = answer.properties.reason_string
            assert told == "nothing gives them the right to claim care"
        assert ann.subscribe("ward/7").reasons == (2,)
        ann.publish("ward/7", b"1", qos=1)
        assert ann.texts(1) == [("ward/7", b"1")]
        assert bob.texts() == []
    asking.do(asking.gateway.tick)
    wait_until(lambda: audited(asking))


def audited(gateway: GatewayThread) -> bool:
    with (
        Database.open(gateway.config.store.connection_url()) as database,
        database.read() as connection,
    ):
        found = [it.entry for it in read_last(connection, 100)]
    denied = [it for it in found if it.kind == "subscription.denied"]
    return bool(denied) and {it.rule for it in denied} == {CLAIM}


NURSES = Key("right", "nurses")
OTHERWISE = Document("right", "nurses", {"subjects": ["group:nurses"], "claim": ["research"]})


@pytest.mark.parametrize(
    ("mode", "taken"),
    [
        ("publish", {"delete": (NURSES,)}),
        ("publish", {"put": (Document("group", "nurses", {}),)}),
        ("publish", {"put": (OTHERWISE,)}),
        ("subscribe", {"delete": (NURSES,)}),
        ("tagged", {"delete": (NURSES,)}),
    ],
)
def test_a_right_that_is_taken_away_ends_what_was_subscribed(
    asking: GatewayThread, mode: str, taken: dict[str, Any]
) -> None:
    if mode == "subscribe":
        change(asking, settings(filter_on_subscribe=True, filter_on_publish=False))
    elif mode == "tagged":
        change(asking, settings(filter_hybrid=True, hybrid_tag=True))
    keep: dict[str, Any] = {"clean": False, "expiry": 600}
    away = login(asking, "ann", "ann:away", **keep)
    shared = "!AP/$share/g/ward/3{care}"
    with login(asking, "ann") as ann, login(asking, "chief") as chief:
        for who in (ann, away):
            assert who.subscribe("!AP/ward/1{care/nursing}", qos=1).reasons == (1,)
            assert who.subscribe(shared, qos=1).reasons == (1,)
        chief.publish("ward/1", b"before", qos=1)
        assert ann.texts(1) == away.texts(1) == [("ward/1", b"before")]
        away.close()
        chief.publish("ward/1", b"queued", qos=1)
        assert ann.texts(1) == [("ward/1", b"queued")]
        change(asking, *taken.get("put", ()), delete=taken.get("delete", ()))
        chief.publish("ward/1", b"after", qos=1)
        chief.publish("ward/3", b"after", qos=1)
        assert ann.texts() == []
        with login(asking, "ann", "ann:away", **keep) as back:
            assert back.texts() == []
        # Given back it flows again; the client has nothing to do.
        change(asking, *GROUND)
        wait_until(lambda: flows(asking))
        chief.publish("ward/1", b"again", qos=1)
        assert ann.texts(1) == [("ward/1", b"again")]


def settings(**chosen: bool) -> Document:
    return Document("purpose-settings", "default", {"claims_need_right": True, **chosen})


def flows(gateway: GatewayThread) -> bool:
    session = gateway.gateway.clients["ann"].session
    return gateway.do(lambda: not session.dormant)


def test_a_member_without_the_right_takes_nothing_from_the_others(asking: GatewayThread) -> None:
    """Rights may be given to clients: members of one user's group may differ."""
    change(
        asking, Document("right", "other", {"subjects": ["client:bob:o"], "claim": ["research"]})
    )
    keep: dict[str, Any] = {"clean": False, "expiry": 600}
    with login(asking, "bob", "bob:t") as stays, login(asking, "chief") as chief:
        gone = login(asking, "bob", "bob:o", **keep)
        for who in (stays, gone):
            assert who.subscribe("!AP/$share/g/ward/+{research}", qos=1).reasons == (1,)
        gone.close()
        change(asking, delete=(Key("right", "other"),))
        with login(asking, "bob", "bob:o", **keep) as back:
            dormant = asking.gateway.clients["bob:o"].session.dormant
            # The broker is told behind CONNACK.
            wait_until(lambda: all(it.options & PAUSED for it in dormant.values()))
            back.settle()
            for count in range(6):
                chief.publish(f"ward/{count}", b"x", qos=1)
            assert len(stays.messages(6)) == 6
            assert back.texts() == []


def test_the_setting_can_be_tried_out_and_taken_back_by_command(
    mosquitto: MosquittoServer, tmp_path: Path
) -> None:
    with run_gateway(
        tmp_path / "g",
        mosquitto.port,
        {"open_mode": False, "filtering": {"claims_need_right": False}},
    ) as gateway:
        change(
            gateway, *GROUND, Document("right", "any", {"subjects": ["anyone"], "administer": True})
        )
        with RawClient(gateway.port) as admin, RawClient(gateway.port) as reader:
            admin.connect("admin")
            reader.connect("reader")
            assert reader.subscribe("!AP/ward/1{care}").reasons == (2,)
            admin.publish("!PBAC/SET/auto_persist", b"false", qos=1)
            assert not admin.publish("!PBAC/SET/claims_need_right", b"true", qos=1).reason
            admin.publish("ward/1", b"asked", qos=1)
            assert reader.texts() == []
            admin.publish("!PBAC/SET/claims_need_right", b"false", qos=1)
            session = gateway.gateway.clients["reader"].session
            wait_until(lambda: gateway.do(lambda: not session.dormant))
            wait_until(lambda: gateway.do(lambda: bool(session.by_number)))
            reader.settle()
            admin.publish("ward/1", b"free", qos=1)
            assert reader.texts(1) == [("ward/1", b"free")]


def test_in_open_mode_everybody_may_claim(mosquitto: MosquittoServer, tmp_path: Path) -> None:
    chosen = {"filtering": {"claims_need_right": True}}
    with run_gateway(tmp_path / "g", mosquitto.port, chosen) as gateway:
        change(gateway, *GROUND)
        with RawClient(gateway.port) as reader:
            reader.connect("reader")
            assert reader.subscribe("!AP/ward/1{care}").reasons == (2,)
        folder = gateway.config.data.parent
        asked = ("check", "--topic", "ward/1", "--purpose", "care", "--subject", "bob")
        assert run_command(folder, *asked).returncode == 0


def test_check_and_explain_say_what_the_gateway_does(asking: GatewayThread) -> None:
    folder = asking.config.data.parent

    def check(user: str, purpose: str, client: str | None = None) -> dict[str, Any]:
        asked = ["check", "--topic", "ward/1", "--purpose", purpose, "--subject", user, "--json"]
        done = run_command(folder, *asked, *(["--client", client] if client else []))
        told: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if told["allowed"] else 1)
        return told

    assert check("ann", "care/nursing")["allowed"]
    assert check("rosa", "research")["allowed"]
    assert check("bob", "research", "bob:t")["allowed"]
    refused = check("bob", "care")
    assert not refused["allowed"]
    assert refused["rule"] == CLAIM
    assert refused["reason"] == "nothing gives them the right to claim care"
    assert {"rule": "right nurses", "effect": "is for others"} in refused["considered"]
    told = json.loads(run_command(folder, "explain", "ward/1", "--json").stdout)
    assert told["claims_need_right"] is True
    assert told["claims"] == [
        {"rule": "right terminal", "subject": "client:bob:t", "purpose": "research"},
        {"rule": "right nurses", "subject": "group:nurses", "purpose": "care"},
        {"rule": "role scientist", "subject": "role:scientist", "purpose": "research"},
    ]
    shown = run_command(folder, "explain", "ward/1").stdout
    assert "who may claim" in shown
    assert "group:nurses" in shown
