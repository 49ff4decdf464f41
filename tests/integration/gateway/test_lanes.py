"""Publish lanes before real brokers: nothing changes for clients, and faults stay apart."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

from penstock.components import MosquittoServer, processes
from penstock.components.mosquitto import broker_command
from penstock.definitions import read_text
from penstock.gateway.connection.context import Cause
from penstock.gateway.publishing.lanes import WAITS
from penstock.mqtt import (
    FAILURE,
    PINGREQ,
    V3,
    V5,
    Connect,
    Pingresp,
    Puback,
    Publish,
    RequestedSubscription,
    Will,
)
from penstock.telemetry.metrics import REGISTRY
from tests.support.gateway.clients import VERSIONS, Make, make_clients
from tests.support.gateway.definitions import apply
from tests.support.gateway.fixtures import BROKERS, AnyBroker
from tests.support.gateway.harness import (
    GatewayThread,
    make_process,
    run_gateway,
    share,
    write_config,
)
from tests.support.gateway.pair import wait_until
from tests.support.gateway.raw import ClosedError, RawClient
from tests.support.scale import scaled

pytest_plugins = ("tests.support.gateway.fixtures",)
NO_LOCAL = SubscribeOptions(qos=0, noLocal=True)


@pytest.fixture(scope="module")
def gateway(broker: AnyBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayThread]:
    with run_gateway(tmp_path_factory.mktemp("gateway"), broker.port, {"lanes": 2}) as running:
        yield running


@pytest.fixture
def make(gateway: GatewayThread) -> Iterator[Make]:
    yield from make_clients(gateway.port)


def value(name: str) -> float:
    return REGISTRY.get_sample_value(name) or 0.0


class Paho:
    """A client of the Paho library with a mailbox."""

    def __init__(self, port: int, client_id: str, version: int) -> None:
        self.box: queue.Queue[bytes] = queue.Queue()
        self._subscribed: queue.Queue[int] = queue.Queue()
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTProtocolVersion(version)
        )
        self.client.on_message = lambda _, __, message: self.box.put(bytes(message.payload))
        self.client.on_subscribe = lambda _, __, mid, *___: self._subscribed.put(mid)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def subscribe(self, topic: str, options: SubscribeOptions | None = None) -> None:
        self.client.subscribe(topic, options=options)
        self._subscribed.get(timeout=60)

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def meet(gateway: GatewayThread) -> Iterator[Callable[[str, int], Paho]]:
    people: list[Paho] = []

    def join(name: str, version: int) -> Paho:
        people.append(Paho(gateway.port, f"{name}-{uuid.uuid4().hex[:6]}", version))
        return people[-1]

    yield join
    for person in people:
        person.leave()


@BROKERS
def test_no_local_is_kept(meet: Callable[[str, int], Paho], topic: str) -> None:
    """A client of MQTT 5 gets others' messages only; one of 3.1.1 gets its own, too."""
    new, old = meet("new", V5), meet("old", V3)
    for number in range(5):  # before it subscribes its messages take a lane
        new.client.publish(topic, b"early %d" % number)
    new.subscribe(topic, NO_LOCAL)
    old.subscribe(topic)
    for number in range(20):
        new.client.publish(topic, b"new %d" % number)
        old.client.publish(topic, b"old %d" % number)
    for person in (new, old):
        person.client.publish(topic, b"end")
    mine = [b"old %d" % number for number in range(20)]
    others = [b"new %d" % number for number in range(20)]
    assert _until(new.box, 1) == [*mine, b"end"]
    got = _until(old.box, 2)
    assert [it for it in got if it.startswith(b"new")] == others
    assert [it for it in got if it.startswith(b"old")] == mine


@pytest.mark.needs("mosquitto")
def test_a_retained_message_of_its_own_is_no_exception(make: Make, topic: str) -> None:
    """HiveMQ CE, which gets no lanes, makes an exception of it."""
    client, other = make(), make()
    client.publish(topic, b"mine", retain=True)
    client.subscribe(RequestedSubscription(topic, 1, no_local=True))
    client.settle()
    assert client.texts(quiet=0.2) == []
    other.subscribe(topic)
    assert other.texts(1, quiet=0) == [(topic, b"mine")]


