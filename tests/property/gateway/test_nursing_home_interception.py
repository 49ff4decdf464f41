"""Statement 1 of the case study's appendix: every packet is intercepted, on the wire.

Random packets on random topics go through a real gateway: each that could be an event is
offered to detection once, whoever publishes it and however it is sent; it takes effect once
where its publisher may write it, and not at all where not. What could be no event is never
offered.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from penstock.cep.context import decode_snapshot
from penstock.cep.engine import Engine, PreparedStep
from penstock.cep.event_binding import Packet
from penstock.components import MosquittoServer
from penstock.mqtt import V3, V5, ReasonCode
from penstock.mqtt.codes import FAILURE
from tests.support.gateway.harness import GatewayThread, run_gateway, write_config
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.gateway.ward import define, login
from tests.support.nursing_home.program import FOLDER
from tests.support.scale import scaled

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

PACKETS: Final = 600
USERS: Final = ("sensor-1", "room-1", "laboratory", "physician-1", "stranger")
LEVELS: Final = ("bell", "x", "physiological", "temperature", "result", "location")
PLAIN: Final = ("prescription", "closecontact", "physiological/saturation", "treatment")
SIGNS: Final = {"physiological/temperature", "physiological/respiratory"}
# A type whose filters have wildcards; whoever wants to may ring some of the bells.
BELLS: Final = """
kind: event
name: Bell
attributes: {pid: string}
packet: {filters: ["bell/#", "+/bell"], set: {pid: o.patientId}}
---
kind: policy
name: anyone/write-bell
subject: anyone
filter: bell/#
allow: write
"""
TYPES: Final = {
    "result": "Result",
    "prescription": "Prescription",
    "location": "Location",
    "physiological/temperature": "Temperature",
    "physiological/respiratory": "RespiratoryRate",
    "physiological/saturation": "EstimatedSpO2",
    "closecontact": "ContactNotice",
}


@dataclass
class Seen:
    """What has come to detection: offered by clients, taking effect, and from actions."""

    offered: list[tuple[str, set[str]]] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    acted: int = 0


class Message(NamedTuple):
    """A message, whom it is about, and whether it can be read."""

    topic: str
    payload: bytes
    patient: str | None


def find_types(topic: str) -> set[str]:
    """Say what a packet could be, by its topic."""
    levels = topic.split("/")
    found = {TYPES[topic]} if topic in TYPES else set()
    if levels[0] == "bell" or (len(levels) == 2 and levels[1] == "bell"):
        found.add("Bell")
    return found


def may_write(user: str, message: Message) -> bool:
    """Say what policies say."""
    topic, patient = message.topic, message.patient
    if topic.split("/")[0] == "bell":
        return True
    if user == "sensor-1":
        return topic in {*SIGNS, "physiological/saturation"} and patient == "patient-1"
    if user == "physician-1":
        theirs = patient in {"patient-1", "patient-2"}
        return topic in {"prescription", "treatment", "bulletin"} and theirs
    return (user, topic) in {("room-1", "location"), ("laboratory", "result")}


def draw_message(draw: random.Random) -> Message:
    topic = draw.choice(
        [draw.choice(PLAIN), draw.choice(list(TYPES)), *["/".join(draw.choices(LEVELS, k=it))
         for it in (1, 2, 2, 3)]]
    )  # fmt: skip
    if draw.random() < 0.2:
        return Message(topic, draw.choice([b"", b"nonsense", b"[1]", b"{}"]), None)
    patient = f"patient-{draw.randint(1, 3)}"
    said = {
        "pid": patient,
        "temperature": draw.choice([36.5, 39.0]),
        "respiratory": draw.choice([16, 40]),
        "saturation": draw.choice([97, 80]),
        "location": draw.choice(["hall", "garden"]),
        "result": draw.random() < 0.5,
        "testDate": f"2027-01-{draw.randint(10, 28)}T08:00:00Z",
        "reqId": draw.randrange(5),
    }
    return Message(topic, json.dumps(said).encode(), patient)


@pytest.fixture
def home(broker: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    passwords = write_passwords(tmp_path / "passwords", dict.fromkeys(USERS, "x"))
    chosen: dict[str, Any] = {
        "open_mode": False,
        "authentication": {"passwords": str(passwords)},
        "emergencies": {"lease": "300s"},  # a busy machine is no reason to stop detecting
    }
    texts = [part.read_text(encoding="utf-8") for part in sorted(FOLDER.glob("*.yaml"))]
    define(write_config(tmp_path, broker.port, chosen), "\n---\n".join([*texts, BELLS]))
    with run_gateway(tmp_path, broker.port, chosen) as running:
        yield running


def find_engine(home: GatewayThread) -> Engine:
    engine = home.do(lambda: home.gateway.emergencies.detection.engine)
    assert engine is not None
    return engine


def look_on(home: GatewayThread, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Note what packets come to from now on."""
    engine, seen = find_engine(home), Seen()
    prepare, apply = engine.prepare, engine.apply

    def note_prepare(packet: Packet, at: int) -> PreparedStep:
        prepared = prepare(packet, at)
        if packet.depth == 0:
            names = {kind.name for kind, values, *_ in prepared.bound if values}
            seen.offered.append((packet.topic, names))
        return prepared

    def note_apply(packet: Packet, *rest: Any) -> Any:
        if packet.depth == 0:
            seen.taken.append(packet.topic)
        else:
            seen.acted += 1
        return apply(packet, *rest)

    monkeypatch.setattr(engine, "prepare", note_prepare)
    monkeypatch.setattr(engine, "apply", note_apply)
    return seen


