"""Attacks on purposes and sessions: what a hostile client sends to be given what it must not.

Each test is an attempt; it passes where the gateway withstands it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.components import MosquittoServer
from penstock.gateway.authorization.rules import RESERVATION
from penstock.gateway.connection.subscription_lifecycle import broker_filter
from penstock.model.document import Document, Key
from penstock.mqtt import V3, Pubrel, RequestedSubscription, Will
from penstock.mqtt.properties import Properties
from tests.support.gateway.clients import Make, make_clients
from tests.support.gateway.fixtures import run_both_ways
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)
pytest_generate_tests = run_both_ways


@pytest.fixture(scope="module")
def strict_gateway(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    """Give a gateway that filters on subscribe, without publish lanes."""
    settings = {"lanes": 0, "filtering": {"mode": "subscribe"}}
    with run_gateway(tmp_path_factory.mktemp("fos"), broker.port, settings) as running:
        yield running


@pytest.fixture
def make_strict(strict_gateway: GatewayThread) -> Iterator[Make]:
    yield from make_clients(strict_gateway.port)


def reserve(admin: RawClient, filter_: str, purposes: str) -> None:
    assert not admin.publish(f"!RESERVE/{filter_}{purposes}", qos=1).reason


def ready(make: Make, topic: str, *purposes: str) -> dict[str, RawClient]:
    readers = {}
    for purpose in purposes:
        readers[purpose] = make()
        assert readers[purpose].subscribe(f"!AP/{topic}{{{purpose}}}", qos=1).reasons == (1,)
    return readers


# --- purposes that messages carry ---


def test_every_prohibition_of_a_will_counts(make: Make, topic: str) -> None:
    readers = ready(make, topic, "a", "b", "c")
    user = (("purpose-pip", "a"), ("purpose-pip", "b"))
    dying = make(will=Will(topic, b"will", qos=1, properties=Properties(user=user)))
    dying.vanish()
    assert readers["c"].texts(1) == [(topic, b"will")]
    assert readers["b"].texts() == []
    assert readers["a"].texts() == []


def test_properties_of_a_will_narrow_the_purposes_in_its_topic(make: Make, topic: str) -> None:
    readers = ready(make, topic, "a", "b")
    user = (("purpose-pip", "b"),)
    dying = make(will=Will(f"!AIP/{topic}{{a,b}}", b"w", qos=1, properties=Properties(user=user)))
    dying.vanish()
    assert readers["a"].texts(1) == [(topic, b"w")]
    assert readers["b"].texts() == []


def test_purposes_that_have_nothing_in_common_admit_nobody(make: Make, topic: str) -> None:
    readers = ready(make, topic, "a", "b", "d")
    user = (("purpose-aip", "b"), ("purpose-pip", "c"))
    make().publish(f"!AIP/{topic}{{a}}", b"x", qos=1, user=user)
    for name, reader in readers.items():
        assert reader.texts() == [], name


def test_forged_properties_of_the_gateway_are_neither_believed_nor_shown(
    make: Make, topic: str
) -> None:
    admin = make()
    reserve(admin, topic, "{a,b}")
    readers = ready(make, topic, "a", "b")
    forged = (("penstock-aip", "b"), ("penstock-pip", "a"), ("penstock-publisher", "root"))
    make().publish(f"!AIP/{topic}{{a}}", b"x", qos=1, user=(*forged, ("own", "kept")))
    (got,) = readers["a"].messages(1)
    assert got.properties.user == (("own", "kept"),)
    assert b"penstock" not in got.properties.raw
    assert readers["b"].texts() == []


def test_an_alias_keeps_the_purposes_of_the_topic_it_was_made_with(make: Make, topic: str) -> None:
    readers = ready(make, topic, "a", "b")
    writer = make()
    writer.publish(f"!AIP/{topic}{{a}}", b"1", qos=1, topic_alias=1)
    writer.publish("", b"2", qos=1, topic_alias=1)
    assert readers["a"].texts(2) == [(topic, b"1"), (topic, b"2")]
    assert readers["b"].texts() == []


def test_purposes_survive_being_retained(make: Make, topic: str) -> None:
    make().publish(f"!AIP/{topic}{{a}}", b"kept", qos=1, retain=True)
    readers = ready(make, topic, "a", "b")
    assert readers["a"].texts(1) == [(topic, b"kept")]
    assert readers["b"].texts() == []


def test_nobody_is_asked_to_answer_on_a_command(make: Make, topic: str) -> None:
    """Who answers requests would give the command in the asker's place."""
    reader, writer = make(), make()
    reader.subscribe(topic, qos=1)
    writer.publish(topic, b"q", qos=1, response_topic="!RESERVE/secret{}")
    for message in reader.messages():
        assert not (message.properties.response_topic or "").startswith("!")


