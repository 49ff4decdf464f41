"""What an idle connection costs: memory of the gateway for each client that says nothing."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import Any

from penstock.components import MosquittoServer
from penstock.mqtt import V3, Connect
from penstock_lab.bench.gateway.server import DESCRIPTORS, GatewayServer
from penstock_lab.bench.load.fleet import LoadError, read_exactly
from penstock_lab.bench.load.generator import raise_descriptor_limit
from penstock_lab.bench.load.usage import memory_bytes

GOAL_BYTES = 60_000
_SPARE_DESCRIPTORS = 300
_AT_ONCE = 200
_WARM_UP = 200
_SETTLE_SECONDS = 2.0


def measure(folder: Path, broker: MosquittoServer, wanted: int) -> dict[str, Any]:
    """Open connections and see how the gateway's memory grows.

    A gateway has two descriptors per client: where the system allows too few, there are
    fewer clients, and the figure says how many.
    """
    allowed = raise_descriptor_limit(DESCRIPTORS)
    count = min(wanted, (allowed - _SPARE_DESCRIPTORS) // 2 - _WARM_UP)
    with GatewayServer(folder, broker.port) as gateway, contextlib.ExitStack() as stack:
        # The first clients make the gateway load and grow what is there once only.
        _connect(gateway.port, "first", _WARM_UP, stack)
        time.sleep(_SETTLE_SECONDS)
        before = memory_bytes(gateway.pid)
        started = time.perf_counter()
        _connect(gateway.port, "idle", count, stack)
        seconds = time.perf_counter() - started
        time.sleep(_SETTLE_SECONDS)
        grown = memory_bytes(gateway.pid) - before
    return {
        "connections": count,
        "bytes_each": round(grown / count),
        "goal_bytes": GOAL_BYTES,
        "connects_per_second": round(count / seconds),
        "gateway_mib_before": round(before / 2**20, 1),
    }


def _connect(port: int, name: str, count: int, stack: contextlib.ExitStack) -> None:
    for start in range(0, count, _AT_ONCE):
        opened = []
        for number in range(start, min(count, start + _AT_ONCE)):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            client.sendall(Connect(f"{name}-{number:05}", version=V3).encode())
            opened.append(client)
        for client in opened:
            answer = read_exactly(client, 4)
            if answer[3]:
                raise LoadError(
                    f"an idle client was not let in: {answer.hex()}",
                    fix="see the log of the gateway",
                )
