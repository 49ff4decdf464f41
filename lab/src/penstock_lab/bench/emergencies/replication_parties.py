"""Who takes part where replication of detection is measured: gateways, clients, definitions.

A pulse above 100 is an alert until it is switched off; a warmth above 100 is one until all
of the last second are below. Nurses read everything, doctors what an alert is about.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final, Self

import psutil

from penstock.components import processes
from penstock.mqtt import (
    V5,
    Connack,
    Connect,
    Packet,
    Puback,
    Publish,
    Reader,
    RequestedSubscription,
    Sender,
    Suback,
    Subscribe,
)

PATIENCE: Final = 60.0
_MODULE: Final = "penstock_lab.bench.emergencies.replication_gateway"

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
kind: event
name: Warmth
attributes: {pid: string, value: double}
packet:
  filters: ["bench/+/warmth"]
  set: {pid: o.patientId, value: t.payload.value}
---
kind: event
name: High
attributes: {pid: string}
pattern: {aggregate: [{event: Warmth}], by: [pid], window: {last: 1s},
          values: {most: max(it.value)}, where: it.most > 100.0, set: {pid: it.pid}}
---
kind: event
name: Calm
attributes: {pid: string}
pattern: {aggregate: [{event: Warmth}], by: [pid], window: {last: 1s},
          values: {most: max(it.value)}, where: it.most <= 100.0, set: {pid: it.pid}}
---
kind: plan
name: alert
situations: [{id: Alert, level: 1}]
evolutions:
  - {event: Peak, to: Alert}
  - {event: High, to: Alert}
  - {event: Calm, from: Alert}
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
---
kind: emergency-policy
name: doctor
subject: user:doctor
filter: bench/#
allow: read
plan: alert
about: o.patientId
"""


class ReplicatedGateway:
    """A gateway process that notes how long replication takes; it can be killed."""

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
        await self._ask(
            self._number, Subscribe(self._number, (RequestedSubscription(text, 0),)).encode(V5)
        )

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
