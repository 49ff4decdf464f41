"""What it costs that several gateways share detection: asking, telling, and taking over.

Method:
- A real Mosquitto and two real gateway processes on one store (SQLite), all on this machine,
  joined over TCP as gateways of different hosts are. The first one detects.
- `asked`: how long a message of the second gateway's client waits for the first one's
  decision, noted in the second gateway. Once for events that change no situation, and once
  for events that each do (`asked_transition`: the answer waits until all know).
- `known`: from a transition at the first gateway until every other gateway has said that it
  knows, noted in the first one.
- `trip`, `acknowledged`: from publishing to a reader's receipt, and to the PUBACK, for events
  at the gateway that detects and at its neighbour, in turns; `added_p50_ms` is the difference
  of the medians of `trip`.
- `flood`: events without a pause by twenty clients, eight on their way each, at the gateway that
  detects and at its neighbour; how many are acknowledged a second, and what each of the
  two processes works for one.
- `hand_over`: the first gateway is killed with SIGKILL. From there to the acknowledgement of
  an event, and of a transition, that are published right then at the second one. A transition
  also waits until nobody can go by what the one that was killed has told: one second with
  the usual lease.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import psutil

from penstock.components import MosquittoServer, processes
from penstock.definitions import read_text
from penstock.mqtt import (
    V5,
    Connack,
    Connect,
    Packet,
    Puback,
    Publish,
    Reader,
    Sender,
    Suback,
    Subscribe,
)
from penstock.mqtt import Subscription as Wanted
from penstock.store.checked import CheckedDefinitions
from penstock.store.database import Database
from penstock.store.definitions import Definitions

RATE: Final = 200
PATIENTS: Final = 10_000
FLOODERS: Final = 20
WINDOW: Final = 8
PATIENCE: Final = 60.0
_MODULE: Final = "penstock.bench.emergencies.sharing_gateway"

RULES: Final = """
kind: enforcement
name: default
policies: required
---
kind: vocabulary
name: bench
object: {patientId: string}
payload: {value: double}
---
kind: object
name: bench
topics: "bench/+patientId/#"
---
kind: event
name: Reading
attributes: {pid: string, value: double}
packet:
  filters: ["bench/+/pulse"]
  set: {pid: o.patientId, value: t.payload.value}
---
kind: event
name: "Off"
attributes: {pid: string}
packet:
  filters: ["bench/+/off"]
  set: {pid: o.patientId}
---
kind: event
name: Peak
attributes: {pid: string, value: double}
pattern: {event: Reading, where: it.value > 100.0}
---
kind: plan
name: alert
situations: [{id: Alert, level: 1}]
evolutions:
  - {event: Peak, to: Alert}
  - {event: "Off", from: Alert}
