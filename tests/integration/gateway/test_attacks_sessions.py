"""Attacks on sessions: client identifiers of others, wills, what is left behind or asleep."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.components import MosquittoServer
from penstock.model.document import Document, Key
from penstock.mqtt import (
    Connack,
    Connect,
    Disconnect,
    RequestedSubscription,
    Subscribe,
    Unsubscribe,
    Will,
)
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock.store.sessions import StoredSubscription
from tests.support.gateway.clients import Make, make_clients
from tests.support.gateway.fixtures import run_both_ways
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)
pytest_generate_tests = run_both_ways

CLIENT_IDENTIFIER_NOT_VALID = 0x85
NOT_AUTHORIZED = 0x87
TOPIC_NAME_INVALID = 0x90
RECEIVE_MAXIMUM_EXCEEDED = 0x93
QUOTA_EXCEEDED = 0x97


@pytest.fixture
def closed(broker: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    """Give a gateway whose two users share client identifiers, and that knows anonymous ones."""
    users = {"alice": "a", "bob": "b"}
    patterns = dict.fromkeys(users, "shared-*")
    passwords = write_passwords(tmp_path / "passwords", users, patterns)
    settings = {"authentication": {"passwords": str(passwords), "anonymous": True}}
    with run_gateway(tmp_path / "g", broker.port, settings) as running:
        yield running


# --- client identifiers ---


def test_of_two_users_that_come_at_once_one_has_the_identifier(closed: GatewayThread) -> None:
    """Both find it free while the store is slow; the second must not end the first."""

    async def keep_busy() -> None:
        for _ in range(8):
            closed.gateway.background.start(
                closed.gateway.background.run_in_thread(time.sleep, 0.2)
            )

    closed.call(keep_busy)
    clients = [RawClient(closed.port), RawClient(closed.port)]
    for client, name in zip(clients, ("alice", "bob"), strict=True):
        client.send(Connect("shared-1", username=name, password=name[:1].encode()))
    reasons = [client.expect(Connack).reason for client in clients]
    assert sorted(reasons) == [0, CLIENT_IDENTIFIER_NOT_VALID]
    clients[reasons.index(0)].publish("a", b"still here", qos=1)
    for client in clients:
        client.close()


def test_a_user_that_was_added_is_safe_from_nobody_at_once(
    closed: GatewayThread, tmp_path: Path
) -> None:
    (tmp_path / "passwords").unlink()
    write_passwords(tmp_path / "passwords", {"carol": "c"}, {"carol": "car-*"})
    for taken in ("carol", "carol:1", "car-1"):
        with RawClient(closed.port) as nobody:
            assert nobody.connect(taken).reason == CLIENT_IDENTIFIER_NOT_VALID, taken
    with RawClient(closed.port) as nobody:
        assert nobody.connect("alice").reason == 0


# --- wills ---


@pytest.mark.parametrize("topic", ["x" * 5_000, "/".join("x" * 201)], ids=["long", "deep"])
@pytest.mark.parametrize("form", ["{}", "!AIP/{}{{a}}"], ids=["plain", "with purposes"])
def test_the_topic_of_a_will_is_limited(gateway: GatewayThread, topic: str, form: str) -> None:
    with RawClient(gateway.port) as client:
        refused = client.connect("dying", will=Will(form.format(topic), b""))
        assert refused.reason == TOPIC_NAME_INVALID


# --- what is left behind ---


def test_a_clean_connection_leaves_nothing_of_an_earlier_session(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    name, sessions = f"s-{topic[2:]}", gateway.gateway.sessions
    make(name, clean=False, expiry=600).subscribe(topic, qos=1)
    owner = sessions.owner(name)
    assert owner is not None
    assert owner.principal == "anonymous"
    make(name).close()
    assert sessions.owner(name) is None


@pytest.mark.parametrize("kind", ["SUBSCRIBE", "UNSUBSCRIBE"])
def test_a_packet_of_very_many_filters_is_refused(make: Make, kind: str) -> None:
    client = make()
    filters = tuple(f"many/{number}" for number in range(1_001))
    if kind == "SUBSCRIBE":
        client.send(Subscribe(1, tuple(RequestedSubscription(it, 0) for it in filters)))
    else:
        client.send(Unsubscribe(1, filters))
    assert client.expect(Disconnect).reason == QUOTA_EXCEEDED
    client.wait_closed()


def test_a_client_that_uses_up_all_packet_identifiers_stops_nobody(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    greedy, other = make(f"s-{topic[2:]}"), make()
    client = gateway.gateway.clients[f"s-{topic[2:]}"]
    greedy.subscribe(f"{topic}/other")  # from now on it has a connection of its own
    gateway.do(lambda: client.unacked.update(range(1, 65_536)))
    greedy.send(Subscribe(1, (RequestedSubscription(topic, 0),)))
    assert greedy.expect(Disconnect).reason == RECEIVE_MAXIMUM_EXCEEDED
    other.publish(topic, b"still here", qos=1)


def test_the_last_word_on_a_filter_counts_in_whatever_order(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    """A purpose that is named before and after another one is the last."""
    client = make(f"s-{topic[2:]}")
    words = [f"!AP/{topic}{{{it}}}" for it in ("p", "q", "p")]
    assert client.subscribe(*words, qos=1).reasons == (1, 1, 1)
    (held,) = gateway.gateway.clients[f"s-{topic[2:]}"].session.by_number.values()
    assert held.ap == "p"


# --- what sleeps ---


def test_only_what_a_change_concerns_is_tried_again(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    settings = {"filtering": {"mode": "subscribe"}}
    with run_gateway(tmp_path, broker.port, settings) as running:
        makes = make_clients(running.port)
        make = next(makes)
        admin, sleeper = make(), make("sleeper", clean=False, expiry=600)
        sleeper.subscribe("!AP/near/a{p}", "!AP/$share/g/far/+{p}", qos=1)
        sleeper.close()
        for filter_ in ("near/HASH", "far/HASH"):
            admin.publish(f"!RESERVE/{filter_}{{other}}", qos=1)
        make("sleeper", clean=False, expiry=600)
        session = running.gateway.clients["sleeper"].session
        assert set(session.dormant) == {"near/a", "$share/g/far/+"}
        # One that would wake up if it were tried again.
        free = StoredSubscription("free/a", 1_000, None, 1, 0)
        running.do(lambda: session.dormant.update({free.filter: free}))
        admin.publish("!RESERVE/near/PLUS{another}", qos=1)
        admin.publish("!PBAC/PRESUB/somebody/free/a{p}", qos=1)
        assert set(session.dormant) == {"near/a", "$share/g/far/+", "free/a"}
        admin.publish("!RESERVE/far/HASH{p}", qos=1)
        assert set(session.dormant) == {"near/a", "free/a"}
        admin.publish("!PBAC/SET/auto_persist", b"false", qos=1)  # settings concern all
        assert set(session.dormant) == {"near/a"}
        for filter_ in ("near/HASH", "near/PLUS"):
            admin.publish(f"!RESERVE/{filter_}{{}}", qos=1)
        assert session.dormant == {}  # what is only tried out here counts, too
        next(makes, None)


# --- purposes that are not declared ---


def define(running: GatewayThread, *names: str, delete: bool = False) -> None:
    with Database.open(running.config.store.connection_url()) as database:
        definitions = CheckedDefinitions(Definitions(database))
        if delete:
            change = definitions.delete([Key("purpose", it) for it in names], actor="test")
        else:
            documents = [Document("purpose", it, {}) for it in names]
            change = definitions.apply(documents, actor="test", reason="")
    for _ in range(200):
        if running.gateway.rules.epoch >= change.after.epoch:
            return
        time.sleep(0.02)
    raise AssertionError("the gateway did not take the change over")


def test_once_purposes_are_declared_others_are_refused(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with run_gateway(tmp_path, broker.port) as running:
        makes = make_clients(running.port)
        make = next(makes)
        early = make("early")
        assert early.subscribe("!AP/t{biling}", qos=1).reasons == (1,)
        admin = make()
        admin.publish("!PBAC/SET/auto_persist", b"false", qos=1)  # only tried out, so not checked
        assert admin.publish("!PBAC/PRESUB/late/u{biling}", qos=1).reason == 0
        define(running, "billing")
        late = make("late")
        answer = late.subscribe("!AP/t{billing}", "!AP/t2{biling}", "u", "plain", qos=1)
        assert answer.reasons == (1, NOT_AUTHORIZED, NOT_AUTHORIZED, 1)
        assert "did you mean 'billing'?" in (answer.properties.reason_string or "")
        # What was never asked again rests; what is refused again has ended.
        admin.publish("t", b"1", qos=1)
        assert late.texts(1) == [("t", b"1")]
        assert early.texts() == []
        assert early.subscribe("!AP/t{biling}", qos=1).reasons == (NOT_AUTHORIZED,)
        admin.publish("t", b"2", qos=1)
        assert early.texts() == []
        define(running, "billing", delete=True)
        assert early.subscribe("!AP/t{biling}", qos=1).reasons == (1,)
        next(makes, None)
