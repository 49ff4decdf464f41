"""Purposes on the wire: commands, modes, denied deliveries, and what clients are told."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock.mqtt import V3, V5, ReasonCode, RequestedSubscription, Will
from tests.support.gateway.clients import VERSIONS, Make, make_clients
from tests.support.gateway.fixtures import BROKERS, AnyBroker
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.pair import wait_until
from tests.support.gateway.raw import RawClient

pytestmark = BROKERS
pytest_plugins = ("tests.support.gateway.fixtures",)
MODES = ("publish", "subscribe", "hybrid")


@pytest.fixture(scope="module", params=MODES)
def gateway(
    request: pytest.FixtureRequest,
    broker: AnyBroker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GatewayThread]:
    settings = {"filtering": {"mode": request.param}}
    with run_gateway(tmp_path_factory.mktemp("gateway"), broker.port, settings) as running:
        yield running


@pytest.fixture
def make(gateway: GatewayThread) -> Iterator[Make]:
    yield from make_clients(gateway.port)


def mode_of(gateway: GatewayThread) -> str:
    return str(gateway.config.gateway.filtering.mode)


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_only_compatible_purposes_receive(make: Make, topic: str, version: int, qos: int) -> None:
    admin = make()
    assert not admin.publish(f"!RESERVE/{topic}/HASH{{billing|billing/ads}}", qos=1).reason
    good = make(version=version)
    assert good.subscribe(f"!AP/{topic}/HASH{{billing/invoices}}").reasons == (2,)
    others = [make(version=version) for _ in range(3)]
    others[0].subscribe(f"!AP/{topic}/HASH{{billing/ads}}")
    others[1].subscribe(f"!AP/{topic}/HASH{{marketing}}")
    others[2].subscribe(f"{topic}/#")
    writer = make(version=version)
    for number in range(5):
        writer.publish(f"{topic}/{number}", b"%d" % number, qos=qos)
    assert good.texts(5) == [(f"{topic}/{number}", b"%d" % number) for number in range(5)]
    for other in others:
        assert other.texts() == []


def test_a_denied_delivery_is_acknowledged_to_the_broker(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    """More than the receive maximum is denied; had they not been acknowledged, none came after."""
    reader, admin = make(receive_maximum=5), make()
    reader.subscribe(f"{topic}/a", f"{topic}/b", qos=2)
    admin.publish(f"!RESERVE/{topic}/a{{x}}", qos=1)
    for qos in (1, 2):
        for _ in range(20):
            admin.publish(f"{topic}/a", b"denied", qos=qos)
        admin.publish(f"{topic}/b", b"allowed", qos=qos)
    assert reader.texts(2) == [(f"{topic}/b", b"allowed")] * 2


def test_a_reservation_holds_from_its_acknowledgement(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    """What was retained, and what is in flight or queued, is judged by what holds now."""
    reader, admin = make(answers=False, receive_maximum=1), make()
    reader.subscribe(f"!AP/{topic}/HASH{{billing}}", qos=1)
    admin.publish(f"{topic}/kept", b"kept", qos=1, retain=True)
    (first,) = reader.messages(1)
    for number in range(5):
        admin.publish(f"{topic}/n", b"%d" % number, qos=1)
    assert reader.messages() == []  # the broker queues them: one is unacknowledged
    assert not admin.publish(f"!RESERVE/{topic}/HASH{{marketing}}", qos=1).reason
    reader.answers = True
    reader.send_bytes(b"\x40\x02" + first.packet_id.to_bytes(2))
    assert reader.texts() == []
    late = make()
    late.subscribe(f"!AP/{topic}/HASH{{billing}}")
    assert late.texts() == []
    allowed = make()
    allowed.subscribe(f"!AP/{topic}/HASH{{marketing}}")
    assert allowed.texts(1) == [(f"{topic}/kept", b"kept")]


def test_reserving_again_overwrites_and_braces_remove(make: Make, topic: str) -> None:
    reader, admin = make(), make()

    def delivered() -> bool:
        admin.publish(topic, b"x", qos=1)
        reader.subscribe(f"!AP/{topic}{{p/q}}")
        admin.publish(topic, b"y", qos=1)
        reader.settle()
        return (topic, b"y") in reader.texts()

    steps = [("{p}", True), ("{o}", False), ("{p,o}", True), ("{p|p/q}", False), ("{|}", False)]
    steps += [("{}", True), ("{|o}", False), ("{}", True)]
    for purposes, expected in steps:
        assert not admin.publish(f"!RESERVE/{topic}{purposes}", qos=1).reason, purposes
        assert delivered() == expected, purposes


def test_prohibitions_add_to_what_others_allow(make: Make, topic: str) -> None:
    reader, admin = make(), make()
    admin.publish(f"!RESERVE/{topic}/HASH{{p}}", qos=1)
    admin.publish(f"!RESERVE/{topic}/PLUS/c{{|p/q}}", qos=1)
    reader.subscribe(f"!AP/{topic}/a/c{{p/q}}", f"!AP/{topic}/a/d{{p/q}}")
    admin.publish(f"{topic}/a/c", b"no", qos=1)
    admin.publish(f"{topic}/a/d", b"yes", qos=1)
    assert reader.texts(1) == [(f"{topic}/a/d", b"yes")]


def test_partial_wildcard_subscriptions(gateway: GatewayThread, make: Make, topic: str) -> None:
    """A filter of which only a part is allowed: all or nothing on subscribe, else the part."""
    reader, admin = make(), make()
    admin.publish(f"!RESERVE/{topic}/secret/HASH{{other}}", qos=1)
    answer = reader.subscribe(f"!AP/{topic}/HASH{{mine}}", qos=1)
    admin.publish(f"{topic}/open", b"open", qos=1)
    admin.publish(f"{topic}/secret/x", b"secret", qos=1)
    if mode_of(gateway) == "subscribe":
        assert answer.reasons == (ReasonCode.NOT_AUTHORIZED,)
        assert reader.texts() == []
    else:
        assert answer.reasons == (1,)
        assert reader.texts(1) == [(f"{topic}/open", b"open")]


@VERSIONS
def test_a_hopeless_subscription_is_refused_where_the_mode_looks(
    gateway: GatewayThread, make: Make, topic: str, version: int
) -> None:
    reader, admin = make(version=version), make()
    admin.publish(f"!RESERVE/{topic}/HASH{{other}}", qos=1)
    answer = reader.subscribe(f"!AP/{topic}/HASH{{mine}}", f"{topic}-free", qos=1)
    refused = ReasonCode.NOT_AUTHORIZED if version == V5 else 0x80
    expected = 1 if mode_of(gateway) == "publish" else refused
    assert answer.reasons == (expected, 1)
    if version == V5 and expected != 1:
        assert "purposes" in (answer.properties.reason_string or "") or topic in str(
            answer.properties.reason_string
        )


def test_mixed_subscribe_keeps_the_order(gateway: GatewayThread, make: Make, topic: str) -> None:
    reader, admin = make(), make()
    admin.publish(f"!RESERVE/{topic}/no{{other}}", qos=1)
    answer = reader.subscribe(
        RequestedSubscription(f"{topic}/a", 0),
        RequestedSubscription(f"!AP/{topic}/no{{mine}}", 1),
        RequestedSubscription("!AP/broken{", 1),
        RequestedSubscription(f"{topic}/b/#", 2),
        RequestedSubscription(f"{topic}/#/b", 2),
    )
    denied = 1 if mode_of(gateway) == "publish" else 0x87
    assert answer.reasons == (0, denied, 0x8F, 2, 0x8F)
    for end in ("a", "no", "b/c"):
        admin.publish(f"{topic}/{end}", end.encode(), qos=2)
    assert [it.payload for it in reader.messages(2)] == [b"a", b"b/c"]


def test_a_refused_resubscription_ends_the_old_one(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    reader, admin = make(), make()
    admin.publish(f"!RESERVE/{topic}{{good}}", qos=1)
    assert reader.subscribe(f"!AP/{topic}{{good}}", qos=1).reasons == (1,)
    answer = reader.subscribe(f"!AP/{topic}{{bad}}", qos=1)
    assert answer.reasons == ((1,) if mode_of(gateway) == "publish" else (0x87,))
    admin.publish(topic, b"x", qos=1)
    assert reader.texts() == []


def test_subscriptions_are_paused_and_resumed_with_their_qos(make: Make, topic: str) -> None:
    reader, admin = make(), make()
    admin.publish(f"{topic}/a", b"retained", qos=1, retain=True)
    reader.subscribe(f"!AP/{topic}/a{{mine}}", qos=2)
    assert len(reader.messages(1)) == 1
    admin.publish(f"!RESERVE/{topic}/a{{other}}", qos=1)
    admin.publish(f"{topic}/a", b"paused", qos=2)
    reader.settle()
    assert reader.texts() == []
    admin.publish(f"!RESERVE/{topic}/a{{}}", qos=1)

    def resumed() -> bool:
        admin.publish(f"{topic}/a", b"again", qos=2)
        found = {(it.payload, it.qos) for it in reader.messages()}
        assert found <= {(b"again", 2)}
        return bool(found)

    wait_until(resumed)


def test_unsubscribing_with_the_purpose(make: Make, topic: str) -> None:
    reader, admin = make(), make()
    reader.subscribe(f"!AP/{topic}{{mine}}")
    assert reader.unsubscribe(f"!AP/{topic}{{mine}}", "!AP/broken").reasons == (0, 0x8F)
    admin.publish(topic, b"x", qos=1)
    assert reader.texts() == []


def test_a_presubscription_gives_plain_clients_a_purpose(make: Make, topic: str) -> None:
    name = f"plain-{topic.replace('/', '-')}"
    admin = make()
    admin.publish(f"!RESERVE/{topic}/HASH{{billing}}", qos=1)
    assert not admin.publish(f"!PBAC/PRESUB/{name}/{topic}/HASH{{billing}}", qos=1).reason
    plain, stranger = make(name, version=V3), make(version=V3)
    assert plain.subscribe(f"{topic}/#", qos=1).reasons == (1,)
    stranger.subscribe(f"{topic}/#", qos=1)
    admin.publish(f"{topic}/x", b"x", qos=1)
    assert plain.texts(1) == [(f"{topic}/x", b"x")]
    assert stranger.texts() == []
    admin.publish(f"!PBAC/PRESUB/{name}/{topic}/HASH{{}}", qos=1)
    plain.subscribe(f"{topic}/#", qos=1)
    admin.publish(f"{topic}/x", b"y", qos=1)
    assert plain.texts() == []


@VERSIONS
def test_purposes_of_one_message(make: Make, topic: str, version: int) -> None:
    writer = make(version=version)
    admin = make()
    admin.publish(f"!RESERVE/{topic}{{a,b}}", qos=1)
    readers = {purpose: make() for purpose in ("a", "b")}
    for purpose, reader in readers.items():
        reader.subscribe(f"!AP/{topic}{{{purpose}}}")
    writer.publish(f"!AIP/{topic}{{a}}", b"for a", qos=1)
    writer.publish(f"!AIP/{topic}{{c}}", b"for c", qos=1)
    writer.publish(topic, b"for both", qos=1)
    assert readers["a"].texts(2) == [(topic, b"for a"), (topic, b"for both")]
    assert readers["b"].texts(1) == [(topic, b"for both")]


def test_purposes_of_a_message_stay_with_it_when_it_is_retained(make: Make, topic: str) -> None:
    make().publish(f"!AIP/{topic}{{a}}", b"kept", qos=1, retain=True)
    one, other = make(), make()
    one.subscribe(f"!AP/{topic}{{a/b}}")
    other.subscribe(f"!AP/{topic}{{b}}")
    assert one.texts(1) == [(topic, b"kept")]
    assert other.texts() == []


def test_user_properties_of_version_5_say_the_same(make: Make, topic: str) -> None:
    writer, reader, other = make(), make(), make()
    assert reader.subscribe(topic, user=(("purpose-ap", "a"),)).reasons == (2,)
    other.subscribe(topic, user=(("purpose-ap", "b"),))
    writer.publish(topic, b"x", qos=1, user=(("purpose-aip", "a,c"), ("purpose-pip", "c/d")))
    (got,) = reader.messages(1)
    assert got.payload == b"x"
    assert got.properties.raw == b""
    assert other.texts() == []
    refused = writer.publish(topic, b"x", qos=1, user=(("purpose-aip", "a//b"),))
    assert refused.reason == ReasonCode.TOPIC_NAME_INVALID
    assert reader.subscribe(topic, user=(("purpose-ap", "a"), ("purpose-ap", "b"))).reasons == (
        0x8F,
    )


def test_shared_subscriptions_have_one_purpose_per_group(make: Make, topic: str) -> None:
    admin = make()
    admin.publish(f"!RESERVE/{topic}{{a}}", qos=1)
    members = [make(), make()]
    for member in members:
        assert member.subscribe(f"!AP/$share/team/{topic}{{a}}", qos=1).reasons == (1,)
    assert make().subscribe(f"!AP/$share/team/{topic}{{b}}", qos=1).reasons == (0x87,)
    for number in range(10):
        admin.publish(topic, b"%d" % number, qos=1)
    got = [text for member in members for text in member.texts()]
    assert sorted(got) == sorted((topic, b"%d" % number) for number in range(10))
    assert members[0].unsubscribe(f"!AP/$share/team/{topic}{{a}}").reasons == (0,)


@pytest.mark.parametrize("qos", [1, 2])
def test_malformed_commands_are_told_to_version_5(make: Make, topic: str, qos: int) -> None:
    client = make()
    for wrong in (
        "!RESERVE/x",
        "!RESERVE/x{a|b|c}",
        "!RESERVE/x/HASH/y{a}",
        "!NOSUCH/x{a}",
        "!",
        "!PBAC/SET/nothing",
        "!PBAC/PRESUB/client{a}",
        "!AIP/!RESERVE/x{a}{b}",
    ):
        answer = client.publish(wrong, b"maybe", qos=qos)
        assert answer.reason == ReasonCode.TOPIC_NAME_INVALID, wrong
        assert answer.properties.reason_string, wrong
    assert client.publish(topic, b"still open", qos=qos).reason in {0, 0x10}


@pytest.mark.parametrize("qos", [1, 2])
def test_malformed_commands_are_acknowledged_to_version_3_and_reach_nobody(
    broker: AnyBroker, make: Make, topic: str, qos: int
) -> None:
    client = make(version=V3)
    with RawClient(broker.port) as behind:
        behind.connect(f"behind-{topic}")
        behind.subscribe("#", qos=0)
        behind.messages()
        assert client.publish("!NOSUCH/x", b"lost", qos=qos).reason == 0
        client.publish(topic, b"end", qos=1)
        assert [it.topic for it in behind.messages(1)] == [topic]


def test_commands_are_never_routed(broker: AnyBroker, make: Make, topic: str) -> None:
    with RawClient(broker.port) as behind:
        behind.connect(f"behind-{topic}")
        behind.subscribe("#", "!RESERVE/#", "!PBAC/#", "!AIP/#", qos=0)
        behind.messages()
        client = make()
        client.publish(f"!RESERVE/{topic}{{a}}", b"", qos=0)
        client.publish("!PBAC/TREE", b"", qos=2)
        client.publish(f"!AIP/{topic}{{a}}", b"x", qos=1)
        got = {it.topic for it in behind.messages(1)}
    assert got == {topic}


def test_questions_are_answered_to_the_asker(make: Make, topic: str) -> None:
    admin = make()
    admin.publish(f"!RESERVE/{topic}/HASH{{a|b}}", qos=1)
    admin.publish(f"!RESERVE/{topic}/x/y{{c}}", qos=1)
    admin.publish(f"!PBAC/CRES/{topic}/x/y", qos=1)
    (answer,) = admin.messages(1)
    assert json.loads(answer.payload) == {
        "topic": f"{topic}/x/y",
        "purposes": {"allow": ["a", "c"], "prohibit": ["b"]},
    }
    admin.publish(
        f"!PBAC/ARES/{topic}/x/HASH", qos=1, response_topic="answers", correlation_data=b"7"
    )
    (answer,) = admin.messages(1)
    assert (answer.topic, answer.properties.correlation_data) == ("answers", b"7")
    assert set(json.loads(answer.payload)["reservations"]) == {f"{topic}/#", f"{topic}/x/y"}
    admin.publish("!PBAC/TREE", qos=1)
    (answer,) = admin.messages(1)
    assert topic.split("/")[1] in answer.payload.decode()


def test_a_will_is_judged_like_a_message(gateway: GatewayThread, make: Make, topic: str) -> None:
    reader, admin = make(), make()
    reader.subscribe(f"!AP/{topic}{{mine}}", qos=1)
    lost = make(will=Will(topic, b"will", 1))
    admin.publish(f"!RESERVE/{topic}{{other}}", qos=1)
    lost.vanish()
    assert reader.texts(quiet=0.4) == []
    for version in (V3, V5):
        with RawClient(gateway.port, version=version) as client:
            refused = client.connect("w", will=Will("!RESERVE/x{a}", b""))
            assert refused.reason == ReasonCode.NOT_AUTHORIZED


def test_a_will_can_carry_purposes(make: Make, topic: str) -> None:
    readers = {purpose: make() for purpose in ("a", "b")}
    for purpose, reader in readers.items():
        reader.subscribe(f"!AP/{topic}{{{purpose}}}", qos=1)
    make(version=V3, will=Will(f"!AIP/{topic}{{a}}", b"will", 1)).vanish()
    assert readers["a"].texts(1) == [(topic, b"will")]
    assert readers["b"].texts() == []


def test_a_resumed_session_keeps_its_purposes(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    admin = make()
    admin.publish(f"!RESERVE/{topic}/a{{mine}}", qos=1)
    first = make(f"resumes-{topic}", clean=False, expiry=300)
    first.subscribe(f"!AP/{topic}/a{{mine}}", f"!AP/{topic}/b{{mine}}", qos=1)
    first.close()
    admin.publish(f"!RESERVE/{topic}/b{{other}}", qos=1)
    admin.publish(f"{topic}/a", b"queued a", qos=1)
    admin.publish(f"{topic}/b", b"queued b", qos=1)
    second = make(f"resumes-{topic}", clean=False, expiry=300)
    assert second.texts(1) == [(f"{topic}/a", b"queued a")]
    admin.publish(f"!RESERVE/{topic}/b{{mine}}", qos=1)

    def resumed() -> bool:
        # A broker may answer what comes later before a subscription that resumes holds.
        admin.publish(f"{topic}/b", b"allowed again", qos=1)
        found = second.texts()
        assert set(found) <= {(f"{topic}/b", b"allowed again")}
        return bool(found)

    wait_until(resumed)


def test_a_takeover_keeps_the_purposes(make: Make, topic: str) -> None:
    admin = make()
    admin.publish(f"!RESERVE/{topic}{{mine}}", qos=1)
    first = make(f"takes-{topic}", clean=False, expiry=300)
    first.subscribe(f"!AP/{topic}{{mine}}", qos=1)
    second = make(f"takes-{topic}", clean=False, expiry=300)
    admin.publish(topic, b"x", qos=1)
    assert second.texts(1) == [(topic, b"x")]
    assert first.texts() == []


def test_a_presubscription_counts_from_the_next_subscribe_on(make: Make, topic: str) -> None:
    name = f"plain-{topic.replace('/', '-')}"
    admin, plain = make(), make(name, version=V3)
    plain.subscribe(topic, qos=1)
    admin.publish(f"!RESERVE/{topic}{{billing}}", qos=1)
    assert not admin.publish(f"!PBAC/PRESUB/{name}/{topic}{{billing}}", qos=1).reason
    admin.publish(topic, b"before", qos=1)
    assert plain.texts() == []
    assert plain.subscribe(topic, qos=1).reasons == (1,)
    admin.publish(topic, b"after", qos=1)
    assert plain.texts(1) == [(topic, b"after")]
