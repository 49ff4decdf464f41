"""Whether the time of an answer tells that there is a filter: silent restrictions, others' filters.

    subscribe, publish ──▶ a topic that filters are about ──▶ SUBACK, PUBACK ┐ which was which?
                      └──▶ its twin, without any           ──▶ SUBACK, PUBACK ┘

Method:
- One gateway as a process of its own, and one client that asks by turns, each pair in an order
  that is drawn: whatever else the machine does falls on both alike.
- `told` is how often the slower of two answers is the one of the topic with filters: 50 % says
  that time tells nothing, 100 % or 0 % that it tells all (the area under the ROC curve).
- `subscription`: a restriction denies all deliveries there, silently. `others`: other clients
  have content filters there. `refused`: both topics are reserved and refuse who asks; in one
  there are a silent restriction and content filters. `publication`: another client reads both,
  and a restriction keeps all from it in one; PUBACK at QoS 1.
"""

from __future__ import annotations

import random
import statistics
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.client.commands import AP_PROPERTY, CONTENT_PROPERTY
from penstock.components import MosquittoServer
from penstock.model.document import Document
from penstock.mqtt import (
    FAILURE,
    V5,
    Properties,
    Puback,
    Publish,
    RequestedSubscription,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from penstock_lab.bench.gateway.revocation import Peer
from penstock_lab.bench.gateway.server import GatewayServer
from penstock_lab.bench.load.fleet import LoadError

FILTERS = 1_000
"""Content filters of other clients."""
_READERS = 20
_SILENT = {"subject": "anyone", "deny": "true"}
_CLOSED = {"allow": ["care"]}
_FIELDS = [{"name": "n", "type": "string"}, {"name": "pulse", "type": "int"}]
# Twins have names of one length: a byte more takes time, too.
_TOPICS = ("quiet", "plain", "shared", "single", "locked", "closed")
_DEFINITIONS = [
    *(Document("stream", it, {"from": [f"{it}/+n/vitals"], "fields": _FIELDS}) for it in _TOPICS),
    Document("restriction", "quiet", {"filter": "quiet/#", **_SILENT}),
    Document("restriction", "locked", {"filter": "locked/#", **_SILENT}),
    Document("reservation", "locked/#", _CLOSED),
    Document("reservation", "closed/#", _CLOSED),
    Document("purpose-settings", "default", {"filter_on_subscribe": True}),
]


def measure(folder: Path, *, pairs: int) -> dict[str, Any]:
    """Return for each way to ask how long answers take, and what that tells."""
    random.seed(1)
    with (
        MosquittoServer(folder / "broker") as broker,
        GatewayServer(folder / "gateway", broker.port, documents=_DEFINITIONS) as gateway,
    ):
        readers = [_open_reader(gateway.port, number) for number in range(_READERS)]
        asks = Asks(Peer("asks", gateway.port, version=V5))
        try:
            return {
                "subscription": _compare(asks.subscribe, "quiet", "plain", pairs),
                "others": _compare(asks.subscribe, "shared", "single", pairs),
                "refused": _compare(asks.subscribe, "locked", "closed", pairs),
                "publication": _compare(asks.publish, "quiet", "plain", pairs),
            }
        finally:
            for peer in (asks.peer, *readers):
                peer.socket.close()


def _open_reader(port: int, number: int) -> Peer:
    """Let a client have its share of the content filters, and read what is published."""
    peer = Peer(f"reader-{number}", port, version=V5)
    for at in range(FILTERS // _READERS):
        text = f"r.pulse > {number * at}"
        for topic, purpose in (("shared", None), ("locked", "care")):
            told = ((CONTENT_PROPERTY, text), *(((AP_PROPERTY, purpose),) if purpose else ()))
            wanted = (RequestedSubscription(f"{topic}/{number}-{at}/vitals", 0),)
            peer.send(Subscribe(at + 1, wanted, Properties(user=told)).encode(V5))
            answer = peer.await_packet(Suback)
            if not isinstance(answer, Suback) or answer.reasons[0] >= FAILURE:
                raise LoadError("a reader has no content filter", fix="see the gateway's log")
    both = tuple(RequestedSubscription(f"{it}/#", 0) for it in ("quiet", "plain"))
    peer.send(Subscribe(FILTERS, both).encode(V5))
    peer.await_packet(Suback)
    return peer


class Asks:
    """A client that asks, and takes the time of the answer."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._number = 0

    def subscribe(self, topic: str) -> float:
        """Subscribe and unsubscribe; return how long the SUBACK took."""
        wanted = f"{topic}/{self._next() % FILTERS}/vitals"
        subscribe = Subscribe(self._number, (RequestedSubscription(wanted, 0),)).encode(V5)
        taken = self._take(subscribe, Suback)
        self._take(Unsubscribe(self._next(), (wanted,)).encode(V5), Unsuback)
        return taken

    def publish(self, topic: str) -> float:
        """Publish at QoS 1; return how long the PUBACK took."""
        number = self._next()
        message = Publish.of(
            f"{topic}/{number % FILTERS}/vitals", b'{"pulse": 70}', qos=1, packet_id=number
        )
        return self._take(message.encode(V5), Puback)

    def _next(self) -> int:
        self._number = self._number % 60_000 + 1
        return self._number

    def _take(self, data: bytes, kind: type[Any]) -> float:
        began = time.perf_counter()
        self.peer.send(data)
        self.peer.await_packet(kind)
        return (time.perf_counter() - began) * 1e6


def _compare(ask: Callable[[str], float], filtered: str, plain: str, pairs: int) -> dict[str, Any]:
    taken: dict[str, list[float]] = {filtered: [], plain: []}
    for turn in range(pairs + pairs // 10):
        for topic in random.sample((filtered, plain), 2):
            took = ask(topic)
            if turn >= pairs // 10:  # the first ones find the way
                taken[topic].append(took)
    return {
        "filtered_us": statistics.median(taken[filtered]),
        "plain_us": statistics.median(taken[plain]),
        "told": tell_apart(taken[filtered], taken[plain]),
        "pairs": pairs,
    }


def tell_apart(some: list[float], others: list[float]) -> float:
    """Return how often one of the first is larger than one of the others; ties count half."""
    ordered = sorted(others)
    above = sum(bisect_left(ordered, it) + bisect_right(ordered, it) for it in some)
    return above / (2 * len(some) * len(ordered))
