"""Content filters at two gateways on one store: in every way a message can reach a subscriber."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.definitions import read_text
from penstock.model.document import Document, Key
from penstock.mqtt import V3, V5, ReasonCode, Suback
from penstock.mqtt.codes import FAILURE
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.harness import GatewayThread, run_gateway, share
from tests.support.gateway.pair import wait_until
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

STREAM: dict[str, Any] = {
    "from": ["home/+patient/vitals"],
    "fields": [
        {"name": "patient", "type": "string"},
        {"name": "pulse", "type": "int"},
        {"name": "ward", "type": "string", "optional": True},
    ],
}
FAST = "r.pulse > 120"
WIDE = "home/+/vitals"


def _epoch(gateway: GatewayThread) -> int:
    return gateway.do(lambda: gateway.gateway.rules.epoch)


def _filters(gateway: GatewayThread) -> int:
    return gateway.do(lambda: len(gateway.gateway.rules.contents))


class Site:
    """Two gateways that share a store and a broker."""

    def __init__(self, gateways: tuple[GatewayThread, GatewayThread]) -> None:
        self.gateways = gateways
        self.clients: list[RawClient] = []

    def change(self, *documents: Document, delete: tuple[Key, ...] = ()) -> None:
        """Change definitions, and wait until both gateways know."""
        with Database.open(self.gateways[0].config.store.connection_url()) as database:
            checked = CheckedDefinitions(Definitions(database))
            epoch = 0
            if documents:
                epoch = checked.apply(documents, actor="test").epoch
            if delete:
                epoch = checked.delete(delete, actor="test").epoch
        wait_until(lambda: min(map(_epoch, self.gateways)) >= epoch)

    def connect(self, name: str, at: int = 0, *, version: int = V5, **more: Any) -> RawClient:
        client = RawClient(self.gateways[at].port, version=version)
        self.clients.append(client)
        assert not client.connect(name, **more).reason
        return client

    def held(self) -> int:
        """Count the content filters at both gateways."""
        return sum(map(_filters, self.gateways))


@pytest.fixture(scope="module")
def gateways(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayThread, GatewayThread]]:
    folder = tmp_path_factory.mktemp("content")
    sections = share(folder)
    sections["store"]["lease"] = "60s"
    settings = {"limits": {"content_filters": 5}}
    with (
        run_gateway(folder / "one", broker.port, settings, **sections) as one,
        run_gateway(folder / "two", broker.port, settings, **sections) as two,
    ):
        yield one, two


@pytest.fixture
def site(gateways: tuple[GatewayThread, GatewayThread]) -> Iterator[Site]:
    made = Site(gateways)
    made.change(Document("stream", "vitals", STREAM))
    yield made
    for client in made.clients:
        client.close()


def subscribe(client: RawClient, content: str, filter_: str = WIDE, **more: Any) -> Suback:
    """Subscribe to events, in the way that the client's protocol has."""
    if client.version == V5:
        return client.subscribe(filter_, user=(("content-filter", content),), **more)
    coded = content.replace("%", "%25").replace("+", "%2B").replace("#", "%23")
    written = filter_.replace("+", "PLUS").replace("#", "HASH")
    return client.subscribe(f"!AP/{written}{{|{coded}}}", **more)


def vitals(pulse: Any, **more: Any) -> bytes:
    return json.dumps({"pulse": pulse, **more}).encode()


def publish(
    client: RawClient, *pulses: Any, patient: str = "p1", qos: int = 1, **more: Any
) -> None:
    for pulse in pulses:
        client.publish(f"home/{patient}/vitals", vitals(pulse), qos=qos, **more)


def pulses(client: RawClient, count: int = 0) -> list[int]:
    return [json.loads(payload)["pulse"] for _, payload in client.texts(count)]


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_only_what_matches_is_delivered(site: Site, version: int, qos: int) -> None:
    reader, sender = site.connect("r", version=version), site.connect("s", at=1)
    assert subscribe(reader, FAST, qos=qos).reasons == (qos,)
    publish(sender, 60, 121, 120, 180, qos=qos)
    for odd in (b"", b"121", b"[121]", b'{"pulse": "121"}', b'{"pulse": 121, "pulse": 1}'):
        sender.publish("home/p1/vitals", odd, qos=qos)
    sender.publish("home/p1/vitals", vitals(122), qos=qos)
    assert pulses(reader, 3) == [121, 180, 122]
    # What was withheld does not clog the client's window.
    reader.settle()


def test_a_filter_on_a_level_of_the_topic(site: Site) -> None:
    reader, sender = site.connect("r"), site.connect("s")
    subscribe(reader, 'r.patient == "p2" && r.pulse > 100')
    publish(sender, 101, patient="p1")
    publish(sender, 99, 102, patient="p2")
    assert pulses(reader, 1) == [102]


def test_retained_messages(site: Site) -> None:
    sender = site.connect("s")
    for patient, pulse in (("p1", 60), ("p2", 130)):
        publish(sender, pulse, patient=patient, retain=True)
    for version in (V3, V5):
        reader = site.connect(f"r{version}", version=version)
        subscribe(reader, FAST)
        assert pulses(reader, 1) == [130]
    for patient in ("p1", "p2"):
        sender.publish(f"home/{patient}/vitals", b"", qos=1, retain=True)


