"""Commands as an attacker would give them: nobody learns, changes or stops what is not theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.config import Config
from penstock.model.document import Document, Key
from penstock.mqtt import V3, ReasonCode
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.reader import read_after
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.definitions import apply, stored
from tests.support.gateway.harness import GatewayThread, run_gateway, write_config
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)


@pytest.fixture(params=[4, 0], ids=["lanes", "no lanes"])
def lanes(request: pytest.FixtureRequest) -> int:
    """How many publish lanes the gateway has."""
    return int(request.param)


USERS = {"olga": "o", "ann": "a", "bob": "b", "mallory": "m"}
DEFINED = [
    Document("right", "olga", {"subjects": ["user:olga"], "administer": True}),
    Document("right", "ann", {"subjects": ["user:ann"], "claim": ["care"], "reserve": ["ward/#"]}),
    Document("right", "mallory", {"subjects": ["user:mallory"], "reserve": ["mine/#"]}),
    Document("reservation", "ward/#", {"allow": ["care"]}),
]
STATE = ("CLEAR", "RESET", "PERSIST", "RELOAD")


@pytest.fixture
def ward(broker: MosquittoServer, tmp_path: Path, lanes: int) -> Iterator[GatewayThread]:
    """Run a gateway with users and rights, where purposes need a right."""
    passwords = write_passwords(tmp_path / "p", USERS)
    chosen: dict[str, Any] = {
        "open_mode": False,
        "lanes": lanes,
        "authentication": {"passwords": str(passwords)},
        "filtering": {"claims_need_right": True, "publish_answers": True},
        "limits": {"state_commands": 8},
    }
    apply(write_config(tmp_path / "g", broker.port, chosen), DEFINED)
    with run_gateway(tmp_path / "g", broker.port, chosen) as running:
        yield running


def login(gateway: GatewayThread, name: str, version: int = 5, **how: Any) -> RawClient:
    client = RawClient(gateway.port, version=version)
    user = name.partition(":")[0]
    assert client.connect(name, username=user, password=user[0].encode(), **how).reason == 0
    return client


def recorded(config: Config) -> list[Entry]:
    with Database.open(config.store.connection_url()) as database, database.read() as connection:
        return [it.entry for it in read_after(connection, -1, 10_000)]


def test_who_may_not_administer_changes_nobodys_subscriptions(ward: GatewayThread) -> None:
    before = stored(ward.config)
    with login(ward, "ann") as ann, login(ward, "mallory") as mallory:
        ann.subscribe("!AP/ward/1{care}", qos=1)
        for word in (*STATE, "TREE", "CRES/ward/1", "ARES/HASH", "ARES/ward/HASH", "ARES/PLUS/1"):
            answer = mallory.publish(f"!PBAC/{word}", qos=1)
            assert answer.reason == ReasonCode.NOT_AUTHORIZED, word
        assert mallory.texts() == []
        with login(ward, "mallory:old", V3) as old:
            for word in STATE:
                old.publish(f"!PBAC/{word}", qos=1)
        ann.publish("ward/1", b"x", qos=1)
        assert ann.texts(1) == [("ward/1", b"x")]
    assert stored(ward.config) == before


def test_a_loop_of_commands_ends_and_takes_nothing_from_others(ward: GatewayThread) -> None:
    with login(ward, "olga") as olga, login(ward, "olga:2") as again, login(ward, "ann") as ann:
        answers = [
            client.publish(f"!PBAC/{STATE[count % 4]}", qos=1).reason
            for count in range(20)
            for client in (olga, again)
        ]
        # All connections together, not each of them.
        assert answers.count(0) == 8
        assert set(answers[8:]) == {ReasonCode.QUOTA_EXCEEDED}
        assert ann.subscribe("!AP/ward/1{care}", qos=1).reasons == (1,)
        assert ann.publish("!RESERVE/ward/HASH{care}", qos=1).reason == 0
        ann.publish("ward/1", b"x", qos=1)
        assert ann.texts(1) == [("ward/1", b"x")]
    with Database.open(ward.config.store.connection_url()) as database:
        assert len(Definitions(database).epochs()) <= 1 + len(answers)


def test_reload_gives_no_purpose_that_is_no_longer_theirs(ward: GatewayThread) -> None:
    keep: dict[str, Any] = {"clean": False, "expiry": 600}
    with login(ward, "olga") as olga, login(ward, "ann") as ann:
        ann.subscribe("!AP/ward/1{care}", qos=1)
        with login(ward, "ann:away", **keep) as away:
            away.subscribe("!AP/ward/1{care}", qos=1)
        for word in ("PERSIST", "CLEAR"):
            olga.publish(f"!PBAC/{word}", qos=1)
        with Database.open(ward.config.store.connection_url()) as database:
            change = CheckedDefinitions(Definitions(database)).delete(
                [Key("right", "ann")], actor="test"
            )
        wait_until(lambda: ward.do(lambda: ward.gateway.rules.epoch) >= change.epoch)
        assert olga.publish("!PBAC/RELOAD", qos=1).reason == 0
        session = ward.gateway.clients["ann"].session
        assert ward.do(lambda: set(session.dormant)) == {"ward/1"}
        with login(ward, "ann:away", **keep) as away:
            olga.publish("ward/1", b"x", qos=1)
            assert ann.texts() == []
            assert away.texts() == []


def test_nobody_inherits_by_a_name_what_was_persisted(ward: GatewayThread) -> None:
    """A session ends; its identifier comes back, and has only what it asks for."""
    with login(ward, "olga") as olga:
        with login(ward, "ann") as ann:
            ann.subscribe("!AP/ward/1{care}", qos=1)
            olga.publish("!PBAC/PERSIST", qos=1)
        with login(ward, "ann") as ann:
            olga.publish("!PBAC/RELOAD", qos=1)
            olga.publish("ward/1", b"x", qos=1)
            assert ann.texts() == []


def test_an_answer_that_is_too_large_is_refused_before_it_is_made(ward: GatewayThread) -> None:
    """Who may reserve a little cannot make the gateway write a lot, again and again."""
    purposes = [f"{count:03}/" + "p" * 240 for count in range(1_000)]
    large = [Document("reservation", f"mine/{it}", {"allow": purposes}) for it in range(8)]
    apply(ward.config, large)
    with login(ward, "mallory") as mallory, login(ward, "olga") as olga:
        mallory.subscribe("!PBAC/ARES/#", qos=1)
        wait_until(
            lambda: ward.do(lambda: len(ward.gateway.rules.engine.reservations)) == 1 + len(large)
        )
        answer = mallory.publish("!PBAC/ARES/mine/HASH", qos=1)
        assert answer.reason == ReasonCode.TOPIC_NAME_INVALID
        assert "ask for less" in answer.properties.reason_string
        assert mallory.texts() == []
        assert mallory.publish("!PBAC/CRES/mine/1", qos=1).reason == 0
        assert olga.publish("!PBAC/TREE", qos=1).reason == 0
        ((_, tree),) = olga.texts(1)
        assert tree.decode().endswith("more")


def test_each_command_leaves_an_entry_that_names_nobody(ward: GatewayThread) -> None:
    given = {
        "olga": ["!PBAC/CLEAR", "!PBAC/PERSIST", "!PBAC/RELOAD", "!PBAC/RESET", "!PBAC/TREE"],
        "ann": ["!RESERVE/ward/7{care}", "!PBAC/CRES/ward/7", "!PBAC/ARES/ward/HASH"],
    }
    for user, commands in given.items():
        with login(ward, user) as client:
            for command in commands:
                assert client.publish(command, qos=1).reason == 0
    with login(ward, "mallory") as mallory:
        assert mallory.publish("!PBAC/CLEAR", qos=1).reason

    def done() -> dict[str, Entry]:
        entries = [it for it in recorded(ward.config) if it.outcome == Outcome.DONE]
        return {json.loads(it.details).get("operation", ""): it for it in entries}

    wanted = {"clear", "persist", "reload", "reset", "tree", "reserve", "cres", "ares"}
    wait_until(lambda: wanted <= done().keys())
    actors = {name: it.actor for name, it in done().items() if name}
    assert len({actors[it] for it in ("clear", "persist", "reload", "reset", "tree")}) == 1
    assert actors["cres"] == actors["ares"] == actors["reserve"] != actors["tree"]
    wait_until(lambda: any(it.kind == "command.denied" for it in recorded(ward.config)))
    assert not any("ward" in it.details for it in recorded(ward.config))
