"""Accepted messages come into the event log: all of them, in order, whatever happens to whom."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.config import Config
from penstock.eventlog import EventLog, Record
from penstock.json_text import UNREAD
from penstock.model.document import Document
from penstock.mqtt import V5, Properties, Puback, Publish, Will
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock.telemetry import metrics
from tests.support.gateway.clients import VERSIONS
from tests.support.gateway.harness import GatewayThread, make_process, run_gateway
from tests.support.gateway.raw import RawClient
from tests.support.gateway.resender import WINDOW, Resender

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

SOON = 60.0
QUIET = 0.3
STREAM: dict[str, Any] = {
    "fields": [
        {"name": "ward", "type": "string"},
        {"name": "patient", "type": "string", "category": "identifier"},
        {"name": "pulse", "type": "int"},
    ],
    "subject": "patient",
    "from": ["home/+ward/pulse"],
}


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def apply(config: Config, *documents: Document) -> int:
    with Database.open(config.store.connection_url()) as database:
        checked = CheckedDefinitions(Definitions(database))
        return checked.apply(list(documents), actor="test", reason="").epoch


def declare(gateway: GatewayThread, *documents: Document) -> None:
    epoch = apply(gateway.config, *documents)
    wait_until(lambda: gateway.do(lambda: gateway.gateway.rules.epoch) >= epoch)


def stream(name: str = "vitals", *patterns: str, **more: Any) -> Document:
    given = {"from": list(patterns)} if patterns else {}
    return Document("stream", name, {**STREAM, **given, **more})


def records(config: Config, name: str = "vitals") -> list[Record]:
    return list(EventLog(config.pipeline.event_log).topic(name).read())


def wait_for_records(config: Config, count: int, name: str = "vitals") -> list[Record]:
    wait_until(lambda: len(records(config, name)) >= count)
    return records(config, name)


def numbers(config: Config) -> list[int]:
    return [json.loads(it.value)["pulse"] for it in records(config)]


def left_out(reason: str) -> float:
    """Return how many messages were left out so far, as the metrics tell."""
    return (
        metrics.REGISTRY.get_sample_value("penstock_recording_left_out_total", {"reason": reason})
        or 0.0
    )


@contextmanager
def stuck(config: Config, name: str = "vitals") -> Iterator[None]:
    """Let the log take nothing for as long as the block lasts."""
    folder = config.pipeline.event_log / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def recording(
    folder: Path, broker: MosquittoServer, *documents: Document, **settings: Any
) -> Iterator[GatewayThread]:
    with run_gateway(folder, broker.port, recording=settings) as running:
        declare(running, *(documents or (stream(),)))
        yield running


@contextmanager
def client(port: int, name: str = "", *, version: int = V5, **options: Any) -> Iterator[RawClient]:
    with RawClient(port, version=version) as made:
        made.connect(name, **options)
        yield made


def payload(number: int, patient: str = "p1", padding: int = 0) -> bytes:
    return json.dumps({"patient": patient, "pulse": number, "padding": "x" * padding}).encode()


@VERSIONS
@pytest.mark.parametrize("acknowledge", ["accepted", "recorded"])
def test_the_log_holds_what_was_accepted(
    broker: MosquittoServer, tmp_path: Path, version: int, acknowledge: str
) -> None:
    with (
        recording(tmp_path, broker, acknowledge=acknowledge) as gateway,
        client(gateway.port, version=version) as publisher,
    ):
        before = time.time() * 1000
        for number in range(30):
            publisher.publish("home/w7/pulse", payload(number, f"p{number}"), qos=number % 3)
            publisher.publish("home/w7/motion", payload(number), qos=number % 3)
            publisher.publish("$home/w7/pulse", payload(number), qos=0)
        publisher.publish("home/w8/pulse", b"no object", qos=1)
        publisher.publish("!RESERVE/home/w9/pulse{treatment}", b"", qos=1)
        held = wait_for_records(gateway.config, 31)
        assert [json.loads(it.value) for it in held[:30]] == [
            {"patient": f"p{number}", "pulse": number, "padding": "", "ward": "w7"}
            for number in range(30)
        ]
        assert [it.key for it in held[:30]] == [f"p{number}".encode() for number in range(30)]
        # What is no record is the pipeline's to set aside.
        assert (held[30].key, held[30].value) == (b"", UNREAD + b"no object")
        assert before - 1 <= held[0].milliseconds <= held[30].milliseconds <= time.time() * 1000
        time.sleep(QUIET)
        assert len(records(gateway.config)) == 31
        assert EventLog(gateway.config.pipeline.event_log).topics() == ["vitals"]


def test_a_message_may_feed_several_streams_and_each_once(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    wide = stream("wide", "home/#", "home/+ward/pulse")
    with (
        recording(tmp_path, broker, stream(), wide) as gateway,
        client(gateway.port) as publisher,
    ):
        publisher.publish("home/w7/pulse", b'{"patient": "p1", "pulse": 60}', qos=1)
        publisher.publish("home/w7/pulse/raw", b'{"patient": "p1"}', qos=1)
        held = wait_for_records(gateway.config, 2, "wide")
        # The first pattern that fits says which levels are fields: here none. What another
        # one would say is no payload's to say.
        assert [it.value for it in held] == [
            b'{"patient":"p1","pulse":60,"ward":null}',
            b'{"patient":"p1","ward":null}',
        ]
        (record,) = records(gateway.config)
        assert json.loads(record.value) == {"patient": "p1", "pulse": 60, "ward": "w7"}


def test_streams_come_and_go_with_the_definitions(broker: MosquittoServer, tmp_path: Path) -> None:
    other = stream("vitals", "ward/+ward/pulse")
    with recording(tmp_path, broker) as gateway, client(gateway.port) as publisher:
        publisher.publish("home/w7/pulse", payload(1), qos=1)
        wait_for_records(gateway.config, 1)
        declare(gateway, other)
        publisher.publish("home/w7/pulse", payload(2), qos=1)
        publisher.publish("ward/w7/pulse", payload(3), qos=1)
        wait_for_records(gateway.config, 2)
        time.sleep(QUIET)
        assert numbers(gateway.config) == [1, 3]


def test_what_carries_purposes_of_its_own_is_left_out(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    before = left_out("restricted")
    with recording(tmp_path, broker) as gateway, client(gateway.port) as publisher:
        publisher.publish("home/w7/pulse", payload(1), qos=1, user=(("purpose-aip", "treatment"),))
        publisher.publish("!AIP/home/w7/pulse{treatment}", payload(3), qos=1)
        publisher.publish("home/w7/pulse", payload(2), qos=1)
        wait_for_records(gateway.config, 1)
        time.sleep(QUIET)
        assert numbers(gateway.config) == [2]
        assert left_out("restricted") == before + 2


def test_what_is_denied_is_not_recorded(broker: MosquittoServer, tmp_path: Path) -> None:
    required = Document("enforcement", "default", {"policies": "required"})
    with recording(tmp_path, broker, stream()) as gateway, client(gateway.port) as publisher:
        publisher.publish("home/w7/pulse", payload(1), qos=1)
        declare(gateway, required)
        denied = publisher.publish("home/w7/pulse", payload(2), qos=1)
        assert denied.reason == 0x87
        time.sleep(QUIET)
        assert numbers(gateway.config) == [1]


def test_what_no_log_takes_is_refused(broker: MosquittoServer, tmp_path: Path) -> None:
    with (
        run_gateway(tmp_path, broker.port, {"limits": {"packet": "2MiB"}}) as gateway,
        client(gateway.port) as publisher,
    ):
        declare(gateway, stream())
        large = payload(1, padding=1_000_000)
        assert publisher.publish("home/w7/pulse", large, qos=1).reason == 0x97
        assert not publisher.publish("home/w7/motion", large, qos=1).reason & 0x80
        publisher.publish("home/w7/pulse", payload(2, padding=999_900), qos=1)
        wait_for_records(gateway.config, 1)
        assert numbers(gateway.config) == [2]


@VERSIONS
def test_acknowledgements_wait_for_the_log_and_keep_their_order(
    broker: MosquittoServer, tmp_path: Path, version: int
) -> None:
    with (
        recording(tmp_path, broker, acknowledge="recorded") as gateway,
        client(gateway.port) as reader,
        client(gateway.port, version=version) as publisher,
    ):
        reader.subscribe("home/#", qos=0)
        with stuck(gateway.config):
            for number in range(1, 9):
                topic = "home/w7/pulse" if number != 5 else "home/w7/motion"
                publisher.send(
                    Publish.of(topic, payload(number), qos=1 + number % 2, packet_id=number)
                )
            # Deliveries wait for nothing, but for those of QoS 2 the broker waits for PUBREL;
            # of the answers none comes before its turn.
            assert len(reader.messages(4)) == 4
            with pytest.raises(TimeoutError):
                publisher.expect(Puback, 0.5)
        answered = [publisher.expect_answer(number).packet_id for number in range(1, 9)]
        assert answered == list(range(1, 9))
        assert numbers(gateway.config) == [1, 2, 3, 4, 6, 7, 8]


def test_answers_come_in_the_order_of_messages(broker: MosquittoServer, tmp_path: Path) -> None:
    with (
        recording(tmp_path, broker, acknowledge="recorded") as gateway,
        client(gateway.port) as publisher,
    ):
        for number in range(1, 51):
            topic = "home/w7/pulse" if number % 3 else "home/w7/motion"
            publisher.send(Publish.of(topic, payload(number), qos=1, packet_id=number))
        assert [publisher.expect(Puback).packet_id for _ in range(50)] == list(range(1, 51))


def test_an_answer_that_would_come_too_late_never_comes(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    message = Publish.of("home/w7/pulse", payload(1), qos=1, packet_id=7)
    with recording(tmp_path, broker, acknowledge="recorded", timeout="1s") as gateway:
        with stuck(gateway.config):
            first = RawClient(gateway.port)
            first.connect("sender", clean=False, expiry=600)
            first.send(message)
            first.wait_closed(10)
            assert not any(isinstance(it, Puback) for it in first.packets)
        with client(gateway.port, "sender", clean=False, expiry=600) as again:
            message.first |= 0x08
            again.send(message)
            assert again.expect(Puback).packet_id == 7
        assert set(numbers(gateway.config)) == {1}
        assert len(numbers(gateway.config)) in {1, 2}


@pytest.mark.parametrize("qos", [1, 2])
def test_a_killed_gateway_loses_nothing_that_it_acknowledged(
    broker: MosquittoServer, tmp_path: Path, qos: int
) -> None:
    count = 1_500
    process = make_process(tmp_path, broker.port, recording={"acknowledge": "recorded"})
    apply(process.config, stream())
    publisher = Resender(process.port, "home/w7/pulse", payload, qos=qos)
    with process:
        for kill in (300, 700, 1_100):
            publisher.send_until(kill, count)
            process.kill()
            assert publisher.acknowledged <= set(numbers(process.config))
            process.start()
        publisher.send_until(count, count)
    held = numbers(process.config)
    assert set(held) == set(range(count))
    # Only what was on its way at a kill can be there twice.
    assert len(held) <= count + 3 * WINDOW


@pytest.mark.parametrize(("overflow", "qos"), [("shed", 0), ("shed-all", 1)])
def test_a_stuck_log_stops_no_delivery_where_it_may_shed(
    broker: MosquittoServer, tmp_path: Path, overflow: str, qos: int
) -> None:
    count = 400
    before = left_out("shed")
    with (
        recording(tmp_path, broker, overflow=overflow, buffer="64KiB") as gateway,
        client(gateway.port) as reader,
        client(gateway.port) as publisher,
    ):
        reader.subscribe("home/#", qos=0)
        with stuck(gateway.config):
            for number in range(count):
                publisher.publish("home/w7/pulse", payload(number, padding=1_000), qos=qos)
            assert len(reader.messages(count)) == count
            assert gateway.gateway.recorder.buffered < 64 * 1024 + 2_000
        publisher.publish("home/w7/motion", b"", qos=1)
        wait_until(lambda: gateway.gateway.recorder.buffered == 0)
        held = numbers(gateway.config)
        assert held == list(range(len(held)))
        assert 40 < len(held) < 60
        assert left_out("shed") == before + count - len(held)
        # With room again, all is recorded again.
        publisher.publish("home/w7/pulse", payload(count), qos=qos)
        wait_until(lambda: numbers(gateway.config)[-1] == count)


@pytest.mark.parametrize(("overflow", "qos"), [("wait", 0), ("wait", 1), ("shed", 1)])
def test_a_stuck_log_holds_up_its_publishers_alone(
    broker: MosquittoServer, tmp_path: Path, overflow: str, qos: int
) -> None:
    count = 400
    with (
        recording(tmp_path, broker, overflow=overflow, buffer="64KiB") as gateway,
        client(gateway.port) as reader,
        client(gateway.port) as publisher,
        client(gateway.port) as other,
    ):
        publisher.socket.settimeout(SOON)
        reader.subscribe("home/#", qos=0)
        with stuck(gateway.config):
            for number in range(count):
                message = payload(number, padding=1_000)
                packet_id = number % 90 + 1 if qos else 0
                if qos and number >= 90:
                    break
                publisher.send(Publish.of("home/w7/pulse", message, qos=qos, packet_id=packet_id))
            wait_until(lambda: gateway.gateway.recorder.buffered >= 64 * 1024)
            assert gateway.gateway.recorder.buffered < 64 * 1024 + 2_000
            assert len(reader.messages(40)) < 60
            for number in range(100):
                other.publish("home/w7/motion", payload(number), qos=1)
            assert len(reader.messages(100)) == 100
            assert gateway.gateway.recorder.buffered < 64 * 1024 + 2_000
        expected = count if not qos else 90
        wait_for_records(gateway.config, expected)
        assert numbers(gateway.config) == list(range(expected))


def test_a_log_out_of_reach_is_tried_again(broker: MosquittoServer, tmp_path: Path) -> None:
    with recording(tmp_path, broker) as gateway, client(gateway.port) as publisher:
        folder = gateway.config.pipeline.event_log
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.write_text("not a folder")
        publisher.publish("home/w7/pulse", payload(1), qos=1)
        wait_until(lambda: gateway.gateway.recorder.check() is not None)
        publisher.publish("home/w7/pulse", payload(2), qos=1)
        folder.unlink()
        wait_for_records(gateway.config, 2)
        assert numbers(gateway.config) == [1, 2]
        wait_until(lambda: gateway.gateway.recorder.check() is None)


def test_what_waits_is_written_before_the_end(broker: MosquittoServer, tmp_path: Path) -> None:
    with recording(tmp_path, broker, delay="5s") as gateway, client(gateway.port) as publisher:
        for number in range(20):
            publisher.publish("home/w7/pulse", payload(number), qos=1)
        assert records(gateway.config) == []
    assert numbers(gateway.config) == list(range(20))


@pytest.mark.parametrize("delay", [None, 1])
def test_a_will_is_recorded_when_it_is_sent(
    broker: MosquittoServer, tmp_path: Path, delay: int | None
) -> None:
    will = Will("home/w7/pulse", payload(1), properties=Properties(will_delay=delay))
    with recording(tmp_path, broker) as gateway, client(gateway.port) as reader:
        reader.subscribe("home/#", qos=0)
        with client(gateway.port, will=will, expiry=60):
            pass  # whoever leaves in order has no will
        sender = RawClient(gateway.port)
        sender.connect("sender", will=will, expiry=60)
        sender.vanish()
        assert reader.texts(1) == [("home/w7/pulse", payload(1))]
        wait_for_records(gateway.config, 1)
        time.sleep(QUIET)
        assert numbers(gateway.config) == [1]


def test_a_will_with_purposes_of_its_own_is_left_out(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    own = Properties(user=(("purpose-aip", "treatment"),))
    with recording(tmp_path, broker) as gateway, client(gateway.port) as publisher:
        sender = RawClient(gateway.port)
        sender.connect("sender", will=Will("home/w7/pulse", payload(1), properties=own))
        sender.vanish()
        wait_until(lambda: "sender" not in gateway.gateway.clients)
        publisher.publish("home/w7/pulse", payload(2), qos=1)
        wait_for_records(gateway.config, 1)
        time.sleep(QUIET)
        assert numbers(gateway.config) == [2]


def test_messages_of_the_gateway_itself_are_recorded(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with recording(tmp_path, broker) as gateway, client(gateway.port) as reader:
        reader.subscribe("home/#", qos=0)
        send = gateway.gateway.publisher.send
        assert gateway.do(lambda: send("home/w7/pulse", payload(1), b"", lambda: None))
        assert reader.texts(1) == [("home/w7/pulse", payload(1))]
        wait_for_records(gateway.config, 1)
        assert numbers(gateway.config) == [1]


def test_several_gateways_share_a_log(broker: MosquittoServer, tmp_path: Path) -> None:
    shared = {"pipeline": {"event_log": str(tmp_path / "log")}}
    with (
        run_gateway(tmp_path / "a", broker.port, **shared) as one,
        run_gateway(tmp_path / "b", broker.port, **shared) as two,
        client(one.port) as first,
        client(two.port) as second,
    ):
        declare(one, stream())
        declare(two, stream())
        for number in range(200):
            first.publish("home/w7/pulse", payload(2 * number), qos=1)
            second.publish("home/w8/pulse", payload(2 * number + 1), qos=1)
        held = wait_for_records(one.config, 400)
        assert [it.offset for it in held] == list(range(400))
        assert sorted(numbers(one.config)) == list(range(400))