def test_commands_by_alias_need_their_right_each_time(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with run_gateway(tmp_path, broker.port, {"open_mode": False}) as gateway:
        attacker = RawClient(gateway.port)
        attacker.connect("attacker")
        attacker.publish("harmless", qos=1, topic_alias=1)
        denied = attacker.publish("!RESERVE/a{x}", qos=1, topic_alias=1).reason
        again = attacker.publish("", qos=1, topic_alias=1).reason
        assert (denied, again) == (0x87, 0x87)
        attacker.close()


# --- topics ---


def test_topics_are_compared_as_bytes(make: Make, topic: str) -> None:
    """Letters that look alike are different topics: neither opens nor closes the other."""
    admin, reader = make(), make()
    composed, apart = f"{topic}/\u00e9", f"{topic}/e\u0301"
    reserve(admin, composed, "{x}")
    reader.subscribe(f"{topic}/#", qos=1)
    admin.publish(composed, b"closed", qos=1)
    admin.publish(apart, b"open", qos=1)
    assert reader.texts(1) == [(apart, b"open")]


def test_empty_levels_count(make: Make, topic: str) -> None:
    admin, reader = make(), make()
    reserve(admin, f"{topic}//PLUS", "{x}")
    reader.subscribe(f"{topic}/#", qos=1)
    for topic_, payload in ((f"{topic}//a", b"no"), (f"{topic}//", b"no"), (f"{topic}/", b"yes")):
        admin.publish(topic_, payload, qos=1)
    assert reader.texts(1) == [(f"{topic}/", b"yes")]


def test_braces_in_a_topic_reserve_that_topic(make: Make, topic: str) -> None:
    admin, reader = make(), make()
    reserve(admin, f"{topic}{{y}}", "{x}")
    reader.subscribe(f"{topic}{{y}}", topic, qos=1)
    admin.publish(f"{topic}{{y}}", b"no", qos=1)
    admin.publish(topic, b"yes", qos=1)
    assert reader.texts(1) == [(topic, b"yes")]


def test_only_the_compatible_one_of_two_overlapping_subscriptions(make: Make, topic: str) -> None:
    admin, reader = make(), make()
    reserve(admin, topic, "{a}")
    reader.subscribe(f"!AP/{topic}{{a}}", qos=1, subscription_identifiers=(7,))
    reader.subscribe(f"!AP/{topic}/HASH{{b}}", qos=1, subscription_identifiers=(8,))
    admin.publish(topic, b"x", qos=1)
    (got,) = reader.messages(1)
    assert got.properties.subscription_identifiers == (7,)


# --- shared subscriptions ---


def drain(*clients: RawClient) -> list[bytes]:
    return sorted(payload for client in clients for _, payload in client.texts(quiet=0.3))


def test_nobody_slips_into_a_group_of_another_purpose(make: Make, topic: str) -> None:
    """Messages that a group sends to somebody who may not have them are lost to it."""
    admin = make()
    reserve(admin, topic, "{billing}")
    member = make()
    assert member.subscribe(f"!AP/$share/g/{topic}{{billing}}", qos=1).reasons == (1,)
    thief = make()
    thief.subscribe(broker_filter(f"$share/g/{topic}", "billing"), qos=1)
    for number in range(6):
        admin.publish(topic, b"%d" % number, qos=1)
    assert drain(member) == [b"%d" % number for number in range(6)]
    assert drain(thief) == []


def leave_asleep(make: Make, topic: str, client: str, purpose: str) -> RawClient:
    """Leave a session with a shared subscription and come back when it is refused."""
    admin = make()
    one = make(client, clean=False, expiry=600)
    assert one.subscribe(f"!AP/$share/g/{topic}{{{purpose}}}", qos=1).reasons == (1,)
    one.close()
    reserve(admin, topic, "{other}")
    return make(client, clean=False, expiry=600)


def test_who_leaves_a_group_asleep_takes_no_messages_along(make_strict: Make, topic: str) -> None:
    one = leave_asleep(make_strict, topic, f"s-{topic[2:]}", "p")
    one.unsubscribe(f"$share/g/{topic}")
    admin, two = make_strict(), make_strict()
    reserve(admin, topic, "{p}")
    assert two.subscribe(f"!AP/$share/g/{topic}{{p}}", qos=1).reasons == (1,)
    for number in range(6):
        admin.publish(topic, b"%d" % number, qos=1)
    assert drain(two) == [b"%d" % number for number in range(6)]


def test_who_changes_purpose_asleep_leaves_the_old_group(make_strict: Make, topic: str) -> None:
    one = leave_asleep(make_strict, topic, f"s-{topic[2:]}", "p")
    assert one.subscribe(f"!AP/$share/g/{topic}{{other}}", qos=1).reasons == (1,)
    one.unsubscribe(f"$share/g/{topic}")
    admin, two = make_strict(), make_strict()
    reserve(admin, topic, "{p}")
    assert two.subscribe(f"!AP/$share/g/{topic}{{p}}", qos=1).reasons == (1,)
    for number in range(6):
        admin.publish(topic, b"%d" % number, qos=1)
    assert drain(two) == [b"%d" % number for number in range(6)]


def test_shared_filters_with_odd_inner_filters(make: Make, topic: str) -> None:
    """The broker and the gateway must read `$share` alike."""
    admin = make()
    reserve(admin, f"/{topic}/HASH", "{x}")
    for inner in (f"/{topic}/a", f"/{topic}/+", f"/{topic}//", f"/{topic}/#"):
        reader = make()
        reader.subscribe(f"$share/g-{len(inner)}/{inner}", qos=1)
        for last in ("a", "/", ""):
            admin.publish(f"/{topic}/{last}", b"no", qos=1)
        assert reader.texts() == [], inner


# --- sessions ---


def test_a_refused_subscription_ends_the_sleeping_one(make_strict: Make, topic: str) -> None:
    admin, name = make_strict(), f"s-{topic[2:]}"
    one = make_strict(name, clean=False, expiry=600)
    one.subscribe(f"!AP/{topic}{{p}}", qos=1)
    one.close()
    reserve(admin, topic, "{other}")
    one = make_strict(name, clean=False, expiry=600)
    assert one.subscribe(f"!AP/{topic}{{q}}", qos=1).reasons[0] >= 0x80
    one.close()
    reserve(admin, topic, "{p}")
    one = make_strict(name, clean=False, expiry=600)
    admin.publish(topic, b"ended", qos=1)
    assert one.texts() == []


def test_the_last_word_on_a_filter_counts_within_one_packet(make_strict: Make, topic: str) -> None:
    """A filter twice in a packet, granted first and refused then, has ended; a resume included."""
    admin, name = make_strict(), f"s-{topic[2:]}"
    reserve(admin, topic, "{p}")
    one = make_strict(name, clean=False, expiry=600)
    answer = one.subscribe(f"!AP/{topic}{{p}}", f"!AP/{topic}{{q}}", qos=1)
    assert answer.reasons[1] >= 0x80
    admin.publish(topic, b"x", qos=1)
    assert one.texts() == []
    one.close()
    one = make_strict(name, clean=False, expiry=600)
    admin.publish(topic, b"y", qos=1)
    assert one.texts() == []


def test_a_filter_twice_in_one_packet_of_a_kept_session(make: Make, topic: str) -> None:
    one = make(f"s-{topic[2:]}", clean=False, expiry=600)
    assert one.subscribe(topic, topic, qos=1).reasons == (1, 1)
    make().publish(topic, b"x", qos=1)
    assert one.texts(1) == [(topic, b"x")]


def test_a_pause_during_a_resume_is_remembered(
    strict_gateway: GatewayThread, make_strict: Make, topic: str
) -> None:
    """The broker was told to end it: whoever takes the session up must make it again."""
    admin, name = make_strict(), f"s-{topic[2:]}"
    one = make_strict(name, clean=False, expiry=600)
    one.subscribe(f"!AP/{topic}{{p}}", qos=1)
    reserve(admin, topic, "{other}")
    one.settle()
    gateway, key = strict_gateway.gateway, Key(RESERVATION, topic)
    closed = Document(RESERVATION, topic, {"allow": ["other"], "prohibit": []})

    async def flicker() -> None:
        gateway.definition_feed.pass_on(gateway.rules.try_out({key: None}))
        await asyncio.sleep(0)
        gateway.definition_feed.pass_on(gateway.rules.try_out({key: closed}))
        await asyncio.sleep(0.3)
        gateway.rules.settle([key])

    strict_gateway.call(flicker)
    one.close()
    reserve(admin, topic, "{p}")
    one = make_strict(name, clean=False, expiry=600)
    one.settle()
    admin.publish(topic, b"x", qos=1)
    assert one.texts(1) == [(topic, b"x")]


def test_a_stored_reservation_holds_although_the_follower_was_faster(
    strict_gateway: GatewayThread, make_strict: Make, topic: str
) -> None:
    """What was tried out must not outlive what is stored and acknowledged."""
    rules, key = strict_gateway.gateway.rules, Key(RESERVATION, topic)
    admin = make_strict()
    admin.publish("!PBAC/SET/auto_persist", b"false", qos=1)
    reserve(admin, topic, "{a}")
    admin.publish("!PBAC/SET/auto_persist", b"true", qos=1)
    reserve(admin, topic, "{b}")
    held = strict_gateway.do(lambda: rules.engine.reservations.get(topic))
    assert held is not None
    assert held.aip == {"b"}

    def follower_first() -> frozenset[str]:
        snapshot = rules.snapshot
        assert snapshot is not None
        strict_gateway.gateway.definition_feed.pass_on(
            rules.try_out({key: Document(RESERVATION, topic, {"allow": ["c"], "prohibit": []})})
        )
        # The steps of a command that stores {b} when the follower has brought it before.
        rules.settle([key])
        now = rules.engine.reservations.get(topic)
        assert now is not None
        return now.aip

    assert strict_gateway.do(follower_first) == {"b"}


def test_a_reservation_between_the_steps_of_qos_2(make: Make, topic: str) -> None:
    """What the client has half of is ended in order; what comes after is denied."""
    admin, reader = make(), make(answers=False)
    reader.subscribe(topic, qos=2)
    admin.publish(topic, b"half", qos=2)
    (first,) = reader.messages(1)
    reserve(admin, topic, "{x}")
    reader.send_bytes(b"\x50\x02" + first.packet_id.to_bytes(2))
    assert reader.expect(Pubrel).packet_id == first.packet_id
    reader.send_bytes(b"\x70\x02" + first.packet_id.to_bytes(2))
    admin.publish(topic, b"whole", qos=2)
    assert reader.texts() == []


def test_what_is_half_received_and_denied_then_is_released(make: Make, topic: str) -> None:
    """Else the next message of that packet identifier would pass for a copy of it."""
    admin, name = make(), f"s-{topic[2:]}"
    reader = make(name, clean=False, expiry=600, answers=False)
    reader.subscribe(topic, qos=2)
    admin.publish(topic, b"half", qos=2)
    (first,) = reader.messages(1)
    reader.vanish()
    reserve(admin, topic, "{x}")
    reader = make(name, clean=False, expiry=600, answers=False)
    assert reader.expect(Pubrel).packet_id == first.packet_id
    assert reader.texts() == []
    reader.send_bytes(b"\x70\x02" + first.packet_id.to_bytes(2))
    reserve(admin, topic, "{}")
    admin.publish(topic, b"whole", qos=2)
    assert reader.texts(1) == [(topic, b"whole")]


def test_unsubscribing_with_another_purpose_ends_the_subscription(make: Make, topic: str) -> None:
    reader, writer = make(), make()
    reader.subscribe(f"!AP/{topic}{{a}}", qos=1)
    assert reader.unsubscribe(f"!AP/{topic}{{b}}").reasons == (0,)
    writer.publish(topic, b"x", qos=1)
    assert reader.texts() == []


# --- messages that look like copies ---


def test_a_message_that_comes_another_way_is_no_copy(make: Make, topic: str) -> None:
    reader, writer = make(version=V3), make()
    reader.subscribe(topic, f"{topic}-other", qos=1)
    writer.publish(topic, b"on", qos=1)
    assert reader.texts(1) == [(topic, b"on")]
    reader.subscribe(f"{topic}/#", qos=1)
    reader.unsubscribe(topic)
    writer.publish(topic, b"on", qos=1)
    assert reader.texts() == [(topic, b"on")]


def test_copies_keep_the_highest_quality(make: Make, topic: str) -> None:
    reader, writer = make(version=V3), make()
    reader.subscribe(RequestedSubscription(topic, 0), RequestedSubscription(f"{topic}/#", 1))
    writer.publish(topic, b"on", qos=1)
    (got,) = reader.messages(1)
    assert got.qos == 1


# --- who somebody is ---


def test_nobody_takes_the_client_identifier_of_a_user(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    passwords = write_passwords(tmp_path / "passwords", {"alice": "secret"})
    settings = {"authentication": {"passwords": str(passwords), "anonymous": True}}
    with run_gateway(tmp_path / "g", broker.port, settings) as gateway:
        nobody = RawClient(gateway.port)
        taken = nobody.connect("alice:1").reason
        with RawClient(gateway.port) as alice:
            assert alice.connect("alice:1", username="alice", password=b"secret").reason == 0
        assert taken != 0
        nobody.close()