@pytest.mark.parametrize("version", [V3, V5])
def test_a_resumed_session_keeps_its_filter_at_another_gateway(site: Site, version: int) -> None:
    sender = site.connect("s")
    kept: dict[str, Any] = {"clean": False}
    if version == V5:
        kept["session_expiry"] = 3600
    reader = site.connect("kept", at=0, version=version, **kept)
    subscribe(reader, FAST, qos=1)
    reader.vanish()
    publish(sender, 60, 125)
    again = site.connect("kept", at=1, version=version, **kept)
    assert pulses(again, 1) == [125]
    publish(sender, 61, 126)
    assert pulses(again, 1) == [126]
    again.unsubscribe(WIDE)
    again.vanish()
    RawClient(site.gateways[0].port, version=version).connect("kept", clean=True)


def test_a_shared_group_has_one_filter(site: Site) -> None:
    sender = site.connect("s")
    one, two, other = (site.connect(name) for name in ("w1", "w2", "w3"))
    for client in (one, two):
        subscribe(client, FAST, f"$share/g/{WIDE}")
    # Another filter is another group: nobody takes from it what its members must not have.
    subscribe(other, "r.pulse < 100", f"$share/g/{WIDE}")
    publish(sender, *range(90, 150, 10))
    assert sorted(pulses(one) + pulses(two)) == [130, 140]
    assert pulses(other, 1) == [90]


def test_the_last_word_counts_and_unsubscribe_ends_it(site: Site) -> None:
    reader, sender = site.connect("r"), site.connect("s")
    subscribe(reader, FAST)
    subscribe(reader, "r.pulse < 100")
    publish(sender, 60, 130)
    assert pulses(reader, 1) == [60]
    reader.subscribe(WIDE)
    publish(sender, 60, 130)
    assert pulses(reader, 2) == [60, 130]
    subscribe(reader, FAST)
    reader.unsubscribe(WIDE)
    publish(sender, 130)
    assert pulses(reader) == []


def test_several_subscriptions_of_one_client(site: Site) -> None:
    reader, sender = site.connect("r"), site.connect("s")
    subscribe(reader, FAST, subscription_identifiers=(1,))
    subscribe(reader, "r.pulse < 100", "home/p1/+", subscription_identifiers=(2,))
    publish(sender, 60, 110, 130)
    found = reader.messages(2)
    told = {
        (json.loads(it.payload)["pulse"], it.properties.subscription_identifiers) for it in found
    }
    assert told == {(60, (2,)), (130, (1,))}


@pytest.mark.parametrize("version", [V3, V5])
def test_errors_refuse_the_subscription_with_the_reason(site: Site, version: int) -> None:
    reader, sender = site.connect("r", version=version), site.connect("s")
    subscribe(reader, FAST)
    for wrong in ("r.plse > 120", "r.pulse", "r.pulse >", "1 == 1 || " * 80 + "true"):
        answer = subscribe(reader, wrong)
        assert answer.reasons[0] >= FAILURE
        if version == V5:
            assert answer.reasons == (int(ReasonCode.TOPIC_FILTER_INVALID),)
            assert "content filter" in (answer.properties.reason_string or "")
    # What was there before stays: what is malformed changes nothing.
    publish(sender, 60, 130)
    assert pulses(reader, 1) == [130]
    assert subscribe(reader, FAST, "garden/#").reasons[0] >= FAILURE


def test_a_client_has_so_many_at_most(site: Site) -> None:
    reader = site.connect("r")
    for number in range(5):
        assert subscribe(reader, FAST, f"home/p{number}/vitals").reasons[0] < FAILURE
    answer = subscribe(reader, FAST, "home/p9/vitals")
    assert answer.reasons == (int(ReasonCode.QUOTA_EXCEEDED),)
    assert subscribe(reader, "r.pulse > 1", "home/p1/vitals").reasons[0] < FAILURE
    assert reader.subscribe("home/p9/vitals").reasons[0] < FAILURE


def test_no_filter_and_no_message_keeps_the_gateway_from_others(site: Site) -> None:
    """A pattern under two quantifiers took minutes for one message, for all clients."""
    reader, sender = site.connect("r"), site.connect("s")
    dear = 'r.ward.levels().all(x, r.ward.levels().all(y, !r.ward.matches(r"(a|b)*c")))'
    for content in (dear, "r.ward.levels().minus(r.patient.levels()).size() == 1"):
        assert subscribe(reader, content).reasons == (int(ReasonCode.TOPIC_FILTER_INVALID),)
    assert subscribe(reader, 'r.ward.matches(r"^[ab]*a[ab]{12}")').reasons[0] < FAILURE
    # What is too long for a filter is missing for it; the next is looked at again.
    sender.publish("home/p1/vitals", vitals(1, ward="ab" * 250_000), qos=1)
    sender.publish("home/p1/vitals", vitals(2, ward="ab" * 10), qos=1)
    assert pulses(reader, 1) == [2]