---
kind: scenario
name: alert
plan: alert
attribute: pid
---
kind: policy
name: sensor
subject: user:sensor
filter: bench/#
allow: write
---
kind: policy
name: nurse
subject: user:nurse
filter: bench/#
allow: read
"""


class SharedGateway:
    """A gateway process that notes how long sharing takes; it can be killed."""

    def __init__(self, folder: Path, broker_port: int, common: Path) -> None:
        self.port = processes.free_port()
        self._folder = folder
        self._report = folder / "report.json"
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "data": str(folder),
            "log": {"level": "warning"},
            "monitor": {"enabled": False},
            "store": {"url": f"sqlite:///{common / 'penstock.db'}"},
            "audit": {
                "signing_key": str(common / "signing.key"),
                "pseudonym_key": str(common / "pseudonym.key"),
            },
            "broker": {"mode": "external", "host": "127.0.0.1", "port": broker_port},
            "gateway": {
                "listeners": {"mqtt": {"port": self.port}},
                "authentication": {"relay": True},
            },
        }
        (folder / "penstock.yaml").write_text(json.dumps(settings))

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = processes.start(
            [sys.executable, "-m", _MODULE, str(self._folder / "penstock.yaml"), str(self._report)],
            log=self._folder / "gateway.log",
            ready=lambda: processes.accepts(self.port),
        )

    def worked(self) -> float:
        """Return how many seconds of a processor it has used."""
        used = psutil.Process(self._process.pid).cpu_times()
        return used.user + used.system

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait()

    def begin(self) -> None:
        """Let it forget what it noted."""
        os.kill(self._process.pid, signal.SIGUSR1)

    async def report(self) -> dict[str, list[float]]:
        """Return what it noted since `begin`, in seconds."""
        self._report.unlink(missing_ok=True)
        os.kill(self._process.pid, signal.SIGUSR2)
        while not self._report.exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
        found: dict[str, list[float]] = json.loads(self._report.read_text())
        return found

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        processes.stop(self._process)


class Client:
    """One connection, and when it got what."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._packets = Reader(Sender.SERVER, version=V5)
        self._answers: dict[int, asyncio.Future[Packet]] = {}
        self._task = asyncio.create_task(self._listen())
        self._number = 0
        self.arrived: dict[float, float] = {}
        """When messages arrived, by when they were sent."""

    @classmethod
    async def connect(cls, port: int, user: str) -> Self:
        """Connect as a user."""
        made = cls(*await asyncio.open_connection("127.0.0.1", port))
        name = f"{user}:{port}-{id(made)}"
        await made._ask(0, Connect(name, V5, username=user, password=b"x").encode(V5))
        return made

    async def subscribe(self, text: str) -> None:
        """Subscribe with QoS 0."""
        self._number += 1
        await self._ask(self._number, Subscribe(self._number, (Wanted(text, 0),)).encode(V5))

    async def publish(self, topic: str, value: float = 0.0) -> float:
        """Publish with QoS 1; return how long the acknowledgement took."""
        self._number = self._number % 0xFFFF + 1
        sent = time.perf_counter()
        payload = json.dumps({"value": value, "sent": sent}).encode()
        message = Publish.of(topic, payload, qos=1, packet_id=self._number)
        answer = await self._ask(self._number, message.encode(V5))
        if not isinstance(answer, Puback) or answer.failed:
            raise RuntimeError("a publication of the measurement was refused")
        return time.perf_counter() - sent

    def close(self) -> None:
        """End the connection."""
        self._task.cancel()
        self._writer.close()

    async def _ask(self, number: int, data: bytes) -> Packet:
        future: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        self._writer.write(data)
        async with asyncio.timeout(PATIENCE):
            return await future

    async def _listen(self) -> None:
        while data := await self._reader.read(65_536):
            now = time.perf_counter()
            self._packets.feed(data)
            for packet in self._packets.packets():
                if isinstance(packet, Publish):
                    self.arrived[json.loads(packet.payload)["sent"]] = now
                elif isinstance(packet, Connack | Puback | Suback):
                    number = 0 if isinstance(packet, Connack) else packet.packet_id
                    self._answers.pop(number).set_result(packet)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return how times are spread, in ms."""
    ordered = sorted(seconds)
    if not ordered:
        return {"count": 0}
    return {
        "count": len(ordered),
        "p50_ms": round(statistics.median(ordered) * 1e3, 3),
        "p99_ms": round(ordered[int(0.99 * (len(ordered) - 1))] * 1e3, 3),
    }


async def _pace(client: Client, count: int, topic: str, value: float) -> list[float]:
    """Publish at a rate, whether or not acknowledgements have come; return how long they took."""
    began = time.perf_counter()
    tasks = []
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
        tasks.append(asyncio.create_task(client.publish(topic.format(number % PATIENTS), value)))
    return await asyncio.gather(*tasks)


async def _measure_messages(
    first: SharedGateway, second: SharedGateway, seconds: float
) -> dict[str, Any]:
    places = {"detector": first, "neighbour": second}
    sensors = {name: await Client.connect(it.port, "sensor") for name, it in places.items()}
    nurse = await Client.connect(first.port, "nurse")
    await nurse.subscribe("bench/#")
    acknowledged: dict[str, list[float]] = {name: [] for name in places}
    trips: dict[str, list[float]] = {name: [] for name in places}
    count = int(RATE * seconds / 4)
    try:
        await _pace(sensors["neighbour"], RATE, "bench/p{}/pulse", 60.0)
        second.begin()
        for _ in range(2):
            for name, sensor in sensors.items():
                nurse.arrived.clear()
                acknowledged[name] += await _pace(sensor, count, "bench/p{}/pulse", 60.0)
                trips[name] += [arrived - sent for sent, arrived in nurse.arrived.items()]
        asked = (await second.report())["asked"]
        first.begin()
        second.begin()
        for kind in ("pulse", "off", "pulse", "off"):
            await _pace(sensors["neighbour"], count // 2, f"bench/q{{}}/{kind}", 120.0)
        asked_transition = (await second.report())["asked"]
        known = (await first.report())["known"]
    finally:
        for client in (*sensors.values(), nurse):
            client.close()
    found: dict[str, Any] = {
        "asked": spread(asked),
        "asked_transition": spread(asked_transition),
        "known": spread(known),
        "trip": {name: spread(it) for name, it in trips.items()},
        "acknowledged": {name: spread(it) for name, it in acknowledged.items()},
    }
    medians = [found["trip"][name]["p50_ms"] for name in ("neighbour", "detector")]
    return {"added_p50_ms": round(medians[0] - medians[1], 3), **found}


async def _measure_flood(
    asked: SharedGateway, gateways: dict[str, SharedGateway], seconds: float
) -> dict[str, Any]:
    clients = [await Client.connect(asked.port, "sensor") for _ in range(FLOODERS)]
    before = {name: it.worked() for name, it in gateways.items()}
    began = time.perf_counter()

    async def push(client: Client, place: int) -> int:
        count = 0
        while time.perf_counter() < began + seconds:
            await client.publish(f"bench/f{place}/pulse", 60.0)
            count += 1
        return count

    counts = await asyncio.gather(
        *(push(client, place) for place, client in enumerate(clients) for _ in range(WINDOW))
    )
    passed = time.perf_counter() - began
    worked = {name: it.worked() - before[name] for name, it in gateways.items()}
    for client in clients:
        client.close()
    return {
        "events_per_second": round(sum(counts) / passed),
        **{f"{name}_us": round(it / sum(counts) * 1e6) for name, it in worked.items()},
    }


async def _measure_hand_over(dying: SharedGateway, staying: SharedGateway) -> tuple[float, float]:
    sensor = await Client.connect(staying.port, "sensor")
    try:
        await sensor.publish("bench/x/off")
        await sensor.publish("bench/x/pulse", 60.0)
        killed = time.perf_counter()
        dying.kill()
        await sensor.publish("bench/x/pulse", 60.0)
        event = time.perf_counter() - killed
        await sensor.publish("bench/x/pulse", 120.0)
        return event, time.perf_counter() - killed
    finally:
        sensor.close()


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure what sharing costs."""
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        with Database.open(f"sqlite:///{folder / 'penstock.db'}") as database:
            checked = CheckedDefinitions(Definitions(database))
            checked.apply(read_text(RULES).documents, actor="bench", reason="a measurement")
        broker = stack.enter_context(MosquittoServer(folder / "broker"))
        gateways = [
            stack.enter_context(SharedGateway(folder / name, broker.port, folder))
            for name in ("one", "two")
        ]
        found = asyncio.run(_measure_messages(gateways[0], gateways[1], 4.0 if quick else 20.0))
        named = {"detector": gateways[0], "neighbour": gateways[1]}
        found["flood"] = {
            name: asyncio.run(_measure_flood(it, named, 2.0 if quick else 6.0))
            for name, it in named.items()
        }
        events, transitions = [], []
        for turn in range(2 if quick else 8):
            dying, staying = gateways[turn % 2], gateways[(turn + 1) % 2]
            event, transition = asyncio.run(_measure_hand_over(dying, staying))
            events.append(event)
            transitions.append(transition)
            dying.start()
    found["hand_over"] = {
        name: {
            "count": len(times),
            "median_ms": round(statistics.median(times) * 1e3),
            "longest_ms": round(max(times) * 1e3),
        }
        for name, times in (("event", events), ("transition", transitions))
    }
    return found
