"""Two brokers that deliver differently: what the rules say holds before each.

With overlapping subscriptions Mosquitto sends a copy for each, HiveMQ one copy that names all
of them (MQTT5 3.3.4). `tests.support.gateway.hivemq` lists what else differs. The modules
test_relay, test_purposes and test_publisher run before both brokers, too.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.mqtt import V3, Will
from tests.support.gateway.clients import VERSIONS, Make
from tests.support.gateway.fixtures import BROKERS, AnyBroker, run_both_ways
from tests.support.gateway.harness import GatewayThread
from tests.support.gateway.pair import wait_until
from tests.support.gateway.raw import RawClient

pytestmark = BROKERS
pytest_plugins = ("tests.support.gateway.fixtures",)
pytest_generate_tests = run_both_ways

Named = tuple[int, ...]


def subscribe(client: RawClient, *purposed: tuple[str, int]) -> None:
    for filter_, identifier in purposed:
        client.subscribe(filter_, qos=2, subscription_identifiers=(identifier,))


def names(client: RawClient, count: int) -> list[Named]:
    """Return the identifiers of each copy that arrives."""
    return sorted(it.properties.subscription_identifiers for it in client.messages(count))


def copies(broker: AnyBroker, *identifiers: int) -> list[Named]:
    """Return the copies that a broker sends for overlapping subscriptions."""
    if isinstance(broker, MosquittoServer):
        return sorted((it,) for it in identifiers)
    return [tuple(sorted(identifiers))]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_overlapping_subscriptions_for_different_purposes(
    broker: AnyBroker, make: Make, topic: str, qos: int
) -> None:
    """Only those that may have it are named, however many copies the broker makes of it."""
    reader, denied, writer = make(), make(), make()
    writer.publish(f"!RESERVE/{topic}/HASH{{billing|billing/ads}}", qos=1)
    subscribe(
        reader,
        (f"!AP/{topic}/HASH{{billing}}", 1),
        (f"!AP/{topic}/PLUS{{billing/ads}}", 2),
        (f"!AP/{topic}/x{{billing/invoices}}", 3),
        (f"{topic}/x/#", 4),
    )
    subscribe(denied, (f"!AP/{topic}/HASH{{marketing}}", 1), (f"!AP/{topic}/x{{billing/ads}}", 2))
    writer.publish(f"{topic}/x", b"x", qos=qos)
    assert names(reader, 1) == copies(broker, 1, 3)
    assert denied.texts() == []


@VERSIONS
def test_a_purpose_that_is_taken_away_takes_one_of_several_names(
    broker: AnyBroker, make: Make, topic: str, version: int
) -> None:
    """What was decided for a copy with several names does not outlive a new reservation."""
    reader, writer = make(version=version), make()
    for purpose, identifier in (("p", 1), ("q", 2)):
        own = {"subscription_identifiers": (identifier,)} if version != V3 else {}
        end = "#" if purpose == "p" else "x"
        reader.subscribe(f"!AP/{topic}/{end.replace('#', 'HASH')}{{{purpose}}}", qos=1, **own)
    steps = [("{p,q}", (1, 2)), ("{p}", (1,)), ("{q}", (2,)), ("{o}", ()), ("{}", (1, 2))]
    for purposes, left in steps:
        writer.publish(f"!RESERVE/{topic}/HASH{purposes}", qos=1)

        def is_told(payload: bytes = purposes.encode(), left: Named = left) -> bool:
            writer.publish(f"{topic}/x", payload, qos=1)
            reader.settle()
            got = reader.messages()
            assert {it.payload for it in got} <= {payload}
            if version == V3:
                assert len(got) <= bool(left)  # 3.1.1 gets one copy of each message
                return len(got) == bool(left)
            named = sorted(it.properties.subscription_identifiers for it in got)
            assert {number for it in named for number in it} <= set(left)
            return named == (copies(broker, *left) if left else [])

        # A broker may answer what comes later before a subscription that resumes holds.
        wait_until(is_told)


def test_retained_messages_are_for_those_who_may_have_them(make: Make, topic: str) -> None:
    reader, writer = make(), make()
    writer.publish(f"!RESERVE/{topic}/HASH{{billing}}", qos=1)
    writer.publish(f"{topic}/x", b"kept", qos=1, retain=True)
    reader.subscribe(f"!AP/{topic}/x{{ads}}")
    assert reader.texts() == []
    reader.subscribe(f"!AP/{topic}/HASH{{billing}}")
    assert [(it.payload, it.retain) for it in reader.messages(1)] == [(b"kept", True)]


def test_members_of_a_group_share_by_purpose(make: Make, topic: str) -> None:
    """Who subscribes for another purpose takes nothing away from those who may have it."""
    writer, allowed, other = make(), [make(), make()], make()
    writer.publish(f"!RESERVE/{topic}/HASH{{billing}}", qos=1)
    for member in allowed:
        member.subscribe(f"!AP/$share/team/{topic}/x{{billing}}", qos=1)
    other.subscribe(f"!AP/$share/team/{topic}/x{{ads}}", qos=1)
    for number in range(12):
        writer.publish(f"{topic}/x", b"%d" % number, qos=1)
    got = [payload for member in allowed for _, payload in member.texts()]
    assert sorted(got, key=int) == [b"%d" % number for number in range(12)]
    assert other.texts() == []


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_a_kept_session_gets_what_it_may_have_when_it_is_back(
    gateway: GatewayThread, make: Make, topic: str, version: int, qos: int
) -> None:
    keep: dict[str, Any] = {"expiry": 300} if version != V3 else {}
    reader = make(f"kept-{topic}", version=version, clean=False, **keep)
    reader.subscribe(f"!AP/{topic}/HASH{{billing}}", f"!AP/{topic}/x{{ads}}", qos=2)
    reader.close()
    writer = make()
    writer.publish(f"{topic}/x", b"before", qos=qos)
    writer.publish(f"!RESERVE/{topic}/y{{ads}}", qos=1)
    for number in range(15):
        writer.publish(f"{topic}/{'xy'[number % 2]}", b"%d" % number, qos=qos)
    with RawClient(gateway.port, version=version) as again:
        assert again.connect(f"kept-{topic}", clean=False, **keep).session_present
        got = dict.fromkeys(payload for _, payload in again.texts(9))
    assert list(got) == [b"before", *(b"%d" % number for number in range(0, 15, 2))]


@VERSIONS
def test_wills_go_to_those_who_may_have_them(make: Make, topic: str, version: int) -> None:
    allowed, denied = make(), make()
    allowed.publish(f"!RESERVE/{topic}/HASH{{care}}", qos=1)
    allowed.subscribe(f"!AP/{topic}/HASH{{care}}", f"!AP/{topic}/gone{{ads}}")
    denied.subscribe(f"!AP/{topic}/HASH{{ads}}")
    make(version=version, will=Will(f"{topic}/gone", b"gone", 1)).vanish()
    assert [payload for _, payload in allowed.texts(1)] == [b"gone"]
    assert denied.texts() == []


@pytest.mark.parametrize("topic", ["$home/x", "$SYS/x"])
def test_a_will_cannot_cut_the_connection_that_all_wills_share(
    gateway: GatewayThread, topic: str
) -> None:
    """HiveMQ ends a connection that publishes below $."""
    with RawClient(gateway.port) as client:
        answer = client.connect("dollar", will=Will(topic, b"x", 1))
    assert answer.reason
    assert answer.properties.reason_string == "a will's topic cannot begin with $"
