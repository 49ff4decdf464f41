"""The packets that leave the client, and what it makes of the answers."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from penstock.client import (
    NoAnswerError,
    NotationError,
    NotConnectedError,
    PurposeClient,
    Purposes,
    RefusedError,
)
from penstock.client.commands import read_affected, read_combined
from penstock.components import MosquittoServer
from penstock.mqtt import Publish, Subscribe, Unsubscribe
from tests.support.mqtt.tap import Tap

V3, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5
pytestmark = pytest.mark.needs("mosquitto")


@pytest.fixture
def make(tap: Tap) -> Iterator[Callable[..., PurposeClient]]:
    made: list[PurposeClient] = []

    def connect(
        version: MQTTProtocolVersion, api: CallbackAPIVersion = CallbackAPIVersion.VERSION2
    ) -> PurposeClient:
        client = PurposeClient(mqtt.Client(api, protocol=version))
        client.connect("127.0.0.1", tap.port)
        client.loop_start()
        made.append(client)
        return client

    yield connect
    for client in made:
        client.disconnect()
        client.loop_stop()


def both(function: Any) -> Any:
    return pytest.mark.parametrize("version", [V3, V5], ids=["3.1.1", "5"])(function)


Make = Callable[..., PurposeClient]


@both
def test_commands_leave_as_topics_with_qos_1(
    tap: Tap, make: Make, version: MQTTProtocolVersion
) -> None:
    client = make(version)
    client.reserve("home/#", aip=["marketing", "operational"], pip=["marketing/analytics"]).wait()
    client.release("home/+/power").wait()
    client.presubscribe("meter-7", "home/#", "operational").wait()
    client.presubscribe("meter-7", "home/#", None).wait()
    client.set("filter_hybrid", value=True).wait()
    client.set("hybrid_tag", value=False).wait()
    client.clear().wait()
    client.reset().wait()
    client.persist().wait()
    client.reload().wait()
    sent = tap.sent(Publish, 10)
    assert [(packet.topic, bytes(packet.payload)) for packet in sent] == [
        ("!RESERVE/home/HASH{marketing,operational|marketing/analytics}", b""),
        ("!RESERVE/home/PLUS/power{}", b""),
        ("!PBAC/PRESUB/meter-7/home/HASH{operational}", b""),
        ("!PBAC/PRESUB/meter-7/home/HASH{}", b""),
        ("!PBAC/SET/filter_hybrid", b"true"),
        ("!PBAC/SET/hybrid_tag", b"false"),
        ("!PBAC/CLEAR", b""),
        ("!PBAC/RESET", b""),
        ("!PBAC/PERSIST", b""),
        ("!PBAC/RELOAD", b""),
    ]
    assert {packet.qos for packet in sent} == {1}
    assert not any(packet.retain for packet in sent)


def test_an_old_client_writes_purposes_into_topics(tap: Tap, make: Make) -> None:
    client = make(V3)
    client.subscribe_with_purpose("home/+/power/#", "operational/billing", qos=1).wait()
    client.unsubscribe_with_purpose("home/+/power/#", "operational/billing").wait()
    client.send("home/power", b"3142", 1, retain=True, purposes=["a"], prohibited=["a/b"]).wait()
    client.send("home/power", b"1", qos=1, purposes=[]).wait()
    client.send("home/power", b"2", qos=1).wait()
    (subscribe,) = tap.sent(Subscribe)
    written = "!AP/home/PLUS/power/HASH{operational/billing}"
    assert [(one.filter, one.qos) for one in subscribe.subscriptions] == [(written, 1)]
    (unsubscribe,) = tap.sent(Unsubscribe)
    assert unsubscribe.filters == (written,)
    first, nobody, plain = tap.sent(Publish, 3)
    assert (first.topic, first.qos, first.retain) == ("!AIP/home/power{a|a/b}", 1, True)
    assert bytes(first.payload) == b"3142"
    assert nobody.topic == "!AIP/home/power{|}"
    assert plain.topic == "home/power"


def test_a_new_client_writes_purposes_into_user_properties(tap: Tap, make: Make) -> None:
    client = make(V5)
    client.subscribe_with_purpose("home/+/power/#", "operational/billing", qos=2).wait()
    client.unsubscribe_with_purpose("home/+/power/#", "operational/billing").wait()
    client.send("home/power", b"3142", 1, purposes=["a", "c"], prohibited=["a/b"]).wait()
    client.send("home/power", b"1", qos=1, purposes=[]).wait()
    client.send("home/power", b"2", qos=1).wait()
    (subscribe,) = tap.sent(Subscribe)
    assert [(one.filter, one.qos) for one in subscribe.subscriptions] == [("home/+/power/#", 2)]
    assert subscribe.properties.user == (("purpose-ap", "operational/billing"),)
    (unsubscribe,) = tap.sent(Unsubscribe)
    assert unsubscribe.filters == ("home/+/power/#",)
    first, nobody, plain = tap.sent(Publish, 3)
    assert first.topic == "home/power"
    assert first.properties.user + first.properties.reserved == (
        ("purpose-aip", "a"),
        ("purpose-aip", "c"),
        ("purpose-pip", "a/b"),
    )
    assert nobody.topic == "!AIP/home/power{|}"
    assert (plain.topic, plain.properties.user) == ("home/power", ())


def test_a_plain_broker_takes_commands_for_plain_topics(
    mosquitto: MosquittoServer, make: Make
) -> None:
    """The paper's listing; a second client sees what a broker without gateway makes of it."""
    seen: list[str] = []
    arrived = threading.Event()

    def hear(_: Any, __: Any, message: mqtt.MQTTMessage) -> None:
        seen.append(message.topic)
        if message.topic.startswith("home/"):
            arrived.set()

    witness = mqtt.Client(CallbackAPIVersion.VERSION2)
    witness.on_message = hear
    subscribed = threading.Event()
    witness.on_subscribe = lambda *_: subscribed.set()
    witness.connect("127.0.0.1", mosquitto.port)
    witness.subscribe("#", 1)
    witness.loop_start()
    assert subscribed.wait(10)

    client = PurposeClient(mqtt.Client(CallbackAPIVersion.VERSION2))
    client.connect("127.0.0.1", mosquitto.port, 60)
    client.reserve("home/#", aip=["marketing", "operational"], pip=["marketing/analytics"])
    client.subscribe_with_purpose("home/sensors/power/#", "operational/billing")
    client.send("home/sensors/power/392/total", b"3142")

    assert arrived.wait(10)
    client.disconnect()
    witness.disconnect()
    witness.loop_stop()
    assert seen == [
        "!RESERVE/home/HASH{marketing,operational|marketing/analytics}",
        "home/sensors/power/392/total",
    ]


