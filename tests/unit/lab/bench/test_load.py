"""The generator against a real broker, and against one that cheats."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.components import MosquittoServer
from penstock.errors import UsageError
from penstock.model.topics import matches
from penstock.mqtt import Connect, Publish, Reader, Sender, Subscribe
from penstock_lab.bench.load.closed import ClosedLoop
from penstock_lab.bench.load.fleet import Fleet, LoadError
from penstock_lab.bench.load.generator import LoadGenerator
from penstock_lab.bench.load.open import OpenLoop, percentile
from penstock_lab.bench.load.plan import fan_out, mesh, pairs, topics_of
from penstock_lab.bench.load.usage import UsageMeter


@pytest.mark.needs("mosquitto")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_closed_loop_measures_a_real_broker(mosquitto: MosquittoServer, qos: int) -> None:
    with LoadGenerator(mesh(6), mosquitto.port, qos=qos) as load:
        found = load.closed(seconds=0.3, warm_up=0.1, pids={"broker": mosquitto.pid})
        again = load.closed(seconds=0.1, warm_up=0.0)
    assert found.messages > 100
    assert found.rate == found.messages / found.seconds
    assert found.sampled > 0
    assert set(found.cpu) == {"generator", "broker", "others"}
    assert found.cpu_micros("generator") > 0
    assert again.messages > 0


@pytest.mark.needs("mosquitto")
@pytest.mark.parametrize("qos", [0, 1])
def test_an_open_loop_times_every_message(mosquitto: MosquittoServer, qos: int) -> None:
    with LoadGenerator(pairs(5), mosquitto.port, qos=qos) as load:
        found = load.open(rate=200, seconds=0.5, warm_up=0.1)
    assert found.sent == found.delivered == 100
    assert 0 < found.median <= found.p99 <= found.highest


@pytest.mark.needs("mosquitto")
def test_a_fan_out_reaches_everybody(mosquitto: MosquittoServer) -> None:
    with LoadGenerator(fan_out(40), mosquitto.port) as load:
        found = load.open(rate=20, seconds=0.5, warm_up=0.0)
    assert found.delivered == 40 * found.sent == 400


@pytest.mark.needs("mosquitto")
def test_a_closed_loop_needs_one_receiver_per_message(mosquitto: MosquittoServer) -> None:
    with (
        LoadGenerator(fan_out(2), mosquitto.port) as load,
        pytest.raises(LoadError, match="use a mesh"),
    ):
        load.closed(seconds=0.1)


def test_a_missing_broker_is_an_error_and_no_figure() -> None:
    with (
        pytest.raises(LoadError, match="refused"),
        LoadGenerator(mesh(2), port=1),
    ):
        pass  # pragma: no cover - the start fails


def test_a_generator_that_was_not_started_says_so() -> None:
    with pytest.raises(LoadError, match=r"call start\(\) first"):
        LoadGenerator(mesh(2), port=1).closed(seconds=1)


def test_percentiles() -> None:
    hundred = [float(value) for value in range(100)]
    assert percentile(hundred, 0.5) == 50
    assert percentile(hundred, 0.99) == 99
    assert percentile([3.0], 0.99) == 3
    with pytest.raises(LoadError, match="nothing was received"):
        percentile([], 0.5)


Cheat = Callable[[int, bytes], bytes]


class Crooked:
    """A broker that alters the deliveries: `cheat(number, packet)` gives what is sent."""

    def __init__(self, cheat: Cheat, *, connack: int = 0, suback: int | None = None) -> None:
        self._cheat = cheat
        self._connack = connack
        self._suback = suback
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._lock = threading.Lock()
        self._subscribers: list[tuple[tuple[str, ...], socket.socket]] = []
        self._number = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = Reader(Sender.CLIENT)
        with contextlib.suppress(OSError):
            while data := connection.recv(4096):
                reader.feed(data)
                while batch := reader.packets():
                    for packet in batch:
                        self._answer(connection, packet)

    def _answer(self, connection: socket.socket, packet: object) -> None:
        with self._lock:
            if isinstance(packet, Connect):
                connection.sendall(bytes((0x20, 2, 0, self._connack)))
            elif isinstance(packet, Subscribe):
                codes = bytes(
                    wanted.qos if self._suback is None else self._suback
                    for wanted in packet.subscriptions
                )
                filters = tuple(wanted.filter for wanted in packet.subscriptions)
                self._subscribers.append((filters, connection))
                connection.sendall(bytes((0x90, 2 + len(codes), 0, 1)) + codes)
            elif isinstance(packet, Publish):
                self._number += 1
                altered = self._cheat(self._number, packet.to_v3())
                for filters, subscriber in self._subscribers:
                    if any(matches(text, packet.topic) for text in filters):
                        subscriber.sendall(altered)


@pytest.fixture
def crooked() -> Iterator[Callable[..., Crooked]]:
    running: list[Crooked] = []

    def start(cheat: Cheat, **options: int) -> Crooked:
        running.append(Crooked(cheat, **options))
        return running[-1]

    yield start
    for broker in running:
        broker.close()


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long for what never comes."""
    monkeypatch.setattr("penstock_lab.bench.load.closed.DRAIN_SECONDS", 0.3)
    monkeypatch.setattr("penstock_lab.bench.load.open.DRAIN_SECONDS", 0.3)


