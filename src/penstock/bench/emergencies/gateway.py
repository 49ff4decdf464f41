"""What policies and emergencies cost in the gateway: the set-ups of the case study.

Method:
- A real Mosquitto, a real gateway process with the nursing home's definitions, and clients
  in this process, all on this machine. Target: 300 patients, 60 staff, 60 relatives, 6
  specialists, 300 wearable sensors, 3 room monitors. Extreme: five times as many. Staff and
  specialists subscribe to all physiological data, so that the gateway decides on each
  message once for each of them; who may not read it gets nothing.
- Publications that are refused because the machine is too busy to detect are counted
  (`refused`): figures with more than none of them are worth nothing.
- Both run at 60 publications a second, as in the case study: temperatures, respiratory
  rates, saturations (one in fifty a symptom), rooms. `publish` and `delivery` are the times
  of the gateway's decisions (see `timed_gateway`), `transmission` is from the moment that a
  publication was due to its arrival at a reader, `acknowledged` to its PUBACK (QoS 1, after
  the step is durable). Times are by the clock, and of the processor alone (`cpu_…`), which
  is what growth compares: other work on the machine does not count there.
- `flood`: the target's clients, publications without a pause; packets are all that the
  gateway decided on, in and out.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Self

from penstock.bench.load.generator import raise_descriptor_limit
from penstock.components import MosquittoServer, processes
from penstock.definitions import read_text
from penstock.model.document import Document
from penstock.mqtt import V5, Connack, Connect, Puback, Publish, Reader, Sender, Suback, Subscribe
from penstock.mqtt import Subscription as Wanted
from penstock.mqtt.reasons import FAILURE
from penstock.store.checked import CheckedDefinitions
from penstock.store.database import Database
from penstock.store.definitions import Definitions

SETUPS: Final = {"target": 1, "extreme": 5}
PEOPLE: Final = {"patient": 300, "medical_personnel": 60, "relative": 60, "external_specialist": 6}
MONITORS: Final = 3
RATE: Final = 60
TREATED: Final = 20
FLOOD_WINDOW: Final = 8
PARTS: Final = ("events.yaml", "plans.yaml", "policies.yaml")
GOALS: Final = {
    "publish_p99_us": 1000,
    "delivery_p99_us": 200,
    "packets_per_second": 5000,
    "growth": 1.3,
}
FILTERS: Final = {
    "patient": ("warning", "closecontact", "result", "bulletin"),
    "medical_personnel": ("physiological/#", "location", "warning", "closecontact", "result"),
    "relative": ("bulletin",),
    "external_specialist": ("physiological/#",),
}


def population(factor: int) -> list[Document]:
    """Return the definitions of a home of some size."""
    draw = random.Random(factor)
    folder = files("penstock.demo").joinpath("nursing_home")
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


class TimedGateway:
    """The gateway of `timed_gateway`, for as long as the `with` block lasts."""

    def __init__(self, folder: Path, broker_port: int, documents: Iterable[Document]) -> None:
        self.port = processes.free_port()
        self._folder = folder
        self._report = folder / "report.json"
        folder.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{folder / 'penstock.db'}"
        with Database.open(url) as database:
            checked = CheckedDefinitions(Definitions(database))
            checked.apply(list(documents), actor="bench", reason="rules of a measurement")
        settings = {
            "data": str(folder),
            "log": {"level": "warning"},
            "monitor": {"enabled": False},
            "store": {"url": url},
            "broker": {"mode": "external", "host": "127.0.0.1", "port": broker_port},
            "gateway": {
                "listeners": {"mqtt": {"port": self.port}},
                "authentication": {"relay": True},
                "limits": {"connect_timeout": "60s"},
            },
        }
        (folder / "penstock.yaml").write_text(json.dumps(settings))

    def __enter__(self) -> Self:
        module = "penstock.bench.emergencies.timed_gateway"
        self._process = processes.start(
            [sys.executable, "-m", module, str(self._folder / "penstock.yaml"), str(self._report)],
            log=self._folder / "gateway.log",
            ready=lambda: processes.accepts(self.port),
        )
        return self

    def __exit__(self, *_: object) -> None:
        processes.stop(self._process)

    def begin(self) -> None:
        """Let the gateway forget what it noted."""
        os.kill(self._process.pid, signal.SIGUSR1)

    async def report(self) -> dict[str, Any]:
        """Return what the gateway noted since `begin`."""
        self._report.unlink(missing_ok=True)
        os.kill(self._process.pid, signal.SIGUSR2)
        while not self._report.exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
        found: dict[str, Any] = json.loads(self._report.read_text())
        return found


@dataclass
class Client:
    """One connection."""

    name: str
    writer: asyncio.StreamWriter
    trips: list[float] = field(default_factory=list)
    acknowledged: list[float] = field(default_factory=list)
    due: dict[int, float] = field(default_factory=dict)
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FLOOD_WINDOW))
    number: int = 0

    def publish(self, topic: str, payload: dict[str, Any], due: float) -> None:
        """Send a message with QoS 1 that tells when it was due."""
        self.number = self.number % 0xFFFF + 1
        self.due[self.number] = due
        data = json.dumps({**payload, "due": due}).encode()
        self.writer.write(Publish.of(topic, data, qos=1, packet_id=self.number).encode(V5))


class Crowd:
    """All clients of a home."""

    def __init__(self, port: int, factor: int) -> None:
        self._port = port
        self._factor = factor
        self._draw = random.Random(factor)
        self._tasks: list[asyncio.Task[None]] = []
        self.clients: dict[str, Client] = {}
        self.refused = 0
        self.patients = PEOPLE["patient"] * factor

    async def connect(self, *, readers: bool = True) -> None:
        """Connect and subscribe all."""
        names = [(f"sensor-{number}", ()) for number in range(self.patients)]
        names += [(f"room-{number}", ()) for number in range(MONITORS)]
        if readers:
            for group, count in PEOPLE.items():
                names += [
                    (f"{group}-{number}", FILTERS[group])  # type: ignore[misc]
                    for number in range(count * self._factor)
                ]
        for name, filters in names:
            await self._connect(name, filters)

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
                return room, "location", {"pid": pid, "location": f"room-{draw.randrange(40)}"}

    async def play(self, rate: float, seconds: float) -> None:
        """Publish at a rate, each message when it is due."""
        began = time.perf_counter()
        for number in range(int(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            client, topic, payload = self.message()
            client.publish(topic, payload, due)

    async def flood(self, seconds: float) -> int:
        """Publish as fast as the acknowledgements come; return how many."""
        deadline = time.perf_counter() + seconds
        sent = 0
        senders = [it for it in self.clients.values() if it.name.startswith("sensor-")][:50]

        async def push(client: Client) -> None:
            nonlocal sent
            number = client.name.rpartition("-")[2]
            while time.perf_counter() < deadline:
                await client.room.acquire()
                body = {"pid": f"patient-{number}", "temperature": 36.5}
                client.publish("physiological/temperature", body, time.perf_counter())
                sent += 1

        await asyncio.gather(*(push(it) for it in senders))
        return sent

    def forget(self) -> None:
        """Begin to note times anew."""
        for client in self.clients.values():
            client.trips.clear()
            client.acknowledged.clear()

    async def _connect(self, name: str, filters: Iterable[str]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(Connect(name, username=name, password=b"x", keep_alive=600).encode(V5))
        client = self.clients[name] = Client(name, writer)
        packets = Reader(Sender.SERVER, version=V5)
        await _until(reader, packets, Connack)
        wanted = tuple(Wanted(it, 0) for it in filters)
        if wanted:
            writer.write(Subscribe(1, wanted).encode(V5))
            await _until(reader, packets, Suback)
        self._tasks.append(asyncio.create_task(self._listen(client, reader, packets)))

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
                        client.trips.append(now - json.loads(packet.payload)["due"])


async def _until(reader: asyncio.StreamReader, packets: Reader, kind: type) -> None:
    while True:
        packets.feed(await reader.read(65_536))
        if any(isinstance(it, kind) for it in packets.packets()):
            return


def _spread(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    if not ordered:
        return {"count": 0}
    return {
        "count": len(ordered),
        "mean_ms": round(sum(ordered) / len(ordered) * 1e3, 2),
        "median_ms": round(ordered[len(ordered) // 2] * 1e3, 2),
        "p99_ms": round(ordered[int(0.99 * (len(ordered) - 1))] * 1e3, 2),
    }


async def _measure(folder: Path, broker_port: int, factor: int, seconds: float) -> dict[str, Any]:
    with TimedGateway(folder, broker_port, population(factor)) as gateway:
        crowd = Crowd(gateway.port, factor)
        try:
            await crowd.connect()
            await crowd.play(RATE, seconds / 4)
            await asyncio.sleep(0.5)
            crowd.forget()
            gateway.begin()
            await crowd.play(RATE, seconds)
            await asyncio.sleep(0.5)
            found = await gateway.report()
            clients = crowd.clients.values()
            found["transmission"] = _spread([it for client in clients for it in client.trips])
            found["acknowledged"] = _spread([it for one in clients for it in one.acknowledged])
            found["refused"] = crowd.refused
            if factor == 1:
                gateway.begin()
                await crowd.flood(seconds / 2)
                await asyncio.sleep(1.0)
                found["flood"] = _throughput(await gateway.report())
                found["flood"]["refused"] = crowd.refused - found["refused"]
        finally:
            await crowd.close()
        if factor == 1:
            alone = Crowd(gateway.port, factor)
            try:
                await alone.connect(readers=False)
                gateway.begin()
                await alone.flood(seconds / 2)
                found["flood_without_readers"] = _throughput(await gateway.report())
                found["flood_without_readers"]["refused"] = alone.refused
            finally:
                await alone.close()
        return found


def _throughput(report: dict[str, Any]) -> dict[str, Any]:
    counts = [report[part]["count"] for part in ("publish", "delivery")]
    return {
        "publications_per_second": round(counts[0] / report["seconds"]),
        "packets_per_second": round(sum(counts) / report["seconds"]),
        **report,
    }


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure both set-ups."""
    raise_descriptor_limit(65_536)
    seconds = 6.0 if quick else 30.0
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, factor in SETUPS.items():
            place = Path(folder) / name
            with MosquittoServer(place / "broker") as broker:
                found[name] = asyncio.run(_measure(place / "gateway", broker.port, factor, seconds))
    growth = {
        part: round(found["extreme"][part]["cpu_mean_us"] / found["target"][part]["cpu_mean_us"], 2)
        for part in ("publish", "delivery")
    }
    return {"goals": GOALS, "growth": growth, **found}