def take_stock(home: GatewayThread, seen: Seen) -> tuple[Any, Seen]:
    """Return all that detection knows and decisions are made by; what was seen begins anew."""
    engine, board = find_engine(home), home.gateway.emergencies.detection.board
    ways = list(product(("covid", "pulmonary"), ("patient-1", "patient-2", "patient-3")))

    def look() -> tuple[Any, Seen]:
        noted = Seen(seen.offered, seen.taken, seen.acted)
        seen.offered, seen.taken, seen.acted = [], [], 0
        return (decode_snapshot(engine.save()), [board.current(*it) for it in ways]), noted

    return home.do(look)


class Sender:
    """A connected client that sends messages in one of many ways."""

    def __init__(self, client: RawClient, draw: random.Random) -> None:
        self._client = client
        self._draw = draw
        self._new = client.version == V5
        self._aliases: dict[int, str] = {}

    def choose(self, message: Message) -> tuple[Message, int | None]:
        """Return a message, or one on a topic that has a number already, and that number."""
        if self._aliases and self._draw.random() < 0.3:
            number = self._draw.choice(list(self._aliases))
            return message._replace(topic=self._aliases[number]), number
        return message, None

    def send(self, message: Message, number: int | None) -> int | None:
        """Send a message, by its topic's number if there is one; return what tells something."""
        draw, more = self._draw, {}
        topic = message.topic
        if number is not None:
            topic, more = "", {"topic_alias": number}
        elif self._new and draw.random() < 0.3:
            more = {"topic_alias": draw.randint(1, 3)}
            self._aliases[more["topic_alias"]] = topic
        qos, retain = draw.choice([0, 1, 1, 2]), draw.random() < 0.1
        answer = self._client.publish(topic, message.payload, qos=qos, retain=retain, **more)
        if answer is None:
            self._client.settle()  # what came before is dealt with
            return None
        return int(answer.reason) if self._new else None


@pytest.mark.parametrize("seed", range(scaled(2)))
def test_every_packet_that_could_be_an_event_is_offered_once_and_denied_ones_change_nothing(
    seed: int, home: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    seen = look_on(home, monkeypatch)
    counted = {"event": 0, "denied": 0, "other": 0}
    with ExitStack() as stack:
        clients = {
            (user, version): Sender(
                stack.enter_context(login(home.port, user, version=version)), draw
            )
            for user in USERS
            for version in (V3, V5)
        }
        before, _ = take_stock(home, seen)
        for _ in range(PACKETS):
            user, version = draw.choice(list(clients))
            client = clients[user, version]
            message, number = client.choose(draw_message(draw))
            types, allowed = find_types(message.topic), may_write(user, message)
            answer = client.send(message, number)
            after, noted = take_stock(home, seen)
            assert answer is None or (answer < FAILURE) is allowed
            if answer is not None and not allowed:
                assert answer == ReasonCode.NOT_AUTHORIZED
            complete = types if message.patient else set()
            assert noted.offered == ([(message.topic, complete)] if types else [])
            assert noted.taken == ([message.topic] if types and allowed else [])
            counted["event" if noted.taken else "denied" if types else "other"] += 1
            if noted.taken:
                assert after != before
            elif not noted.acted:  # what an action has published may come on its own account
                assert after == before
            before = after
    assert min(counted.values()) > PACKETS // 20, counted