def honest(_: int, packet: bytes) -> bytes:
    return packet


def lose(number: int, packet: bytes) -> bytes:
    return b"" if number == 10 else packet


def repeat(number: int, packet: bytes) -> bytes:
    return packet * 2 if number == 10 else packet


def rename(number: int, packet: bytes) -> bytes:
    if number < 300:
        return packet
    return (
        packet.replace(b"speed", b"heads").replace(b"place", b"heads").replace(b"usage", b"head5")
    )


def intrude(number: int, packet: bytes) -> bytes:
    return packet + b"\xd0\x00" if number == 10 else packet


@pytest.mark.parametrize("cheat", [lose, repeat])
def test_a_closed_loop_notices_losses_and_copies(
    crooked: Callable[..., Crooked], hurry: None, cheat: Cheat
) -> None:
    fleet = Fleet(mesh(4), crooked(cheat).port)
    with pytest.raises(LoadError, match="another number of messages"):
        ClosedLoop(fleet, 4).run(seconds=0.3, warm_up=0.0, meter=UsageMeter({}))
    fleet.close()


@pytest.mark.parametrize("cheat", [lose, repeat])
def test_an_open_loop_notices_losses_and_copies(
    crooked: Callable[..., Crooked], hurry: None, cheat: Cheat
) -> None:
    fleet = Fleet(mesh(4), crooked(cheat).port)
    with pytest.raises(LoadError, match="another number of messages"):
        OpenLoop(fleet).run(rate=100, seconds=0.3, warm_up=0.0, meter=UsageMeter({}))
    fleet.close()


def test_a_closed_loop_notices_messages_that_nobody_sent(
    crooked: Callable[..., Crooked], hurry: None
) -> None:
    fleet = Fleet(mesh(4), crooked(rename).port)
    with pytest.raises(LoadError, match="what nobody sent"):
        ClosedLoop(fleet, 4).run(seconds=5, warm_up=0.0, meter=UsageMeter({}))
    fleet.close()


def test_an_open_loop_notices_other_packets(crooked: Callable[..., Crooked], hurry: None) -> None:
    fleet = Fleet(mesh(4), crooked(intrude).port)
    with pytest.raises(LoadError, match="what nobody sent: d000"):
        OpenLoop(fleet).run(rate=100, seconds=0.3, warm_up=0.0, meter=UsageMeter({}))
    fleet.close()


def test_a_refusal_is_named(crooked: Callable[..., Crooked]) -> None:
    with pytest.raises(LoadError, match="'mesh-00000' was not let in"):
        Fleet(mesh(2), crooked(honest, connack=5).port)
    with pytest.raises(LoadError, match=r"'country1/area3/vehicle00001/speed/now' .* 0x80"):
        Fleet(mesh(2), crooked(honest, suback=0x80).port)


def test_a_window_that_a_socket_may_not_take_is_refused(crooked: Callable[..., Crooked]) -> None:
    fleet = Fleet(mesh(2), crooked(honest).port)
    with pytest.raises(UsageError, match="a window of 5000 messages"):
        ClosedLoop(fleet, 5000)
    fleet.close()


def test_every_message_has_the_size_that_counting_assumes(crooked: Callable[..., Crooked]) -> None:
    fleet = Fleet(mesh(2), crooked(honest).port, qos=1, payload=10)
    packet = fleet.packet(topics_of(0)[0], b"0123456789")
    assert len(packet) == fleet.size
    assert packet[fleet.id_offset : fleet.id_offset + 2] == b"\x00\x01"
    assert packet[-10:] == b"0123456789"
    fleet.close()


def test_a_meter_sees_the_work_of_a_process() -> None:
    meter = UsageMeter({"self": os.getpid()})
    meter.start()
    sum(range(3_000_000))
    used = meter.stop()
    assert used["generator"] == pytest.approx(used["self"], abs=0.05)
    assert used["self"] > 0
