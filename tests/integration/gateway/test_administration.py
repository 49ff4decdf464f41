"""Rights on commands, settings, and what is stored when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.gateway.connection.authentication import PasswordFile
from penstock.model.document import Document, Key
from penstock.mqtt import V3, ReasonCode
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.definitions import apply, stored
from tests.support.gateway.harness import GatewayThread, run_gateway, share, write_config
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

RIGHTS = [
    Document("right", "alice", {"subjects": ["user:alice"], "reserve": ["home/#"]}),
    Document("group", "operators", {"members": ["user:olga"]}),
    Document("right", "operators", {"subjects": ["group:operators"], "administer": True}),
    Document("right", "paul", {"subjects": ["user:paul"], "presubscribe": ["home/+"]}),
]
CLEARED = "cleared all reservations, presubscriptions and purposes of subscriptions"


@pytest.fixture
def closed(broker: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    """Run a gateway with users and rights."""
    path = write_passwords(tmp_path / "passwords", {"alice": "a", "olga": "o", "paul": "p"})
    settings: dict[str, Any] = {
        "open_mode": False,
        "authentication": {"passwords": str(path), "anonymous": True},
        "limits": {"commands": 50},
    }
    apply(write_config(tmp_path / "g", broker.port, settings), RIGHTS)
    with run_gateway(tmp_path / "g", broker.port, settings) as running:
        yield running


@pytest.fixture
def opened(broker: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    with run_gateway(tmp_path / "g", broker.port) as running:
        yield running


def login(gateway: GatewayThread, user: str | None, version: int = 5) -> RawClient:
    client = RawClient(gateway.port, version=version)
    if user is None:
        accepted = client.connect("nobody")
    else:
        accepted = client.connect(user, username=user, password=user[0].encode())
    assert accepted.reason == 0
    return client


def test_each_command_needs_its_right(closed: GatewayThread) -> None:
    commands = {
        "!RESERVE/home/x{a}": {"alice"},
        "!RESERVE/other/x{a}": set(),
        "!RESERVE/HASH{a}": set(),
        "!PBAC/PRESUB/someone/home/y{a}": {"paul"},
        "!PBAC/PRESUB/someone/home/y/z{a}": set(),
        "!PBAC/TREE": {"olga"},
        "!PBAC/SET/hybrid_tag": {"olga"},
        "!PBAC/CRES/home/x": {"alice", "olga"},
        "!PBAC/CLEAR": {"olga"},
    }
    clients = {user: login(closed, user) for user in ("alice", "olga", "paul", None)}
    for command, allowed in commands.items():
        for user, client in clients.items():
            answer = client.publish(command, b"true", qos=1)
            expected = 0 if user in allowed else ReasonCode.NOT_AUTHORIZED
            assert answer.reason == expected, (command, user)
    for client in clients.values():
        client.close()


def test_a_right_that_is_taken_away_no_longer_counts(closed: GatewayThread) -> None:
    with login(closed, "alice") as alice:
        assert alice.publish("!RESERVE/home/x{a}", qos=1).reason == 0
        config = closed.config
        with Database.open(config.store.connection_url()) as database:
            CheckedDefinitions(Definitions(database)).delete([Key("right", "alice")], actor="test")
        for _ in range(100):
            if alice.publish("!RESERVE/home/x{a}", qos=1).reason:
                break
        assert alice.publish("!RESERVE/home/x{a}", qos=1).reason == ReasonCode.NOT_AUTHORIZED


def test_a_denied_command_is_acknowledged_to_version_3_and_changes_nothing(
    closed: GatewayThread,
) -> None:
    with login(closed, None, V3) as client:
        assert client.publish("!RESERVE/home/x{a}", qos=1).reason == 0
        assert client.publish("!RESERVE/home/x{a}", qos=2).reason == 0
    assert Key("reservation", "home/x") not in stored(closed.config)


def test_too_many_commands_are_refused_for_a_while(closed: GatewayThread) -> None:
    with login(closed, "alice") as alice:
        answers = [alice.publish("!PBAC/CRES/home/x", qos=1).reason for _ in range(400)]
    assert ReasonCode.QUOTA_EXCEEDED in answers
    assert answers[:40] == [0] * 40


def test_commands_are_definitions(opened: GatewayThread, topic: str) -> None:
    with login(opened, None) as client:
        client.publish(f"!RESERVE/{topic}/HASH{{b,a|c}}", qos=1)
        client.publish(f"!PBAC/PRESUB/nobody/{topic}{{a}}", qos=1)
        client.publish("!PBAC/SET/filter_hybrid", b"true", qos=1)
    documents = stored(opened.config)
    reserved = documents[Key("reservation", f"{topic}/#")]
    assert reserved.body == {"allow": ["a", "b"], "prohibit": ["c"]}
    assert documents[Key("purpose-settings", "default")].body["filter_hybrid"] is True
    presubscribed = [it.body for key, it in documents.items() if key.kind == "presubscription"]
    assert presubscribed == [{"client": "nobody", "filter": topic, "purpose": "a"}]
    with login(opened, None) as client:
        client.publish("!PBAC/CLEAR", qos=1)
        client.publish("!PBAC/RESET", qos=1)
    # Settings are no part of what is cleared; what was done stands in the log of commands.
    assert {it.kind for it in stored(opened.config)} == {"purpose-settings", "purpose-state"}
    assert stored(opened.config)[Key("purpose-settings", "default")].body["filter_hybrid"] is True


def test_definitions_from_elsewhere_hold_at_the_gateway(opened: GatewayThread, topic: str) -> None:
    with login(opened, None) as reader, RawClient(opened.port) as writer:
        writer.connect("writer")
        reader.subscribe(f"!AP/{topic}{{mine}}")
        apply(opened.config, [Document("reservation", topic, {"allow": ["other"]})])
        opened.do(lambda: None)
        wait_for_epoch(opened, 1)
        writer.publish(topic, b"x", qos=1)
        assert reader.texts() == []


def wait_for_epoch(gateway: GatewayThread, epoch: int) -> None:
    for _ in range(200):
        if gateway.do(lambda: gateway.gateway.rules.epoch) >= epoch:
            return
        gateway.call(pause)
    raise AssertionError(f"epoch {epoch} did not arrive")


async def pause() -> None:
    import asyncio  # noqa: PLC0415

    await asyncio.sleep(0.02)


def test_a_purpose_that_is_not_declared_is_refused_once_some_are(
    opened: GatewayThread, topic: str
) -> None:
    apply(opened.config, [Document("purpose", "billing", {})])
    wait_for_epoch(opened, 1)
    with login(opened, None) as client:
        answer = client.publish(f"!RESERVE/{topic}{{unknown}}", qos=1)
        assert answer.reason == ReasonCode.TOPIC_NAME_INVALID
        assert "unknown" in answer.properties.reason_string
        assert client.publish(f"!RESERVE/{topic}{{billing}}", qos=1).reason == 0


def test_without_auto_persist_changes_wait_for_persist(opened: GatewayThread, topic: str) -> None:
    key = Key("reservation", topic)
    with login(opened, None) as client, RawClient(opened.port) as reader:
        reader.connect("reader")
        client.publish("!PBAC/SET/auto_persist", b"false", qos=1)
        assert client.publish(f"!RESERVE/{topic}{{other}}", qos=1).reason == 0
        assert key not in stored(opened.config)
        reader.subscribe(f"!AP/{topic}{{mine}}")
        client.publish(topic, b"held here", qos=1)
        assert reader.texts() == []
        client.publish("!PBAC/RELOAD", qos=1)
        client.publish(topic, b"after reload", qos=1)
        assert reader.texts(1) == [(topic, b"after reload")]
        client.publish("!PBAC/SET/auto_persist", b"false", qos=1)
        client.publish(f"!RESERVE/{topic}{{other}}", qos=1)
        assert client.publish("!PBAC/PERSIST", qos=1).reason == 0
        assert key in stored(opened.config)
        client.publish(topic, b"persisted", qos=1)
        assert reader.texts() == []


@pytest.mark.parametrize("name", ["use_tree_store", "cache_reservations", "cache_subscriptions"])
def test_stores_and_caches_change_nothing_but_work(
    opened: GatewayThread, topic: str, name: str
) -> None:
    with login(opened, None) as client, RawClient(opened.port) as reader:
        reader.connect("reader")
        for value in (b"false", b"true"):
            client.publish(f"!PBAC/SET/{name}", value, qos=1)
            client.publish(f"!RESERVE/{topic}/HASH{{a}}", qos=1)
            reader.subscribe(f"!AP/{topic}/x{{a}}", f"!AP/{topic}/y{{b}}")
            for end in "xyxy":
                client.publish(f"{topic}/{end}", end.encode(), qos=1)
            assert reader.texts(2) == [(f"{topic}/x", b"x")] * 2


def test_strict_mode_closes_what_is_not_reserved(opened: GatewayThread, topic: str) -> None:
    with login(opened, None) as client, RawClient(opened.port) as reader:
        reader.connect("reader")
        reader.subscribe(f"!AP/{topic}/#{{a}}".replace("#", "HASH"))
        client.publish("!PBAC/SET/allow_without_reservation", b"false", qos=1)
        client.publish(f"!RESERVE/{topic}/x{{a}}", qos=1)
        client.publish(f"{topic}/x", b"reserved", qos=1)
        client.publish(f"{topic}/y", b"not reserved", qos=1)
        assert reader.texts(1) == [(f"{topic}/x", b"reserved")]


@pytest.mark.parametrize("how", ["command", "definition"])
def test_what_settings_do_not_name_stays_as_configured(
    mosquitto: MosquittoServer, tmp_path: Path, how: str
) -> None:
    """A setting that has nothing to do with it opens neither topics nor claims, anywhere."""
    shared = share(tmp_path)
    strict = {"filtering": {"strict": True, "claims_need_right": True}}
    with (
        run_gateway(tmp_path / "strict", mosquitto.port, strict, **shared) as closed,
        run_gateway(tmp_path / "lax", mosquitto.port, **shared) as lax,
        RawClient(lax.port) as officer,
        RawClient(closed.port) as reader,
    ):
        officer.connect("officer")
        reader.connect("reader")
        reader.subscribe("free/#")
        if how == "command":
            officer.publish("!PBAC/SET/cache_reservations", b"false", qos=1)
        else:
            chosen = {"cache_reservations": False}
            apply(closed.config, [Document("purpose-settings", "default", chosen)])
        wait_until(lambda: not closed.gateway.rules.remembers and not lax.gateway.rules.remembers)
        in_force = closed.gateway.rules.engine.settings
        assert (in_force.allow_without_reservation, in_force.claims_need_right) == (False, True)
        officer.publish("free/x", b"open", qos=1)
        reader.settle()
        assert reader.texts() == []


def test_a_mode_can_be_changed_while_messages_flow(opened: GatewayThread, topic: str) -> None:
    with login(opened, None) as client, RawClient(opened.port) as reader:
        reader.connect("reader")
        reader.subscribe(f"!AP/{topic}/HASH{{a}}", qos=1)
        client.publish(f"!RESERVE/{topic}/x{{b}}", qos=1)
        expected = {"publish": [b"y"], "subscribe": [], "hybrid": [b"y"]}
        for name in ("filter_on_subscribe", "filter_hybrid", "filter_on_publish"):
            for flag in ("filter_on_subscribe", "filter_hybrid"):
                client.publish(f"!PBAC/SET/{flag}", b"true" if flag == name else b"false", qos=1)
            reader.settle()
            for end in "xy":
                client.publish(f"{topic}/{end}", end.encode(), qos=1)
            mode = name.rpartition("_")[2]
            assert [it.payload for it in reader.messages()] == expected[mode], mode


def test_hybrid_refuses_what_only_a_part_of_the_filter_allows_unless_set(
    opened: GatewayThread, topic: str
) -> None:
    with login(opened, None) as client, RawClient(opened.port) as reader:
        reader.connect("reader")
        client.publish("!PBAC/SET/filter_hybrid", b"true", qos=1)
        client.publish(f"!RESERVE/{topic}/HASH{{a}}", qos=1)
        client.publish(f"!RESERVE/{topic}/x{{b}}", qos=1)
        wide = f"!AP/{topic}/HASH{{b}}"
        assert reader.subscribe(wide).reasons == (ReasonCode.NOT_AUTHORIZED,)
        client.publish("!PBAC/SET/hybrid_partial", b"true", qos=1)
        assert reader.subscribe(wide).reasons == (2,)
        for end in "xy":
            client.publish(f"{topic}/{end}", end.encode(), qos=1)
        assert reader.texts(1) == [(f"{topic}/x", b"x")]
        # The stricter rule pauses what it would refuse.
        client.publish("!PBAC/SET/hybrid_partial", b"false", qos=1)
        client.publish(f"{topic}/x", b"paused", qos=1)
        assert reader.texts() == []


def test_a_gateway_that_cannot_check_policies_is_closed(opened: GatewayThread, topic: str) -> None:
    with login(opened, None) as client:
        client.subscribe(topic)
        apply(opened.config, [Document("enforcement", "default", {"policies": "required"})])
        wait_for_epoch(opened, 1)
        assert client.publish(topic, b"x", qos=1).reason == ReasonCode.NOT_AUTHORIZED


def test_a_denied_publish_closes_version_3_where_configured(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    settings = {"open_mode": False, "filtering": {"denied_publish": "close"}}
    with (
        run_gateway(tmp_path, broker.port, settings) as gateway,
        RawClient(gateway.port, version=V3) as client,
    ):
        client.connect("x")
        client.send_bytes(b"\x30\x0f\x00\x0d!PBAC/PERSIST")
        client.wait_closed()


def test_the_file_of_passwords_must_be_private(tmp_path: Path) -> None:
    path = write_passwords(tmp_path / "p", {"alice": "a"})
    PasswordFile(path).load()
    path.chmod(0o640)
    with pytest.raises(Exception, match="can be read by others"):
        PasswordFile(path).load()


def test_the_history_says_what_was_done_and_names_nobody_but_the_actor(
    opened: GatewayThread,
) -> None:
    with RawClient(opened.port) as admin:
        admin.connect("a-personal-name")
        for topic, payload in (
            ("!RESERVE/home/HASH{x}", b""),
            ("!RESERVE/home/HASH{}", b""),
            ("!PBAC/PRESUB/somebody/home/a{x}", b""),
            ("!PBAC/SET/filter_hybrid", b"true"),
            ("!PBAC/RESET", b""),
            ("!PBAC/CLEAR", b""),
        ):
            assert not admin.publish(topic, payload, qos=1).reason
    with Database.open(opened.config.store.connection_url()) as database:
        epochs = Definitions(database).epochs()
    made = [it for it in reversed(epochs) if it.reason.endswith("command")]
    assert [it.reason for it in made] == [
        "reserved home/# by MQTT command",
        "released home/# by MQTT command",
        "presubscribed a client by MQTT command",
        "setting filter_hybrid on by MQTT command",
        f"{CLEARED}, settings in force by MQTT command",
        f"{CLEARED} by MQTT command",
    ]
    assert {it.actor for it in made} == {"anonymous"}
