from __future__ import annotations

from penstock.gateway.broker import (
    HEADROOM,
    NEVER_EXPIRES,
    Offer,
    client_connack,
    refusal,
    session_expiry,
    stamp,
    strip,
    upstream_connect,
)
from penstock.mqtt import V3, V5, Connack, Connect, Properties, ReasonCode
from penstock.mqtt.codes import PacketType
from penstock.mqtt.properties import encode_items

OFFER = Offer(
    packet=1000,
    receive_maximum=50,
    topic_aliases=8,
    keep_alive=60,
    broker_keep_alive=30,
    client_id_bytes=100,
    topic_bytes=70,
    topic_levels=9,
    session_expiry=300,
)
TOLD = (
    ("penstock-client-id-bytes", "100"),
    ("penstock-topic-bytes", "70"),
    ("penstock-topic-levels", "9"),
)


def ask(connect: Connect) -> Connect:
    return upstream_connect(connect, "id", OFFER, will=None, username=None, password=None)


def test_a_clean_session_of_version_3_ends_with_its_connection() -> None:
    assert session_expiry(Connect("x", V3, clean_start=True)) == 0
    assert session_expiry(Connect("x", V3, clean_start=False)) == NEVER_EXPIRES
    assert session_expiry(Connect("x", V5, properties=Properties(session_expiry=9))) == 9
    assert session_expiry(Connect("x", V5)) == 0


def test_the_broker_is_told_the_clients_wishes_within_our_limits() -> None:
    asked = Properties(
        session_expiry=300,
        receive_maximum=10,
        maximum_packet_size=100,
        topic_alias_maximum=5,
        user=(("a", "b"), ("penstock-publisher", "liar"), ("purpose-ap", "p")),
    )
    made = ask(Connect("x", V5, clean_start=False, keep_alive=99, properties=asked))
    assert (made.version, made.clean_start, made.keep_alive) == (V5, False, 30)
    assert made.properties == Properties(
        session_expiry=300,
        receive_maximum=10,
        maximum_packet_size=1000 + HEADROOM + 100,
        user=(("a", "b"),),
    )
    assert ask(Connect("x", V3)).properties.receive_maximum == 50
    assert ask(Connect("x", V5)).properties.receive_maximum == 50


def test_the_client_is_told_the_smaller_limits() -> None:
    answer = Connack(
        session_present=True,
        properties=Properties(receive_maximum=20, maximum_qos=1, user=(("penstock-x", "y"),)),
    )
    asked = Properties(session_expiry=300)
    told = client_connack(answer, Connect("x", keep_alive=60, properties=asked), "x", None, OFFER)
    assert told.session_present
    assert told.properties == Properties(
        receive_maximum=20,
        maximum_qos=1,
        maximum_packet_size=1000,
        topic_alias_maximum=8,
        user=TOLD,
    )
    told = client_connack(Connack(), Connect("x", keep_alive=0), "made", "made", OFFER)
    assert told.properties.server_keep_alive == 60
    assert told.properties.assigned_client_id == "made"


def test_the_client_is_told_for_how_long_its_session_is_kept() -> None:
    for asked, by_broker, told in (
        (900, None, 300),
        (300, None, None),
        (300, 20, 20),
        (9, 900, 300),
    ):
        connect = Connect("x", properties=Properties(session_expiry=asked))
        answer = Connack(properties=Properties(session_expiry=by_broker))
        got = client_connack(answer, connect, "x", None, OFFER)
        assert got.properties.session_expiry == told, (asked, by_broker)


def test_room_for_our_own_properties_is_kept_free() -> None:
    answer = Connack(properties=Properties(maximum_packet_size=HEADROOM + 10))
    for client_id, left in (("x", 9), ("x" * 8, 2), ("x" * 30, 1)):
        told = client_connack(answer, Connect(client_id), client_id, None, OFFER)
        assert told.properties.maximum_packet_size == left


def test_mqtt_31_is_not_told_of_a_session() -> None:
    old = Connect("x", V3, clean_start=False, is_31=True)
    assert not client_connack(
        Connack(0, session_present=True), old, "x", None, OFFER
    ).session_present


def test_refusals_have_texts_for_those_who_want_them() -> None:
    reason = ReasonCode.NOT_AUTHORIZED
    assert refusal(reason, "why", Connect("x")).properties.reason_string == "why"
    silent = Connect("x", properties=Properties(request_problem_information=0))
    assert refusal(reason, "why", silent) == Connack(int(reason))


def test_stamps_are_user_properties() -> None:
    pairs = (("penstock-publisher", "alice"), ("penstock-epoch", "7"))
    assert stamp("alice", 7) == encode_items(Properties(user=pairs), PacketType.PUBLISH)
    assert strip((*pairs, ("a", "b"))) == (("a", "b"),)
