"""Fan-in: thousands of clients that publish once a second each, with publish lanes and without.

Method:
- Clients of MQTT 3.1.1 connect with a clean session and publish at QoS 0, spread evenly over each
  second: sensors that do nothing else. One subscriber at the broker itself counts what arrives.
- CPU of gateway and broker per message, their memory, and their open files, both ways in turns:
  medians over the rounds, but for the broker's memory, which it does not give back in between.
- Where the system allows too few open files there are fewer clients, and the figure says so.
"""

from __future__ import annotations

import contextlib
import select
import socket
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from penstock.components import MosquittoServer
from penstock.mqtt import V3, Connect, Publish, RequestedSubscription, Subscribe
from penstock_lab.bench.gateway.server import DESCRIPTORS, GatewayServer
from penstock_lab.bench.load.fleet import LoadError, read_exactly
from penstock_lab.bench.load.generator import raise_descriptor_limit
from penstock_lab.bench.load.usage import UsageMeter, memory_bytes

_SPARE_DESCRIPTORS = 500
_AT_ONCE = 200
_SLICES = 100
_SETTLE_SECONDS = 60.0
_PAYLOAD = bytes(64)
_MIB = 2**20


def measure(
    folder: Path, broker: MosquittoServer, *, wanted: int, seconds: int, rounds: int
) -> dict[str, Any]:
    """Let `wanted` clients publish, with publish lanes and without; medians over the rounds."""
    allowed = raise_descriptor_limit(DESCRIPTORS)
    count = min(wanted, (allowed - _SPARE_DESCRIPTORS) // 2)
    found: dict[str, list[dict[str, float]]] = {"lanes": [], "own_connections": []}
    for number in range(rounds):
        for name, lanes in (("lanes", None), ("own_connections", 0)):
            place = folder / f"{name}-{number}"
            with GatewayServer(place, broker.port, lanes=lanes) as gateway:
                found[name].append(_publish(gateway, broker, count, seconds))
    told: dict[str, Any] = {"clients": count, "messages_per_second": count, "qos": 0}
    for name, figures in found.items():
        told[name] = {
            key: round(_over_rounds(key)(it[key] for it in figures), 2) for key in figures[0]
        }
    return told


def _over_rounds(key: str) -> Callable[[Iterable[float]], float]:
    """Say what stands for all rounds: what the broker keeps it takes in the first one only."""
    return max if key == "broker_mib" else statistics.median


def _publish(
    gateway: GatewayServer, broker: MosquittoServer, count: int, seconds: int
) -> dict[str, float]:
    pids = {"gateway": gateway.pid, "broker": broker.pid}
    before = {name: memory_bytes(pid) for name, pid in pids.items()}
    files = {name: psutil.Process(pid).num_fds() for name, pid in pids.items()}
    with contextlib.ExitStack() as stack:
        sensors = [
            (it, Publish.of(f"fan-in/sensor{number:05}/value", _PAYLOAD).to_v3())
            for number, it in enumerate(_connect(gateway.port, count, stack))
        ]
        reader = _subscribe(broker.port, stack)
        size = len(sensors[0][1])
        meter = UsageMeter(pids)
        _send(sensors, reader, 1)  # once, so that what is made once is made
        meter.start()
        received = _send(sensors, reader, seconds)
        cpu = meter.stop()
        used = {name: memory_bytes(pid) - before[name] for name, pid in pids.items()}
        opened = {name: psutil.Process(pid).num_fds() - files[name] for name, pid in pids.items()}
    sent = seconds * count
    if received != sent * size:
        raise LoadError(
            f"{received / size:.1f} of {sent} messages arrived", fix="let nothing else run"
        )
    return {
        "gateway_cpu_us": cpu["gateway"] / sent * 1e6,
        "broker_cpu_us": cpu["broker"] / sent * 1e6,
        "gateway_mib": used["gateway"] / _MIB,
        "broker_mib": used["broker"] / _MIB,
        "gateway_files": opened["gateway"],
        "broker_files": opened["broker"],
    }


def _connect(port: int, count: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    opened: list[socket.socket] = []
    for start in range(0, count, _AT_ONCE):
        some = []
        for number in range(start, min(count, start + _AT_ONCE)):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            client.sendall(Connect(f"sensor-{number:05}", version=V3).encode())
            some.append(client)
        for client in some:
            if read_exactly(client, 4)[3]:
                raise LoadError("a client was not let in", fix="see the log of the gateway")
        opened += some
    return opened


def _subscribe(port: int, stack: contextlib.ExitStack) -> socket.socket:
    reader = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
    reader.sendall(Connect("fan-in-reader", version=V3).encode())
    read_exactly(reader, 4)
    reader.sendall(Subscribe(1, (RequestedSubscription("fan-in/#", 0),)).encode(V3))
    read_exactly(reader, 5)
    reader.settimeout(0)
    return reader


def _send(sensors: list[tuple[socket.socket, bytes]], reader: socket.socket, seconds: int) -> int:
    """Let each client publish once a second; return how many bytes arrived."""
    expected = seconds * len(sensors) * len(sensors[0][1])
    received = 0
    started = time.perf_counter()
    for step in range(seconds * _SLICES):
        for client, packet in sensors[step % _SLICES :: _SLICES]:
            client.send(packet)
        received += _receive(reader, started + (step + 1) / _SLICES)
    deadline = time.perf_counter() + _SETTLE_SECONDS
    while received < expected and time.perf_counter() < deadline:
        received += _receive(reader, time.perf_counter() + 1 / _SLICES)
    return received


def _receive(reader: socket.socket, until: float) -> int:
    """Read what arrives up to a moment."""
    received = 0
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while True:
        left = until - time.perf_counter()
        if poll.poll(max(left * 1_000, 0)):
            data = reader.recv(1 << 20)
            if not data:
                raise LoadError("the broker closed", fix="see its log")
            received += len(data)
        if left <= 0:
            return received