@both
@pytest.mark.parametrize("api", list(CallbackAPIVersion))
def test_a_refused_subscription_names_filter_and_purpose(
    tap: Tap, make: Make, version: MQTTProtocolVersion, api: CallbackAPIVersion
) -> None:
    client = make(version, api)
    # The last byte of a SUBACK is the answer to its last filter.
    tap.answer = lambda data: data[:-1] + b"\x80" if data[0] == 0x90 else data
    receipt = client.subscribe_with_purpose("cars/#", "advertising")
    refused = "'cars/#' for the purpose 'advertising' was refused"
    with pytest.raises(RefusedError, match=refused) as caught:
        receipt.wait()
    told = caught.value
    assert (told.filter, told.purpose, told.code) == ("cars/#", "advertising", 0x80)
    assert receipt.error is told
    assert repr(receipt).endswith("refused>")


def test_the_reason_that_a_gateway_gives_is_told(tap: Tap, make: Make) -> None:
    client = make(V5)
    client.on_refused = None
    why = b"purpose advertising is prohibited"
    reason = b"\x1f" + len(why).to_bytes(2) + why

    def refuse(data: bytes) -> bytes:
        if data[0] == 0x40:
            body = data[2:4] + b"\x87" + bytes((len(reason),)) + reason
            return bytes((0x40, len(body))) + body
        return data

    tap.answer = refuse
    with pytest.raises(RefusedError, match="of 'a' was refused: purpose advertising is") as caught:
        client.reserve("a", ["x"]).wait()
    assert (caught.value.code, caught.value.reason) == (0x87, why.decode())