@BROKERS
def test_what_a_broker_may_close_over_ends_no_lane(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    """Odd texts, and what a broker has for itself, cost their own client at most."""
    before = value("penstock_gateway_lanes_lost_total")
    reader, steady = make(), make()
    reader.subscribe(topic)
    for odd in (
        {"topic": f"{topic}/\x01"},
        {"topic": f"{topic}/\ufffe"},
        {"topic": "$odd/topic"},
        {"topic": "/".join("x" * 150)},
        {"topic": topic, "user": (("a", "\x02"),)},
        {"topic": topic, "content_type": "\x85"},
        {"topic": topic, "payload_format": 1, "payload": b"\xff"},
    ):
        with RawClient(gateway.port) as client:
            client.connect()
            client.publish(str(odd.pop("topic")), **odd)
            with suppress(OSError):
                client.publish("another/topic", b"x" * 900_000)
        steady.publish(topic, b"steady")
    reader.subscribe(f"{topic}/done")
    steady.settle()
    got = [payload for _, payload in reader.texts(7)]
    assert got.count(b"steady") == 7
    assert value("penstock_gateway_lanes_lost_total") == before


def _until(box: queue.Queue[bytes], ends: int) -> list[bytes]:
    """Return what arrives up to so many ends."""
    got: list[bytes] = []
    while got.count(b"end") < ends:
        got.append(box.get(timeout=60))
    return got


# HiveMQ CE deals with a client's PUBLISH and SUBSCRIBE in any order, with lanes and without.


@BROKERS
def test_with_a_broker_that_does_not_answer_in_turn_there_are_no_lanes(
    gateway: GatewayThread, broker: AnyBroker, make: Make, topic: str
) -> None:
    """HiveMQ CE answers a PINGREQ at once: on a change from lane to own, order would be lost."""
    assert gateway.gateway.lanes.ready == isinstance(broker, MosquittoServer)
    reader = make()
    reader.subscribe(topic)
    for number in range(scaled(10)):
        with RawClient(gateway.port) as writer:
            writer.connect()
            sent = [b"%d-%d" % (number, it) for it in range(40)]
            for payload in sent[:-1]:
                writer.publish(topic, payload)
            writer.publish(topic, sent[-1], response_topic="answers")
            assert [payload for _, payload in reader.texts(40, quiet=0)] == sent


@pytest.mark.needs("mosquitto")
def test_what_is_published_before_and_after_subscribing(make: Make, topic: str) -> None:
    """A retained message is there for the subscription behind it, and later ones come."""
    client = make()
    for number in range(10):
        client.publish(f"{topic}/{number}", b"early", retain=True)
        client.publish(f"{topic}/{number}", b"gone")
        client.subscribe(f"{topic}/{number}")
        client.publish(f"{topic}/{number}", b"late")
        expected = [(f"{topic}/{number}", b"early"), (f"{topic}/{number}", b"late")]
        assert client.texts(2, quiet=0) == expected


@pytest.mark.needs("mosquitto")
@VERSIONS
def test_messages_of_both_qualities_keep_their_order(
    gateway: GatewayThread, make: Make, topic: str, version: int
) -> None:
    reader = make()
    reader.subscribe(topic, qos=0)
    with RawClient(gateway.port, version=version) as writer:
        writer.connect()
        sent = []
        for number in range(60):
            qos = 1 if number % 7 == 3 else 0
            sent.append(b"%d" % number)
            packet_id = writer.next_id() if qos else 0
            writer.send(Publish.of(topic, sent[-1], qos=qos, packet_id=packet_id))
        assert [payload for _, payload in reader.texts(60)] == sent


@pytest.mark.needs("mosquitto")
def test_a_will_follows_what_was_published(gateway: GatewayThread, make: Make, topic: str) -> None:
    reader = make()
    reader.subscribe(topic)
    for number in range(5):
        client = RawClient(gateway.port)
        client.connect(will=Will(topic, b"offline %d" % number, qos=0))
        for _ in range(20):
            client.publish(topic, b"online")
        client.vanish()
        got = [payload for _, payload in reader.texts(21, quiet=0)]
        assert got == [b"online"] * 20 + [b"offline %d" % number]


@pytest.mark.needs("mosquitto")
def test_a_lost_lane_is_reopened_and_its_losses_are_counted(
    tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    """Nothing out of place arrives, and what does not arrive is counted."""
    with run_gateway(tmp_path, mosquitto.port, {"lanes": 1}) as running:
        reader, writer = RawClient(running.port), RawClient(running.port)
        reader.connect()
        writer.connect()
        reader.subscribe("t")
        before = value("penstock_gateway_lane_messages_lost_total")
        lane = running.gateway.lanes.of("")
        assert lane is not None
        count = 300
        for number in range(count):
            writer.publish("t", b"%d" % number)
            if number == 100:
                running.do(lane.drop)
        writer.settle()
        reader.settle()
        got = [int(payload) for _, payload in reader.texts(quiet=0.2)]
        assert got == sorted(set(got))
        lost = value("penstock_gateway_lane_messages_lost_total") - before
        # What was written and not confirmed may have arrived nevertheless.
        assert count - len(got) <= lost <= count
        assert value("penstock_gateway_lanes_lost_total") > 0


@pytest.mark.needs("mosquitto")
def test_after_the_broker_was_restarted_clients_publish_again(
    tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    with run_gateway(tmp_path, mosquitto.port, {"lanes": 2}) as running:
        client = RawClient(running.port)
        client.connect()
        client.publish("t", b"1")
        mosquitto.stop()
        client.wait_closed()
        mosquitto.start()
        wait_until(lambda: _comes(running.port))
        with RawClient(running.port) as again:
            again.connect()
            again.subscribe("t")
            again.publish("t", b"2")
            assert again.texts(1, quiet=0) == [("t", b"2")]


def _comes(port: int) -> bool:
    with RawClient(port) as client:
        return client.connect().reason == 0


@pytest.mark.needs("mosquitto")
def test_where_the_broker_knows_clients_there_are_no_lanes(
    tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    settings = {"lanes": 4, "authentication": {"relay": True, "anonymous": True}}
    with run_gateway(tmp_path, mosquitto.port, settings) as running:
        assert running.gateway.lanes.of("any") is None


@pytest.mark.needs("mosquitto")
def test_a_takeover_lets_nothing_of_the_old_connection_pass_later(
    tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    with (
        run_gateway(tmp_path / "1", mosquitto.port, {"lanes": 2}, **share(tmp_path)) as one,
        run_gateway(tmp_path / "2", mosquitto.port, {"lanes": 2}, **share(tmp_path)) as two,
        RawClient(one.port) as reader,
    ):
        reader.connect()
        reader.subscribe("t")
        for round_ in range(scaled(20)):
            old = RawClient(one.port)
            old.connect("moves")
            for number in range(50):
                old.publish("t", b"old %d" % number)
            new = RawClient((one, two)[round_ % 2].port)
            new.connect("moves")
            new.publish("t", b"new")
            with suppress(OSError):
                old.publish("t", b"late")
            new.publish("t", b"last")
            new.settle()
            reader.settle()
            got = [payload for _, payload in reader.texts(quiet=0)]
            assert got[got.index(b"new") :] == [b"new", b"last"], got
            new.close()
            old.vanish()


def _has_own(running: GatewayThread, client_id: str) -> bool:
    return running.do(lambda: running.gateway.clients[client_id].upstream is not None)


@pytest.mark.needs("mosquitto")
@VERSIONS
def test_who_only_publishes_has_no_connection_at_the_broker_until_it_does_more(
    tmp_path: Path, mosquitto: MosquittoServer, version: int
) -> None:
    with (
        run_gateway(tmp_path, mosquitto.port, {"lanes": 2}) as running,
        RawClient(running.port) as reader,
    ):
        reader.connect("reader", clean=True)
        reader.subscribe("t/#", qos=1)
        for what in ("message", "subscribe", "unsubscribe", "odd", "acknowledge"):
            with RawClient(running.port, version=version) as client:
                client.connect("sensor")
                for number in range(20):
                    client.publish("t/1", b"%d" % number, retain=not number % 5)
                client.send(PINGREQ)
                client.expect(Pingresp)
                assert not _has_own(running, "sensor")
                if what == "message":
                    client.publish("t/1", b"20", qos=1)
                elif what == "subscribe":
                    client.subscribe("t/2")
                elif what == "unsubscribe":
                    client.settle()
                elif what == "acknowledge":
                    client.send(Puback(7))
                else:
                    client.publish("$odd", b"")
                if what != "message":
                    client.publish("t/1", b"20")
                wait_until(lambda: _has_own(running, "sensor"))
                got = [payload for _, payload in reader.texts(21)]
                assert got == [b"%d" % number for number in range(21)]


@pytest.mark.needs("mosquitto")
@pytest.mark.parametrize("kind", ["kept", "will", "earlier", "asks"])
def test_who_has_a_session_or_a_will_at_the_broker_is_known_there(
    tmp_path: Path, mosquitto: MosquittoServer, kind: str
) -> None:
    with run_gateway(tmp_path, mosquitto.port, {"lanes": 2}) as running:
        if kind == "earlier":
            with RawClient(running.port) as before:
                before.connect("sensor", clean=False, expiry=600)
                before.subscribe("t", qos=1)
        with RawClient(running.port) as client:
            options: dict[str, Any] = {
                "kept": {"clean": False, "expiry": 600},
                "will": {"will": Will("t", b"gone")},
                "earlier": {},
                "asks": {"request_response_information": 1},
            }
            client.connect("sensor", **options[kind])
            assert _has_own(running, "sensor")


@pytest.mark.needs("mosquitto")
def test_one_connection_has_an_identifier_wherever_it_is(
    tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    """Though the broker knows neither of them, the later one ends the earlier."""
    with (
        run_gateway(tmp_path / "1", mosquitto.port, {"lanes": 2}, **share(tmp_path)) as one,
        run_gateway(tmp_path / "2", mosquitto.port, {"lanes": 2}, **share(tmp_path)) as two,
    ):
        for _ in range(scaled(10)):
            old, new = RawClient(one.port), RawClient(two.port)
            old.connect("sensor")
            old.publish("t", b"1")
            assert not _has_own(one, "sensor")
            new.connect("sensor")
            old.wait_closed()
            assert one.do(lambda: "sensor" not in one.gateway.clients)
            new.close()
            wait_until(lambda: two.do(lambda: "sensor" not in two.gateway.clients))


@pytest.mark.needs("mosquitto")
def test_of_two_that_come_at_once_one_stays(tmp_path: Path, mosquitto: MosquittoServer) -> None:
    with (
        run_gateway(tmp_path / "1", mosquitto.port, {"lanes": 2}, **share(tmp_path)) as one,
        run_gateway(tmp_path / "2", mosquitto.port, {"lanes": 2}, **share(tmp_path)) as two,
    ):
        for _ in range(scaled(20)):
            clients = [RawClient(it.port) for it in (one, two)]
            for client in clients:
                client.send(Connect("sensor"))
            wait_until(lambda: _holders(one, two) == 1)
            for client in clients:
                client.vanish()
            wait_until(lambda: _holders(one, two) == 0)


def _holders(*gateways: GatewayThread) -> int:
    return sum(it.do(lambda it=it: "sensor" in it.gateway.clients) for it in gateways)  # type: ignore[misc]


@pytest.mark.needs("mosquitto")
def test_a_gateway_that_is_gone_holds_nobody_up(tmp_path: Path, mosquitto: MosquittoServer) -> None:
    """The sign of one that died with its broker is taken down when it does not answer."""
    with RawClient(mosquitto.port) as ghost:
        ghost.connect("ghost")
        ghost.publish("!penstock/gateway/0123456789abcdef", b"there", retain=True)
        ghost.settle()
        with run_gateway(tmp_path, mosquitto.port, {"lanes": 1}) as running:
            assert running.gateway.peers.others == {"0123456789abcdef"}
            with RawClient(running.port) as client:
                client.connect("sensor")
            wait_until(lambda: not running.gateway.peers.others)


@pytest.mark.needs("mosquitto")
def test_clients_neither_hear_nor_forge_what_gateways_tell_each_other(
    tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    with (
        run_gateway(tmp_path / "1", mosquitto.port, {"lanes": 2}, **share(tmp_path)) as one,
        run_gateway(tmp_path / "2", mosquitto.port, {"lanes": 2}, **share(tmp_path)) as two,
        RawClient(one.port) as mallory,
        RawClient(one.port) as victim,
    ):
        victim.connect("victim")
        mallory.connect("mallory")
        mallory.subscribe("#", "+/#", "!penstock/#", "!penstock/+/+")
        forged = b"0123456789abcdef" + b"f" * 16 + b"victim"
        assert mallory.publish("!penstock/takeover", forged, qos=1).reason >= FAILURE
        with RawClient(two.port) as other:
            other.connect("other")
            other.settle()
        mallory.settle()
        assert mallory.texts(quiet=0.2) == []
        assert one.do(lambda: "victim" in one.gateway.clients)


class StrictMosquitto(MosquittoServer):
    """A Mosquitto with limits of its own."""

    limits: tuple[str, ...] = ("max_packet_size 20000",)

    def start(self) -> None:
        command = broker_command(self.folder, self.port)
        with Path(command[-1]).open("a") as file:
            file.write("\n".join(self.limits) + "\n")
        self._process = processes.start(
            command, log=self.folder / "mosquitto.log", ready=lambda: processes.accepts(self.port)
        )


GROWS = """
kind: vocabulary
name: grows
payload: {b: string}
---
kind: stream
name: grows
from: [grows]
fields: [{name: b, type: string}, {name: c, type: string}]
---
kind: transformation
name: triples
at: publication
filter: grows
stream: grows
set: {c: t.payload.b + t.payload.b + t.payload.b}
"""


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[StrictMosquitto]:
    with StrictMosquitto(tmp_path / "strict") as server:
        yield server


@BROKERS
@pytest.mark.parametrize("odd", ["\x01", "\x85", "\ufffe"])
def test_a_client_identifier_that_a_broker_refuses_ends_no_lane(
    gateway: GatewayThread, make: Make, topic: str, odd: str
) -> None:
    """What the broker keeps names its publisher: Mosquitto closes a connection over such a name."""
    before = value("penstock_gateway_lanes_lost_total")
    reader, steady = make(), make()
    reader.subscribe(topic)
    with RawClient(gateway.port) as client, suppress(ClosedError, OSError):
        client.connect(f"mallory{odd}")
        for _ in range(3):
            client.publish(topic, b"odd", retain=True)
        client.settle()
    steady.publish(topic, b"steady")
    steady.settle()
    reader.settle()
    assert (topic, b"steady") in reader.texts(1)
    assert value("penstock_gateway_lanes_lost_total") == before


@pytest.mark.needs("mosquitto")
def test_what_is_beyond_the_limits_of_a_broker_ends_no_lane(
    tmp_path: Path, strict: StrictMosquitto
) -> None:
    """Neither a size just below or above its limit, nor a long name, nor what a message becomes."""
    before = value("penstock_gateway_lanes_lost_total")
    shared = share(tmp_path)
    apply(
        write_config(tmp_path / "1", strict.port, **shared),
        list(read_text(GROWS, "rules").documents),
    )
    with (
        run_gateway(tmp_path / "1", strict.port, {"lanes": 2}, **shared) as one,
        run_gateway(tmp_path / "2", strict.port, {"lanes": 2}, **shared) as two,
        RawClient(one.port) as steady,
    ):
        assert one.gateway.lanes.ready
        steady.connect("steady")
        assert not _has_own(one, "steady")
        for running in (one, two):
            for size in (7_000, 8_600, 8_800, 9_700, 12_000, 17_900, 18_500, 30_000):
                with RawClient(running.port) as client, suppress(ClosedError, OSError):
                    client.connect("mallory")
                    client.publish("t", b"x" * size)
                    client.publish("t", b"x" * size, content_type="y" * 4_000)
                    client.settle()
            for size in (1_000, 1_025, 19_000, 40_000):
                with RawClient(running.port) as client, suppress(ClosedError, OSError):
                    client.connect("m" * size)
                    client.publish("t", b"1")
                    client.settle()
            for size in (1_000, 6_000):
                with RawClient(running.port) as client, suppress(ClosedError, OSError):
                    client.connect("grower")
                    client.publish("grows", b'{"b": "%b"}' % (b"x" * size))
                    client.settle()
        steady.send(PINGREQ)
        steady.expect(Pingresp)
        assert not _has_own(one, "steady")
        assert one.gateway.lanes.ready
    assert value("penstock_gateway_lanes_lost_total") == before


@pytest.mark.needs("mosquitto")
def test_a_broker_that_reads_too_slowly_stops_who_publishes_over_its_lane_and_nobody_else(
    tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    with (
        run_gateway(tmp_path, mosquitto.port, {"lanes": 2}) as running,
        RawClient(running.port) as reader,
        RawClient(running.port) as busy,
        RawClient(running.port) as quiet,
    ):
        lanes = running.gateway.lanes
        names = [f"sensor-{number}" for number in range(20)]
        other = next(it for it in names if lanes.of(it) is not lanes.of("sensor-0"))
        reader.connect("reader")
        reader.subscribe("t/#", qos=1)
        busy.connect("sensor-0")
        quiet.connect(other)
        waits, lost = (
            value(f"penstock_gateway_lane_{it}_total") for it in ("waits", "messages_lost")
        )
        enough = threading.Event()
        sent: list[bytes] = []

        def flood() -> None:
            while not enough.is_set():
                sent.append(b"%d " % len(sent) + b"x" * 20_000)
                busy.publish("t/busy", sent[-1])

        os.kill(mosquitto.pid, signal.SIGSTOP)
        flooding = threading.Thread(target=flood)
        try:
            flooding.start()
            wait_until(lambda: value("penstock_gateway_lane_waits_total") > waits)
            # Whoever takes the other lane publishes on; who does not publish notices nothing.
            for number in range(50):
                quiet.publish("t/quiet", b"%d" % number)
            for client in (quiet, reader):
                client.send(PINGREQ)
                client.expect(Pingresp)
            held = running.do(lambda: [_is_held(running, it) for it in ("sensor-0", other)])
        finally:
            enough.set()
            os.kill(mosquitto.pid, signal.SIGCONT)
            flooding.join()
        assert held == [True, False]
        for client in (busy, quiet):
            # What nothing may drop: the reader may be too slow for messages of QoS 0.
            client.publish("t/end", b"end", qos=1)
        got: dict[str, list[int]] = {"t/busy": [], "t/quiet": [], "t/end": []}
        while len(got["t/end"]) < 2:
            message = reader.expect(Publish)
            got[message.topic].append(int(message.payload.split()[0].replace(b"end", b"0")))
        assert got["t/quiet"] == list(range(50))
        # A reader that is too slow is not sent everything, but nothing out of place.
        assert got["t/busy"] == sorted(set(got["t/busy"]))
        assert value("penstock_gateway_lane_messages_lost_total") == lost
        assert not running.do(lambda: _is_held(running, "sensor-0"))


def _is_held(running: GatewayThread, client_id: str) -> bool:
    client = running.gateway.clients[client_id]
    return WAITS in client._holds


@pytest.mark.needs("mosquitto")
@pytest.mark.parametrize("how", ["kick", "revoke"])
def test_of_who_is_sent_away_while_the_broker_stands_still_nothing_that_waited_passes(
    tmp_path: Path, mosquitto: MosquittoServer, how: str
) -> None:
    with (
        run_gateway(tmp_path, mosquitto.port, {"lanes": 1}) as running,
        RawClient(running.port) as reader,
        RawClient(running.port) as mallory,
        RawClient(running.port) as steady,
    ):
        reader.connect("reader")
        reader.subscribe("t", qos=0)
        mallory.connect("mallory")
        steady.connect("steady")
        waits = value("penstock_gateway_lane_waits_total")
        os.kill(mosquitto.pid, signal.SIGSTOP)
        sent = 0
        mallory.socket.settimeout(1)
        try:
            with suppress(TimeoutError):
                while True:
                    mallory.publish("t", b"%d " % sent + b"x" * 20_000)
                    sent += 1
            assert value("penstock_gateway_lane_waits_total") > waits
            client = running.gateway.clients["mallory"]
            before = value("penstock_gateway_lane_messages_lost_total")
            running.do(client.kick if how == "kick" else lambda: client.end(Cause.REVOKED))
            recalled = value("penstock_gateway_lane_messages_lost_total") - before
        finally:
            os.kill(mosquitto.pid, signal.SIGCONT)
        assert recalled > 0
        steady.publish("t", b"-1")
        numbers = [int(reader.expect(Publish).payload.split()[0])]
        while numbers[-1] >= 0:
            numbers.append(int(reader.expect(Publish).payload.split()[0]))
        passed = numbers[:-1]
        assert passed == sorted(set(passed))
        assert len(passed) <= sent - recalled
        steady.settle()
        reader.settle()
        assert reader.texts(quiet=0) == []


@pytest.mark.needs("mosquitto")
def test_with_a_broker_that_keeps_nothing_clients_publish_by_themselves(tmp_path: Path) -> None:
    """Gateways find each other by what the broker keeps: there are no lanes then."""

    class Forgetful(StrictMosquitto):
        limits = ("retain_available false",)

    with (
        Forgetful(tmp_path / "broker") as broker,
        run_gateway(tmp_path, broker.port, {"lanes": 2}) as running,
    ):
        wait_until(lambda: running.do(lambda: running.gateway.peers.refused))
        for _ in range(2):
            with RawClient(running.port) as client, RawClient(running.port) as reader:
                assert reader.connect("reader").reason == 0
                reader.subscribe("t")
                assert client.connect("sensor").properties.retain_available == 0
                assert _has_own(running, "sensor")
                client.publish("t", b"1")
                assert reader.texts(1, quiet=0) == [("t", b"1")]
        assert not running.gateway.lanes.ready


@pytest.mark.needs("mosquitto")
def test_a_gateway_that_stood_still_passes_nothing_of_who_was_taken_over_meanwhile(
    tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    """It was taken for gone, and what clients sent it meanwhile is there before the takeover is."""
    sections = share(tmp_path)
    sections["store"]["lease"] = "600s"
    with (
        make_process(tmp_path / "1", mosquitto.port, {"lanes": 1}, **sections) as one,
        run_gateway(tmp_path / "2", mosquitto.port, {"lanes": 1}, **sections) as two,
        RawClient(two.port) as reader,
    ):
        reader.connect("reader")
        reader.subscribe("t")
        for _ in range(scaled(3)):
            with RawClient(one.port) as old, RawClient(two.port) as new:
                old.connect("moves")
                old.publish("t", b"early")
                assert reader.texts(1, quiet=0) == [("t", b"early")]
                one.send_signal(signal.SIGSTOP)
                try:
                    assert not new.connect("moves").reason
                    for _ in range(20):
                        old.publish("t", b"late")
                    new.publish("t", b"new")
                finally:
                    one.send_signal(signal.SIGCONT)
                old.wait_closed()
                new.publish("t", b"last")
                new.settle()
                reader.settle()
                assert [it for _, it in reader.texts(quiet=0)] == [b"new", b"last"]


SAID: dict[str, list[Any]] = {
    "payload_format": [0, 1],
    "message_expiry": [100, 0xFFFF_FFFF],
    "content_type": ["", "t" * 300],
    "correlation_data": [b"", b"c" * 300],
    "user": [(("k", "v"), ("k", "w")), (("a" * 200, "b" * 3_000),)],
}


@pytest.mark.needs("mosquitto")
def test_a_message_arrives_alike_over_a_lane_and_over_its_own_connection(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    """Each combination of properties; who subscribes with No Local publishes by itself."""
    reader, other, member = make(), make(), make()
    reader.subscribe(topic, qos=0)
    for it in (other, member):
        it.subscribe(f"$share/group/{topic}", qos=0)
    with RawClient(gateway.port) as laned, RawClient(gateway.port) as alone:
        names = [f"{kind}-{uuid.uuid4().hex[:6]}" for kind in ("laned", "alone")]
        laned.connect(names[0])
        alone.connect(names[1])
        alone.subscribe(RequestedSubscription("nothing", 0, no_local=True))
        count = 0
        for chosen in itertools.product(*([None, *values] for values in SAID.values())):
            said = {name: it for name, it in zip(SAID, chosen, strict=True) if it is not None}
            for client in (laned, alone):
                client.publish(topic, b"%d" % count, retain=not count % 9, **said)
            one, two = reader.messages(2, quiet=0)
            assert (one.first, one.payload) == (two.first, two.payload) == (0x30, b"%d" % count)
            assert one.properties.kept == two.properties.kept
            assert {name: getattr(one.properties, name) for name in said} == said
            count += 1
        assert not _has_own(gateway, names[0])
        assert gateway.do(lambda: gateway.gateway.clients[names[1]].lane is None)
    shared = sorted(int(payload) for it in (other, member) for _, payload in it.texts())
    assert shared == sorted([*range(count), *range(count)])


@pytest.mark.needs("mosquitto")
def test_what_expires_over_a_lane_is_gone_and_an_alias_stands_for_its_topic(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    with RawClient(gateway.port) as laned:
        name = f"laned-{uuid.uuid4().hex[:6]}"
        # MQTT5 3.3.2.3.3: what is kept is told with the time that it has left.
        laned.connect(name)
        laned.publish(f"{topic}/short", b"1", retain=True, message_expiry=1)
        laned.publish(f"{topic}/long", b"2", retain=True, message_expiry=600)

        def kept() -> dict[str, Publish]:
            reader = make()
            reader.subscribe(f"{topic}/#", qos=0)
            return {it.topic.removeprefix(f"{topic}/"): it for it in reader.messages()}

        wait_until(lambda: "long" in kept())
        wait_until(lambda: "short" not in kept())
        left = kept()["long"].properties.message_expiry
        assert left is not None
        assert 0 < left <= 600
        reader = make()
        reader.subscribe(f"{topic}/alias", qos=0)
        for named in (f"{topic}/alias".encode(), b""):
            packet = len(named).to_bytes(2, "big") + named + b"\x03\x23\x00\x02" + b"5"
            laned.send_bytes(b"\x30" + bytes([len(packet)]) + packet)
        assert [(it.topic, it.payload) for it in reader.messages(2)] == [
            (f"{topic}/alias", b"5"),
            (f"{topic}/alias", b"5"),
        ]
        assert not _has_own(gateway, name)


BROKEN = {
    "ill-formed topic": b"\x30\x05\x00\x03\xff\xfe\xfd",
    "too long": b"\x30\xff\xff\xff\x7f",
    "QoS 3": b"\x36\x05\x00\x01a\x00\x01",
    "DUP at QoS 0": b"\x38\x04\x00\x01a\x00",
    "wildcard": b"\x30\x04\x00\x01+\x00",
    "not a topic": b"\x30\x03\x00\x00\x00",
    "properties cut off": b"\x30\x06\x00\x01a\x09\x01\x02",
    "payload format 2": b"\x30\x06\x00\x01a\x02\x01\x02",
    "subscription identifier": b"\x30\x06\x00\x01a\x02\x0b\x01",
    "unknown alias": b"\x30\x06\x00\x00\x03\x23\x00\x07",
}


@pytest.mark.needs("mosquitto")
@pytest.mark.parametrize("broken", BROKEN)
def test_a_malformed_packet_ends_its_client_and_neither_its_lane_nor_what_came_before(
    gateway: GatewayThread, make: Make, topic: str, broken: str
) -> None:
    before = value("penstock_gateway_lanes_lost_total")
    reader, steady = make(), make()
    reader.subscribe(topic)
    with RawClient(gateway.port) as client:
        client.connect()
        whole = Publish.of(topic, b"before").encode(V5)
        client.send_bytes(whole + BROKEN[broken])
        client.wait_closed()
    steady.publish(topic, b"steady")
    got = [payload for _, payload in reader.texts(2, quiet=0)]
    assert sorted(got) == [b"before", b"steady"]
    assert value("penstock_gateway_lanes_lost_total") == before
