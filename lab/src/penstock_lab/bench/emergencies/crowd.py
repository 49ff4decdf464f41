"""The people and devices of a nursing home as clients of a gateway, by the hundred.

Rules that hold here:
- One process holds all clients; each is a connection of its own, named as its user.
- A message tells when it was due, so that whoever gets it knows how long it took. No two are
  due at the same moment: it names them, too.
- Of each group every gateway has an equal share.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final

from penstock.definitions import read_text
from penstock.model.document import Document
from penstock.mqtt import (
    V5,
    Connack,
    Connect,
    Puback,
    Publish,
    Reader,
    RequestedSubscription,
    Sender,
    Suback,
    Subscribe,
)
from penstock.mqtt.codes import FAILURE

PEOPLE: Final = {"patient": 300, "medical_personnel": 60, "relative": 60, "external_specialist": 6}
MONITORS: Final = 3
TREATED: Final = 20
FLOOD_WINDOW: Final = 8
ROOMS: Final = 40
PARTS: Final = ("events.yaml", "plans.yaml", "policies.yaml")
FILTERS: Final = {
    "patient": ("warning", "closecontact", "result", "bulletin"),
    "medical_personnel": ("physiological/#", "location", "warning", "closecontact", "result"),
    "relative": ("bulletin",),
    "external_specialist": ("physiological/#",),
}
_PATIENCE: Final = 60.0
USUAL: Final = {"temperature": 36.5, "respiratory": 15.0, "saturation": 98.0}


def population(factor: int) -> list[Document]:
    """Return the definitions of a home of some size."""
    draw = random.Random(factor)
    folder = files("penstock_lab.demo").joinpath("nursing_home")
    texts = [folder.joinpath(name).read_text("utf-8") for name in PARTS]
    documents = [it for text in texts for it in read_text(text).documents]
    people = {
        group: [f"{group}-{number}" for number in range(count * factor)]
        for group, count in PEOPLE.items()
    }
    patients = people["patient"]
    people["sensor"] = [f"sensor-{number}" for number in range(len(patients))]
    people["proximity_sensor"] = [f"room-{number}" for number in range(MONITORS)]
    people |= {"guardian": [], "laboratory": []}
    for group, names in people.items():
        documents.append(Document("group", group, {"members": [f"user:{it}" for it in names]}))
    for number, name in enumerate(people["sensor"]):
        documents.append(_describe(name, {"wearer": patients[number]}, patients[number]))
    documents += [
        _describe(name, {"pSet": draw.sample(patients, TREATED)})
        for name in people["medical_personnel"]
    ]
    documents += [
        _describe(name, {"relativeOf": draw.sample(patients, 1)}) for name in people["relative"]
    ]
    return documents


def _describe(user: str, values: dict[str, Any], behalf: str | None = None) -> Document:
    body: dict[str, Any] = {"values": values}
    if behalf is not None:
        body["on_behalf_of"] = behalf
    return Document("attributes", f"user:{user}", body)


@dataclass
class Client:
    """One connection."""

    name: str
    writer: asyncio.StreamWriter
    place: int = 0
    """Which of the gateways it is connected to."""
    arrivals: list[tuple[float, float]] = field(default_factory=list)
    """When messages were due, and when they were here."""
    acknowledged: list[float] = field(default_factory=list)
    due: dict[int, float] = field(default_factory=dict)
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FLOOD_WINDOW))
    number: int = 0

    @property
    def trips(self) -> list[float]:
        """How long messages took."""
        return [arrived - due for due, arrived in self.arrivals]

    def publish(self, topic: str, payload: dict[str, Any], due: float) -> None:
        """Send a message with QoS 1 that tells when it was due."""
        self.number = self.number % 0xFFFF + 1
        self.due[self.number] = due
        data = json.dumps({**payload, "due": due}).encode()
        self.writer.write(Publish.of(topic, data, qos=1, packet_id=self.number).encode(V5))


class Crowd:
    """All clients of a home."""

    def __init__(self, ports: Sequence[int], factor: int, broker_port: int = 0) -> None:
        self._ports = ports
        self._broker_port = broker_port
        self._factor = factor
        self._draw = random.Random(factor)
        self._tasks: list[asyncio.Task[None]] = []
        self.clients: dict[str, Client] = {}
        self.sent: dict[float, int] = {}
        """Through which gateway a message was published, by when it was due."""
        self.late: list[float] = []
        """How late messages were sent: what the clients themselves add."""
        self.observer: Client | None = None
        """Who sees at the broker itself what has got there."""
        self.refused = 0
        self.patients = PEOPLE["patient"] * factor

    async def connect_publishers(self) -> None:
        """Connect all who publish."""
        names = [f"sensor-{number}" for number in range(self.patients)]
        for name in [*names, *(f"room-{number}" for number in range(MONITORS))]:
            await self._connect(name, ())

    async def observe(self) -> None:
        """Let somebody at the broker see all messages, before anybody else does.

        Mosquitto serves exact filters before wildcards, and each filter's first client first.
        """
        topics = [*(f"physiological/{word}" for word in USUAL), "location"]
        self.observer = await self._connect("observer", topics, self._broker_port)

    async def connect_readers(self) -> None:
        """Connect and subscribe all who read."""
        for group, count in PEOPLE.items():
            for number in range(count * self._factor):
                await self._connect(f"{group}-{number}", FILTERS[group])

    async def close(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        for client in self.clients.values():
            client.writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def message(self) -> tuple[Client, str, dict[str, Any]]:
        """Draw what somebody publishes next."""
        draw = self._draw
        number = draw.randrange(self.patients)
        sensor, pid = self.clients[f"sensor-{number}"], f"patient-{number}"
        odd = draw.random() < 0.02  # noqa: PLR2004 (one in fifty)
        match draw.randrange(4):
            case 0:
                body = {"pid": pid, "temperature": 38.5 if odd else 36.0 + draw.random()}
                return sensor, "physiological/temperature", body
            case 1:
                body = {"pid": pid, "respiratory": 27.0 if odd else 14.0 + draw.random()}
                return sensor, "physiological/respiratory", body
            case 2:
                body = {"pid": pid, "saturation": 93.0 if odd else 96.0 + draw.random()}
                return sensor, "physiological/saturation", body
            case _:
                room = self.clients[f"room-{draw.randrange(MONITORS)}"]
                return room, "location", {"pid": pid, "location": f"room-{draw.randrange(ROOMS)}"}

    async def play(self, rate: float, seconds: float) -> None:
        """Publish at a rate, each message when it is due."""
        began = time.perf_counter()
        for number in range(int(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            client, topic, payload = self.message()
            self.sent[due] = client.place
            self.late.append(time.perf_counter() - due)
            client.publish(topic, payload, due)

    async def warm_up(self) -> None:
        """Let each sensor publish each vital sign once, and wait for all answers."""
        lined_up = asyncio.Semaphore(50)

        async def begin(number: int) -> None:
            client = self.clients[f"sensor-{number}"]
            async with lined_up:
                for word, value in USUAL.items():
                    client.room = asyncio.Semaphore(0)  # the answer makes room
                    body = {"pid": f"patient-{number}", word: value}
                    client.publish(f"physiological/{word}", body, time.perf_counter())
                    await client.room.acquire()

        everybody = asyncio.gather(*(begin(number) for number in range(self.patients)))
        await asyncio.wait_for(everybody, _PATIENCE)

    async def flood(self, seconds: float) -> None:
        """Publish as fast as the acknowledgements come."""
        senders = [it for it in self.clients.values() if it.name.startswith("sensor-")][:50]

        deadline = time.perf_counter() + seconds

        async def push(client: Client) -> None:
            client.room = asyncio.Semaphore(FLOOD_WINDOW)
            number = client.name.rpartition("-")[2]
            while time.perf_counter() < deadline:
                await client.room.acquire()
                body = {"pid": f"patient-{number}", "temperature": 36.5}
                client.publish("physiological/temperature", body, time.perf_counter())

        await asyncio.gather(*(push(it) for it in senders))

    async def drain(self) -> None:
        """Wait until all answers are there, and give deliveries some time; not for ever."""
        until = time.perf_counter() + _PATIENCE
        while (  # noqa: ASYNC110 - answers come to all clients
            any(it.due for it in self.clients.values()) and time.perf_counter() < until
        ):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)

    def forget(self) -> None:
        """Begin to note times anew."""
        self.sent.clear()
        self.late.clear()
        for client in self.clients.values():
            client.arrivals.clear()
            client.acknowledged.clear()

    async def _connect(self, name: str, filters: Iterable[str], port: int = 0) -> Client:
        number = name.rpartition("-")[2]
        place = int(number) % len(self._ports) if number.isdecimal() else 0
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self._ports[place])
        writer.write(Connect(name, username=name, password=b"x", keep_alive=600).encode(V5))
        client = self.clients[name] = Client(name, writer, place)
        packets = Reader(Sender.SERVER, version=V5)
        await _until(reader, packets, Connack)
        wanted = tuple(RequestedSubscription(it, 0) for it in filters)
        if wanted:
            writer.write(Subscribe(1, wanted).encode(V5))
            await _until(reader, packets, Suback)
        self._tasks.append(asyncio.create_task(self._listen(client, reader, packets)))
        return client

    async def _listen(self, client: Client, reader: asyncio.StreamReader, packets: Reader) -> None:
        while data := await reader.read(65_536):
            now = time.perf_counter()
            packets.feed(data)
            while batch := packets.packets():
                for packet in batch:
                    if isinstance(packet, Puback):
                        self.refused += packet.reason >= FAILURE
                        client.acknowledged.append(now - client.due.pop(packet.packet_id, now))
                        client.room.release()
                    elif isinstance(packet, Publish) and b'"due"' in packet.payload:
                        client.arrivals.append((json.loads(packet.payload)["due"], now))


async def _until(reader: asyncio.StreamReader, packets: Reader, kind: type) -> None:
    while True:
        packets.feed(await reader.read(65_536))
        if any(isinstance(it, kind) for it in packets.packets()):
            return
