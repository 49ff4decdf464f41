"""Commands on the purpose state where several gateways share a store, and where one is killed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.model.document import Document, Key
from penstock.mqtt import V3, V5, Publish
from penstock.store.database import Database
from penstock.store.definitions.history import Definitions
from penstock.store.session_state import digest, read_log, subscriptions_table
from penstock.store.sessions import Sessions
from tests.support.gateway.harness import (
    GatewayThread,
    make_process,
    run_gateway,
    share,
)
from tests.support.gateway.pair import wait_until
from tests.support.gateway.raw import ClosedError, RawClient
from tests.support.scale import scaled

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.timeout(600)]
pytest_plugins = ("tests.support.gateway.fixtures",)

MANY = {"limits": {"state_commands": 1_000_000}}
KEEP: dict[str, Any] = {"clean": False, "expiry": 600}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgresql"))])
def common(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Return the settings that gateways on one store have in common."""
    sections = share(tmp_path)
    if request.param == "postgres":
        sections["store"]["url"] = request.getfixturevalue("postgres_url")
    sections["store"]["lease"] = "60s"
    return sections


@pytest.fixture
def pair(
    broker: MosquittoServer, tmp_path: Path, common: dict[str, Any]
) -> Iterator[tuple[GatewayThread, GatewayThread]]:
    with (
        run_gateway(tmp_path / "one", broker.port, MANY, **common) as one,
        run_gateway(tmp_path / "two", broker.port, MANY, **common) as two,
    ):
        yield one, two


def login(gateway: GatewayThread, name: str, version: int = V5, **how: Any) -> RawClient:
    client = RawClient(gateway.port, version=version)
    assert client.connect(name, **how).reason == 0
    return client


def command(client: RawClient, word: str) -> None:
    assert client.publish(f"!PBAC/{word}", qos=1).reason == 0


def agree(*gateways: GatewayThread) -> None:
    """Wait until gateways know the same, and have told the broker what follows from it."""

    def settled() -> bool:
        epochs = {it.do(lambda it=it: it.gateway.rules.epoch) for it in gateways}  # type: ignore[misc]
        return len(epochs) == 1 and all(it.do(lambda it=it: idle(it)) for it in gateways)  # type: ignore[misc]

    def idle(running: GatewayThread) -> bool:
        words = {getattr(it.get_coro(), "__name__", "") for it in running.gateway.background.tasks}
        return not words & {"_align", "_resume", "_rest", "_pause"}

    wait_until(settled)


@pytest.mark.parametrize("version", [V3, V5])
def test_commands_act_at_all_gateways(
    pair: tuple[GatewayThread, GatewayThread], topic: str, version: int
) -> None:
    one, two = pair
    with login(one, "admin") as admin, login(two, "reader", version) as reader:
        with login(two, "away", **KEEP) as away:
            away.subscribe(f"!AP/{topic}{{mine}}", qos=1)
        admin.publish(f"!RESERVE/{topic}{{mine}}", qos=1)
        agree(one, two)
        reader.subscribe(f"!AP/{topic}{{mine}}", qos=1)
        command(admin, "PERSIST")
        agree(one, two)
        command(admin, "CLEAR")
        agree(one, two)
        admin.publish(topic, b"cleared", qos=1)
        assert reader.texts() == []
        reader.subscribe(f"!AP/{topic}{{theirs}}", qos=1)
        command(admin, "RELOAD")
        agree(one, two)
        reader.settle()
        with login(one, "away", **KEEP) as away:
            agree(one, two)
            away.settle()
            away.messages()
            admin.publish(topic, b"reloaded", qos=1)
            assert reader.texts(1) == [(topic, b"reloaded")]
            assert away.texts(1) == [(topic, b"reloaded")]
        command(admin, "RESET")
        agree(one, two)
        assert two.do(lambda: len(two.gateway.rules.engine.reservations)) == 0
        admin.publish(topic, b"reset", qos=1)
        assert reader.texts() == []


def test_what_another_gateway_tried_out_does_not_outlive_clear_and_reload(
    pair: tuple[GatewayThread, GatewayThread], topic: str
) -> None:
    one, two = pair

    def effective(gateway: GatewayThread) -> Any:
        return gateway.do(lambda: gateway.gateway.rules.engine.effective(topic))

    def try_out() -> None:
        key = Key("reservation", topic)
        tried = Document("reservation", topic, {"allow": ["tried"], "prohibit": []})
        two.do(lambda: two.gateway.definition_feed.pass_on(two.gateway.rules.try_out({key: tried})))
        assert effective(two) is not None

    with login(one, "admin") as admin:
        command(admin, "PERSIST")
        for word in ("CLEAR", "RELOAD"):
            try_out()
            command(admin, word)
            agree(one, two)
            assert effective(two) is None