@both
def test_a_question_that_is_only_acknowledged_is_refused(
    make: Make, version: MQTTProtocolVersion
) -> None:
    client = make(version)
    client.on_refused = None
    asked = client.combined_reservations("home/power")
    with pytest.raises(RefusedError, match="the question '!PBAC/CRES/home/power' was refused: no"):
        asked.wait()


def test_an_answer_that_cannot_be_read_is_an_error(make: Make) -> None:
    """A plain broker answers with the question itself, where one subscribes to it."""
    client = make(V3)
    client.send("!PBAC/CRES/a", b"[]", qos=1, retain=True).wait()
    client.subscribe("!PBAC/CRES/a", 1)
    client.send("other", qos=1).wait()
    with pytest.raises(NoAnswerError, match="CRES/a' cannot be read"):
        client.combined_reservations("a").wait()


def test_answers_are_read_into_plain_values() -> None:
    given = b'{"topic": "a", "purposes": {"allow": ["x"], "prohibit": []}}'
    assert read_combined(given) == Purposes(("x",), ())
    assert read_combined(b'{"topic": "b", "purposes": null}') is None
    given = b'{"filter": "#", "reservations": {"a": {"allow": [], "prohibit": ["y"]}}}'
    assert read_affected(given) == {"a": Purposes((), ("y",))}