def test_filters_end_with_their_clients(site: Site) -> None:
    wait_until(lambda: site.held() == 0)
    reader = site.connect("r")
    subscribe(reader, FAST)
    assert site.held() == 1
    reader.close()
    wait_until(lambda: site.held() == 0)


def test_a_change_of_the_type_lets_a_filter_sleep_and_wakes_it(site: Site) -> None:
    reader, sender = site.connect("r"), site.connect("s")
    subscribe(reader, FAST)
    renamed = [{**it, "name": "beat"} if it["name"] == "pulse" else it for it in STREAM["fields"]]
    site.change(Document("stream", "vitals", {**STREAM, "fields": renamed}))
    publish(sender, 130)
    assert pulses(reader) == []
    site.change(Document("stream", "vitals", STREAM))
    wait_until(lambda: _arrives(site, reader, sender))
    site.change(delete=(Key("stream", "vitals"),))
    publish(sender, 131)
    assert pulses(reader) == []


def _arrives(site: Site, reader: RawClient, sender: RawClient) -> bool:
    publish(sender, 60, 130)
    found = pulses(reader)
    assert 60 not in found
    return 130 in found


def test_with_a_purpose(site: Site) -> None:
    reader, old, sender = site.connect("r"), site.connect("o", version=V3), site.connect("s")
    sender.publish("!RESERVE/home/PLUS/vitals{care}", qos=1)
    pairs = (("content-filter", FAST), ("purpose-ap", "care"))
    assert reader.subscribe(WIDE, user=pairs).reasons[0] < FAILURE
    assert old.subscribe(f"!AP/home/PLUS/vitals{{care|{FAST}}}").reasons[0] < FAILURE
    publish(sender, 60, 130)
    assert pulses(reader, 1) == pulses(old, 1) == [130]
    sender.publish("!RESERVE/home/PLUS/vitals{research}", qos=1)
    publish(sender, 131)
    assert pulses(reader) == pulses(old) == []
    sender.publish("!RESERVE/home/PLUS/vitals{}", qos=1)


def test_nobody_learns_of_the_filters_of_others(site: Site) -> None:
    """What publisher, subscriber and member of a group are told is the same with and without."""

    def told(others: bool) -> list[Any]:  # noqa: FBT001
        seen: list[Any] = []
        if others:
            hidden = site.connect("hidden")
            for number, group in enumerate(("", "$share/g/", "$share/h/")):
                subscribe(hidden, f'r.patient == "p{number}"', group + WIDE)
        spy = site.connect("spy")
        seen.append(subscribe(spy, FAST).encode(V5))
        seen.append(subscribe(spy, "r.pulse < 100", f"$share/g/{WIDE}").encode(V5))
        seen.append(spy.subscribe(f"$share/h/{WIDE}").encode(V5))
        seen.append(subscribe(spy, "r.nothing > 120", "home/+/+").encode(V5))
        seen += [spy.publish("home/p0/vitals", vitals(it), qos=1).encode(V5) for it in (60, 130)]
        seen.append(sorted(it.payload for it in spy.messages(4)))
        spy.close()
        if others:
            hidden.close()
        return seen

    assert told(others=False) == told(others=True)


def test_who_may_not_read_learns_no_type_by_a_filter(site: Site) -> None:
    rules = """
{kind: enforcement, name: default, policies: required}
---
{kind: policy, name: others, subject: "anyone", filter: "garden/#", allow: read}
"""
    site.change(*read_text(rules, "rules").documents)
    eve = site.connect("eve")
    answers = [subscribe(eve, it) for it in (FAST, "r.nothing > 1", "nonsense(")]
    told = {(it.reasons, it.properties.reason_string) for it in answers}
    assert len(told) == 1
    assert "pulse" not in str(told)
    site.change(
        delete=(Key("policy", "others"), Key("enforcement", "default")),
    )


@pytest.mark.parametrize("version", [V3, V5])
def test_a_filter_sees_what_masks_leave_and_nothing_else(site: Site, version: int) -> None:
    coarse = {
        "filter": WIDE,
        "stream": "vitals",
        "anonymizers": [{"anonymizer": "bucketizing", "keys": ["pulse"], "bucket_size": 100}],
    }
    site.change(Document("transformation", "coarse", coarse))
    sender, plain = site.connect("s"), site.connect("p")
    plain.subscribe(WIDE)

    def tell(*told: int) -> None:
        for pulse in told:
            sender.publish("home/p1/vitals", vitals(pulse, patient="p1", ward="3"), qos=1)

    tell(130)
    (shown,) = pulses(plain, 1)
    assert shown != 130
    curious, fair = (site.connect(it, version=version) for it in ("c", "f"))
    assert subscribe(curious, "r.pulse == 130").reasons[0] < FAILURE
    assert subscribe(fair, 'r.ward == "3"').reasons[0] < FAILURE
    tell(130, 131)
    assert pulses(fair, 2) == [shown, shown]
    assert pulses(curious) == []
    site.change(delete=(Key("transformation", "coarse"),))