def test_a_kill_leaves_what_was_before_or_what_is_after(
    broker: MosquittoServer, tmp_path: Path, common: dict[str, Any], topic: str
) -> None:
    """The gateway that carries a command out is killed; another one follows, clients come back."""
    choice = random.Random()
    victim = make_process(tmp_path / "one", broker.port, MANY, **common)
    with run_gateway(tmp_path / "two", broker.port, MANY, **common) as stays:
        with login(stays, "admin") as admin, login(stays, "reader") as reader:
            reader.subscribe(f"!AP/{topic}/a{{mine}}", qos=1)
            for count in range(40):
                admin.publish(f"!RESERVE/{topic}/{count}{{mine}}", qos=1)
            with login(stays, "away", **KEEP) as away:
                away.subscribe(f"!AP/{topic}/a{{mine}}", f"!AP/{topic}/b{{mine}}", qos=1)
            command(admin, "PERSIST")
            seen = set()
            for count in range(scaled(12)):
                victim.start()
                word = ("CLEAR", "RELOAD")[count % 2]
                with RawClient(victim.port) as doomed:
                    doomed.connect("doomed")
                    doomed.send(Publish.of(f"!PBAC/{word}", qos=1, packet_id=1))
                    if count % 4 < 2:
                        time.sleep(choice.random() * 0.1)
                        victim.kill()
                    acknowledged = is_acknowledged(doomed)
                    victim.kill()
                seen.add(check(stays, reader, admin, topic, word if acknowledged else None))
        assert seen == {"clear", "reload"}


def is_acknowledged(client: RawClient) -> bool:
    try:
        return bool(client.expect_answer(1).reason == 0)
    except (ClosedError, OSError):
        return False


def check(
    gateway: GatewayThread, reader: RawClient, admin: RawClient, topic: str, last: str | None
) -> str:
    """Check that store and gateway are wholly in one of two states; return in which."""
    with Database.open(gateway.config.store.connection_url()) as database:
        current = Definitions(database).snapshot()
        with database.read() as connection:
            did = read_log(connection).commands[-1].did
            mine = subscriptions_table.c.client == digest("away")
            rows = connection.execute(subscriptions_table.select().where(mine)).all()
        persisted = Sessions(database).load("away")
    assert last is None or did == last.lower()
    wait_until(lambda: gateway.do(lambda: gateway.gateway.rules.epoch) == current.epoch)
    agree(gateway)
    reserved = sum(key.kind == "reservation" for key in current.documents)
    live = sorted(it.filter for it in rows if it.number > 0)
    assert persisted is not None
    assert len(persisted.persisted) == 2
    if did == "clear":
        assert (reserved, live) == (0, [])
    else:
        assert (reserved, live) == (40, [f"{topic}/a", f"{topic}/b"])
    reader.settle()
    admin.publish(f"{topic}/a", b"x", qos=1)
    expected = [] if did == "clear" else [(f"{topic}/a", b"x")]
    assert reader.texts(len(expected)) == expected
    return "reload" if did == "persist" else did


def test_what_was_subscribed_behind_a_clear_is_not_kept(
    broker: MosquittoServer, tmp_path: Path, common: dict[str, Any], topic: str
) -> None:
    """A gateway that has not heard of CLEAR stores a subscription, and dies before it does."""
    with (
        run_gateway(tmp_path / "two", broker.port, MANY, **common) as two,
        run_gateway(tmp_path / "one", broker.port, MANY, **common) as one,
        login(one, "admin") as admin,
        login(two, "away", **KEEP) as away,
    ):
        # Updates reach this gateway no longer, as if its follower were slow.
        slow = two.gateway
        slow.definition_feed._take_set = lambda *_, **__: None  # type: ignore[method-assign]
        command(admin, "CLEAR")
        granted = away.subscribe(f"!AP/{topic}{{mine}}", f"{topic}/plain", qos=1)
        assert granted.reasons == (1, 1)
        stored = slow.sessions.load("away")
        assert stored is not None
        live = [it.filter for it in stored.subscriptions if it.number > 0]
        assert live == [f"{topic}/plain"]
        away.vanish()
        with login(one, "away", **KEEP) as back:
            agree(one)
            back.settle()
            for end in ("", "/plain"):
                admin.publish(f"{topic}{end}", b"x", qos=1)
            assert back.texts(1) == [(f"{topic}/plain", b"x")]
