"""Attacks on service: what a hostile client sends so that others are no longer served."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from penstock.components import MosquittoServer
from penstock.gateway.connection.downstream import Downstream
from penstock.gateway.connection.upstream import Upstream
from penstock.mqtt import V3, Publish, RequestedSubscription, Suback, Subscribe
from tests.support.gateway.certificates import Authority
from tests.support.gateway.clients import Make, make_clients
from tests.support.gateway.harness import GatewayThread, make_process, run_gateway, share
from tests.support.gateway.passwords import broker_with_passwords
from tests.support.gateway.raw import ClosedError, RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

_MANY = 66_000


def test_a_filter_thousands_of_times_in_one_packet_stops_nobody(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    """There are fewer packet identifiers than filters that fit into a packet."""
    with make_process(tmp_path, broker.port) as process:
        attacker, other = RawClient(process.port), RawClient(process.port)
        attacker.connect("attacker")
        other.connect("other")
        attacker.send(Subscribe(1, (RequestedSubscription("a", 0),) * _MANY))
        with contextlib.suppress(ClosedError):
            attacker.expect(Suback)  # answered or closed, but not silent
        other.publish("b", b"still here", qos=1)
        attacker.vanish()
        other.vanish()


@pytest.fixture(scope="module")
def narrow(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    """Give a gateway with tight limits."""
    settings = {"limits": {"queue": 65536, "receive_maximum": 5}}
    with run_gateway(tmp_path_factory.mktemp("narrow"), broker.port, settings) as running:
        yield running


@pytest.fixture
def make_narrow(narrow: GatewayThread) -> Iterator[Make]:
    yield from make_clients(narrow.port)


def test_what_waits_for_quota_is_bounded_though_it_is_empty(
    narrow: GatewayThread, make_narrow: Make
) -> None:
    attacker = make_narrow("flood", version=V3, answers=False)
    for packet_id in range(1, 7):  # never released: the quota stays used up
        attacker.send(Publish.of("a", qos=2, packet_id=packet_id))
    flood = Publish.of("a").encode(V3) * 10_000
    try:
        for _ in range(8):
            attacker.send_bytes(flood)
        attacker.wait_closed(3)
    except (OSError, TimeoutError):
        pass
    client = narrow.gateway.clients.get("flood")
    assert client is None or len(client.backlog._kept or ()) < 40_000


def test_large_properties_are_not_remembered(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    reader, writer = make(f"r-{topic[2:]}"), make()
    reader.subscribe(topic, qos=1)
    for number in range(40):
        writer.publish(topic, b"x", qos=1, user=((str(number), "x" * 60_000),) * 2)
    reader.messages(40)
    upstream = cast("Upstream", gateway.gateway.clients[f"r-{topic[2:]}"].upstream)
    assert sum(len(raw) for _, raw in upstream.decisions.passing) < 1_000_000


def test_long_lists_of_purposes_are_not_remembered(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    reader, writer = make(), make()
    reader.subscribe(topic, qos=1)
    for number in range(40):
        listed = ",".join(f"{number}-{'p' * 200}{it}" for it in range(200))
        assert not writer.publish(topic, qos=1, user=(("purpose-aip", listed),)).reason
    reader.messages()
    known = gateway.gateway.emergencies.delivery_check._stamps._known
    assert sum(len(value) for pairs in known for _, value in pairs) < 1_000_000


def test_answers_respect_the_largest_packet_of_the_client(make: Make, topic: str) -> None:
    asker = make(maximum_packet_size=64)
    asker.publish(f"!RESERVE/{topic}{{{'p' * 100}}}", qos=1)
    asker.publish(f"!PBAC/CRES/{topic}", qos=1)
    for message in asker.messages():
        assert len(message.encode(5)) <= 64


def test_the_reason_of_a_denial_respects_the_largest_packet(make: Make) -> None:
    asker = make(maximum_packet_size=32)
    answer = asker.publish("!NO/SUCH/COMMAND/AT/ALL/IS/THERE", qos=1)
    assert len(answer.encode(5)) <= 32


# --- the broker decides who somebody is ---


def test_a_wrong_password_ends_nobody_else(tmp_path: Path) -> None:
    with broker_with_passwords(tmp_path / "m") as port:
        settings = {"authentication": {"relay": True}}
        with run_gateway(tmp_path / "g", port, settings) as gateway:
            dora, thief = RawClient(gateway.port), RawClient(gateway.port)
            assert dora.connect("dora", username="dora", password=b"secret").reason == 0
            assert thief.connect("dora", username="dora", password=b"guess").reason != 0
            dora.publish("a", b"x", qos=1)
            dora.close()
            thief.close()


def test_a_silent_tls_connection_is_closed_in_time(broker: MosquittoServer, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path / "authority").issue("server")
    listener = {"port": 0, "transport": "tls", "certificate": str(certificate), "key": str(key)}
    settings = {"limits": {"connect_timeout": "1s"}, "listeners": {"mqtt": listener}}
    with (
        run_gateway(tmp_path / "g", broker.port, settings) as gateway,
        socket.create_connection(("127.0.0.1", gateway.port), timeout=4) as silent,
    ):
        try:
            rest = silent.recv(1)
        except ConnectionResetError:
            rest = b""
        assert rest == b""


# --- two gateways ---


@pytest.fixture(scope="module")
def pair(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayThread, GatewayThread]]:
    """Give two gateways with one store."""
    folder = tmp_path_factory.mktemp("pair")
    with (
        run_gateway(folder / "a", broker.port, **share(folder)) as one,
        run_gateway(folder / "b", broker.port, **share(folder)) as two,
    ):
        yield one, two


def test_a_session_that_moved_outlives_its_old_connection(
    pair: tuple[GatewayThread, GatewayThread], topic: str
) -> None:
    """What the old gateway writes late, because its store is slow, must not end the session."""
    one, two = pair
    name = f"s-{topic[2:]}"
    writer, old, new = RawClient(two.port), RawClient(one.port), RawClient(two.port)
    writer.connect(f"w-{name}")
    old.connect(name, clean=False, expiry=1)
    old.subscribe(topic, qos=1)

    async def keep_busy() -> None:
        for _ in range(8):
            one.gateway.background.start(one.gateway.background.run_in_thread(time.sleep, 0.3))

    one.call(keep_busy)
    assert new.connect(name, clean=False, expiry=600).session_present
    old.wait_closed()
    one.call(one.gateway.session_writer.finish)
    time.sleep(1.1)
    two.gateway.sessions.sweep()
    new.close()
    new = RawClient(two.port)
    new.connect(name, clean=False, expiry=600)
    writer.publish(topic, b"x", qos=1)
    assert new.texts() == [(topic, b"x")]
    new.close()
    writer.close()


def command(client: RawClient, topic: str, payload: bytes = b"") -> None:
    assert not client.publish(topic, payload, qos=1).reason


def test_settings_of_two_gateways_do_not_undo_each_other(
    pair: tuple[GatewayThread, GatewayThread], topic: str
) -> None:
    one, two = RawClient(pair[0].port), RawClient(pair[1].port)
    one.connect(f"1-{topic[2:]}")
    two.connect(f"2-{topic[2:]}")
    for value in (b"true", b"false") * 3:
        command(one, "!PBAC/SET/filter_hybrid", value)
        command(two, "!PBAC/SET/cache_subscriptions", value)  # its view may still be old
        settings = pair[1].do(lambda: pair[1].gateway.rules.engine.settings)
        told = value == b"true"
        assert (settings.filter_hybrid, settings.cache_subscriptions) == (told, told)
    command(one, "!PBAC/SET/cache_subscriptions", b"true")
    one.close()
    two.close()


def test_reserving_again_holds_against_what_another_gateway_just_stored(
    pair: tuple[GatewayThread, GatewayThread], topic: str
) -> None:
    one, two = RawClient(pair[0].port), RawClient(pair[1].port)
    one.connect(f"1-{topic[2:]}")
    two.connect(f"2-{topic[2:]}")
    command(two, f"!RESERVE/{topic}{{x}}")
    command(one, f"!RESERVE/{topic}{{z}}")
    command(one, f"!RESERVE/{topic}{{x}}")
    wrong = 0
    for _ in range(5):
        command(one, f"!RESERVE/{topic}{{y}}")
        command(two, f"!RESERVE/{topic}{{x}}")  # acknowledged last, so it holds
        two.texts(quiet=0.1)
        held = pair[1].do(lambda: pair[1].gateway.rules.engine.reservations.get(topic))
        wrong += held is None or held.aip != {"x"}
        command(one, f"!RESERVE/{topic}{{x}}")
        two.texts(quiet=0.1)
    one.close()
    two.close()
    assert wrong == 0


# --- more in flight than a client takes ---


def overfill(make: Make, name: str, topic: str) -> RawClient:
    """Come back with a smaller receive maximum than there are messages in flight."""
    writer = make()
    greedy = make(name, clean=False, expiry=600, answers=False, receive_maximum=20)
    greedy.subscribe(topic, qos=1)
    for number in range(10):
        writer.publish(topic, b"%d" % number, qos=1)
    greedy.messages(10)
    greedy.vanish()
    return make(name, clean=False, expiry=600, answers=False, receive_maximum=1)


def test_what_waits_for_room_is_not_delivered_while_definitions_are_stale(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    name = f"s-{topic[2:]}"
    reader = overfill(make, name, topic)
    (first,) = reader.messages(1)

    def acknowledge_stale() -> int:
        rules = gateway.gateway.rules
        client = cast("Downstream", gateway.gateway.clients[name])
        counters = gateway.gateway.counters
        before = counters.messages_out
        known, rules.fresh_until = rules.fresh_until, 0.0
        client.data_received(b"\x40\x02" + first.packet_id.to_bytes(2))
        rules.fresh_until = known
        return counters.messages_out - before

    assert gateway.do(acknowledge_stale) == 0
    assert len(reader.messages(1)) == 1  # when the definitions are known again


def test_what_waits_for_room_is_bounded_though_it_is_empty(
    gateway: GatewayThread, make: Make, topic: str
) -> None:
    name = f"s-{topic[2:]}"
    reader, writer = overfill(make, name, topic), make()
    reader.messages(1)
    reader.subscribe(f"{topic}/flood", qos=0)
    flood = Publish.of(f"{topic}/flood").encode(5) * 5_000
    for _ in range(4):
        writer.send_bytes(flood)
    writer.publish("end", qos=1)
    client = gateway.gateway.clients.get(name)
    window = cast("Upstream", client.upstream).window if client is not None else None
    assert window is None or len(window._kept) < 15_000


def test_answers_that_are_not_read_do_not_pile_up(narrow: GatewayThread, make_narrow: Make) -> None:
    attacker = make_narrow("deaf", answers=False)
    attacker.socket.settimeout(2)
    refused = Publish.of("!" + "x" * 60, qos=1, packet_id=1).encode(5) * 500
    with contextlib.suppress(OSError):  # who is no longer read from cannot send any more
        for _ in range(300):
            attacker.socket.sendall(refused)
    client = narrow.gateway.clients.get("deaf")
    assert client is None or client.transport.get_write_buffer_size() < 500_000