def test_refusals_that_nobody_waits_for_are_logged(
    tap: Tap, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    client = make(V3)
    tap.answer = lambda data: data[:-1] + b"\x80" if data[0] == 0x90 else data
    with caplog.at_level(logging.WARNING, "penstock.client"):
        client.subscribe_with_purpose("cars/#", "advertising")
        # Paho's thread reads the answers in order, and logs before it reads the next.
        client.unsubscribe_with_purpose("cars/#", "advertising").wait()
        client.send("other", qos=1).wait()
    assert "'cars/#' for the purpose 'advertising' was refused" in caplog.text


def test_refusals_that_somebody_waits_for_are_not_logged_too(tap: Tap, make: Make) -> None:
    client = make(V5)
    told: list[RefusedError] = []
    client.on_refused = told.append
    arrived = threading.Event()

    def refuse(data: bytes) -> bytes:
        if data[0] == 0x90:
            arrived.wait(5)
            return data[:-1] + b"\x80"
        return data

    tap.answer = refuse
    receipt = client.subscribe_with_purpose("cars/#", "advertising")
    threading.Timer(0.2, arrived.set).start()
    with pytest.raises(RefusedError):
        receipt.wait()
    client.send("other", qos=1).wait()
    assert not told


def test_a_filter_that_mqtt_forbids_is_named(make: Make) -> None:
    with pytest.raises(NotationError, match=r"'ward/#/x' .* cannot be sent"):
        make(V5).subscribe_with_purpose("ward/#/x", "treatment")


def test_an_answer_that_does_not_come_is_an_error(tap: Tap, make: Make) -> None:
    client = make(V3)
    tap.answer = lambda data: b"" if data[0] == 0x90 else data
    receipt = client.subscribe_with_purpose("a", "x")
    with pytest.raises(NoAnswerError, match=r"no answer to the subscription to 'a' .* 0\.2 s"):
        receipt.wait(0.2)
    assert not receipt.settled
    assert receipt.error is None
    tap.cut()
    with pytest.raises(NotConnectedError, match="ended before the subscription to 'a'"):
        receipt.wait()


def test_what_cannot_be_sent_is_an_error() -> None:
    client = PurposeClient(mqtt.Client(CallbackAPIVersion.VERSION2))
    with pytest.raises(NotConnectedError, match=r"no connection to 127\.0\.0\.1:1: "):
        client.connect("127.0.0.1", 1)
    with pytest.raises(NotConnectedError, match=r"subscription to 'a' .* could not be sent"):
        client.subscribe_with_purpose("a", "x")
    with pytest.raises(NotConnectedError, match="message to 'a' could not be sent"):
        client.send("a")


def test_a_reservation_made_before_connecting_is_sent_later(tap: Tap) -> None:
    client = PurposeClient(mqtt.Client(CallbackAPIVersion.VERSION2))
    receipt = client.reserve("a", ["x"])
    client.connect("127.0.0.1", tap.port)
    client.loop_start()
    receipt.wait()
    client.disconnect()
    client.loop_stop()
    assert tap.sent(Publish)[0].topic == "!RESERVE/a{x}"


@both
def test_everything_else_is_the_wrapped_client(
    tap: Tap, make: Make, version: MQTTProtocolVersion
) -> None:
    client = make(version)
    got: list[bytes] = []
    heard, done = threading.Event(), threading.Event()

    def hear(_: Any, __: Any, message: mqtt.MQTTMessage) -> None:
        got.append(bytes(message.payload))
        heard.set()

    client.on_message = hear
    client.on_subscribe = lambda *_: done.set()
    assert client.on_message is client.wrapped.on_message
    assert client.on_subscribe is not client.wrapped.on_subscribe
    client.user_data_set({"a": 1})
    assert client.wrapped.user_data_get() == {"a": 1}
    client.subscribe("plain", 1)
    assert done.wait(10)
    client.publish("plain", b"1", 1).wait_for_publish(10)
    assert heard.wait(10)
    assert got == [b"1"]
    assert client.is_connected()
    with pytest.raises(AttributeError, match="levitate"):
        client.levitate()


@both
def test_callbacks_of_the_user_hear_of_our_packets_too(
    tap: Tap, make: Make, version: MQTTProtocolVersion
) -> None:
    client = make(version)
    heard: list[str] = []
    # Set past the wrapper: it is found again when the next packet is sent.
    client.wrapped.on_publish = lambda *_: heard.append("publish")
    client.on_unsubscribe = lambda *_: heard.append("unsubscribe")
    client.reserve("a", ["x"]).wait()
    client.unsubscribe_with_purpose("a", "x").wait()
    client.unsubscribe_with_purpose("b", "x").wait()
    assert heard[:2] == ["publish", "unsubscribe"]


@both
def test_many_threads_get_the_receipts_of_their_own_packets(
    tap: Tap, make: Make, version: MQTTProtocolVersion
) -> None:
    client = make(version)
    client.on_refused = None
    problems: list[str] = []

    def work(number: int) -> None:
        for turn in range(25):
            client.reserve(f"t/{number}/{turn}", ["x"]).wait()
            client.subscribe_with_purpose(f"t/{number}/{turn}", "x").wait()
        problems.append("none")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == ["none"] * 8
    assert len({packet.topic for packet in tap.sent(Publish, 200)}) == 200


def test_the_client_needs_paho_alone() -> None:
    """Run in a process that can import the standard library, Paho and this package only."""
    script = textwrap.dedent(
        """
        import sys

        ALLOWED = {*sys.stdlib_module_names, "paho", "penstock", "__main__"}

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] not in ALLOWED:
                    raise ModuleNotFoundError(f"{name} is not installed here", name=name)

        sys.meta_path.insert(0, Blocker())
        sys.modules.pop("pydantic", None)
        import penstock.client
        import paho.mqtt.client as mqtt
        from paho.mqtt.enums import CallbackAPIVersion

        penstock.client.PurposeClient(mqtt.Client(CallbackAPIVersion.VERSION2))
        for name in ("pydantic", "click"):
            try:
                __import__(name)
            except ModuleNotFoundError:
                continue
            sys.exit(f"{name} could be imported: this test shows nothing")
        try:
            penstock.client.AsyncPurposeClient
        except ModuleNotFoundError as error:
            assert error.name == "aiomqtt", error
        else:
            sys.exit("aiomqtt could be imported: this test shows nothing")
        ours = sorted(name for name in sys.modules if name.startswith("penstock."))
        print(*ours)
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert all(
        name == "penstock.errors" or name.startswith("penstock.client")
        for name in run.stdout.split()
    ), run.stdout
