"""What replicated detection costs: submissions, replication, failover.

Method:
- A real Mosquitto and two real gateway processes on one store (SQLite), all on this machine,
  joined over TCP as gateways of different hosts are. The first one detects.
- `asked`: how long a message of the second gateway's client waits for the first one's
  decision, noted in the second gateway. Once for events that change no situation, and once
  for events that each do (`asked_transition`: the answer waits until all know).
- `known`: from a transition at the first gateway until every other gateway has said that it
  knows, noted in the first one.
- `trip`, `acknowledged`: from publishing to a reader's receipt, and to the PUBACK, for events
  at the gateway that detects and at its follower, alternately; `added_p50_ms` is the difference
  of the medians of `trip`.
- `flood`: events without a pause by twenty clients, eight on their way each, at the gateway that
  detects and at its follower; how many are acknowledged a second, and what each of the
  two processes works for one.
- `time`: a second of alert, which time alone ends, for one patient after the other, while a
  reader at the second gateway gets messages about somebody whose alert lasts. `doubt`: how long
  the second gateway waits to hear what time has changed, noted there; `trip`: what the reader
  gets under it, to be compared with `calm`, when no timer is due.
- `hand_over`: the first gateway is killed with SIGKILL. From there to the acknowledgement of
  an event, and of a transition, that are published right then at the second one. A transition
  also waits until nobody can go by what the one that was killed has told: one second with
  the usual lease.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from penstock.components import MosquittoServer
from penstock.definitions import read_text
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock_lab.bench.emergencies.replication_parties import RULES, Client, ReplicatedGateway

RATE: Final = 200
ALERTS: Final = 20
"""Alerts a second that time ends."""
PATIENTS: Final = 10_000
FLOODERS: Final = 20
WINDOW: Final = 8


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
    first: ReplicatedGateway, second: ReplicatedGateway, seconds: float
) -> dict[str, Any]:
    places = {"leader": first, "follower": second}
    sensors = {name: await Client.connect(it.port, "sensor") for name, it in places.items()}
    nurse = await Client.connect(first.port, "nurse")
    await nurse.subscribe("bench/#")
    acknowledged: dict[str, list[float]] = {name: [] for name in places}
    trips: dict[str, list[float]] = {name: [] for name in places}
    count = int(RATE * seconds / 4)
    try:
        await _pace(sensors["follower"], RATE, "bench/p{}/pulse", 60.0)
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
            await _pace(sensors["follower"], count // 2, f"bench/q{{}}/{kind}", 120.0)
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
    medians = [found["trip"][name]["p50_ms"] for name in ("follower", "leader")]
    return {"added_p50_ms": round(medians[0] - medians[1], 3), **found}


async def _measure_time(second: ReplicatedGateway, seconds: float) -> dict[str, Any]:
    sensor = await Client.connect(second.port, "sensor")
    doctor = await Client.connect(second.port, "doctor")
    await doctor.subscribe("bench/lasting/note")
    count = int(RATE * seconds)

    async def read() -> dict[str, float]:
        doctor.arrived.clear()
        await _pace(sensor, count, "bench/lasting/note", 0.0)
        await asyncio.sleep(1.0)
        return spread([arrived - sent for sent, arrived in doctor.arrived.items()])

    async def alert() -> None:
        for number in range(int(ALERTS * seconds)):
            for value in (120.0, 60.0):
                await sensor.publish(f"bench/t{number}/warmth", value)
            await asyncio.sleep(1 / ALERTS)

    try:
        await sensor.publish("bench/lasting/pulse", 120.0)
        calm = await read()
        second.begin()
        trip, _ = await asyncio.gather(read(), alert())
        doubts = (await second.report())["doubt"]
    finally:
        sensor.close()
        doctor.close()
    return {"sent": count, "doubt": spread(doubts), "trip": trip, "calm": calm}


async def _measure_flood(
    asked: ReplicatedGateway, gateways: dict[str, ReplicatedGateway], seconds: float
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


async def _measure_hand_over(
    dying: ReplicatedGateway, staying: ReplicatedGateway
) -> tuple[float, float]:
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
    """Measure what replication costs."""
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        with Database.open(f"sqlite:///{folder / 'penstock.db'}") as database:
            checked = CheckedDefinitions(Definitions(database))
            checked.apply(read_text(RULES).documents, actor="bench", reason="a measurement")
        broker = stack.enter_context(MosquittoServer(folder / "broker"))
        gateways = [
            stack.enter_context(ReplicatedGateway(folder / name, broker.port, folder))
            for name in ("one", "two")
        ]
        found = asyncio.run(_measure_messages(gateways[0], gateways[1], 4.0 if quick else 20.0))
        found["time"] = asyncio.run(_measure_time(gateways[1], 3.0 if quick else 10.0))
        named = {"leader": gateways[0], "follower": gateways[1]}
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
