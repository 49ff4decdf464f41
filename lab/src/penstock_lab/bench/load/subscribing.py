"""Subscriptions in a closed loop: each client sends the next SUBSCRIBE when one is answered.

Rules that hold here:
- One filter in a packet, and one packet of each client on its way.
- All clients go through the same filters, each from a place of its own. Who has gone through all
  begins again, and replaces what it has: a client may hold so many and no more.
- An answer that is no acceptance makes the measurement void.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock.errors import quote
from penstock.mqtt import V3, RequestedSubscription, Subscribe
from penstock_lab.bench.load.closed import DRAIN_SECONDS, Throughput
from penstock_lab.bench.load.fleet import Fleet, LoadClient, LoadError
from penstock_lab.bench.load.usage import UsageMeter

_PACKET_ID = 2
_ACCEPTED = bytes((0x90, 3, 0, _PACKET_ID, 0))
_POLL_SECONDS = 0.1


class SubscribeLoop:
    """A fleet whose clients subscribe all the time."""

    def __init__(self, fleet: Fleet, filters: Sequence[str]) -> None:
        self._fleet = fleet
        self._packets = [
            Subscribe(_PACKET_ID, (RequestedSubscription(text, 0),)).encode(V3) for text in filters
        ]
        step = max(1, len(filters) // len(fleet.clients))
        self._next = {it.fileno: at * step for at, it in enumerate(fleet.clients)}
        self._answered = 0
        self._waiting = 0

    def run(self, *, seconds: float, warm_up: float, meter: UsageMeter) -> Throughput:
        """Subscribe, measure after the warm-up, and await the last answers."""
        for client in self._fleet.clients:
            self._subscribe(client)
        self._turn(time.perf_counter() + warm_up)
        meter.start()
        begin, before = time.perf_counter(), self._answered
        self._turn(begin + seconds)
        end, after = time.perf_counter(), self._answered
        cpu = meter.stop()
        self._turn(end + DRAIN_SECONDS, sending=False)
        if self._waiting:
            raise LoadError(
                f"{self._waiting} subscriptions were not answered",
                fix="see the log of the gateway or the broker",
            )
        return Throughput(after - before, end - begin, cpu)

    def _subscribe(self, client: LoadClient) -> None:
        at = self._next[client.fileno]
        self._next[client.fileno] = at + 1
        self._waiting += 1
        self._fleet.send(client, self._packets[at % len(self._packets)])

    def _turn(self, until: float, *, sending: bool = True) -> None:
        poll, clients = self._fleet.epoll.poll, self._fleet.by_fileno
        while self._waiting and time.perf_counter() < until:
            for fileno, _ in poll(_POLL_SECONDS):
                client = clients[fileno]
                data = self._fleet.receive(client)
                if len(data) < len(_ACCEPTED):
                    client.rest = data
                    continue
                client.rest = b""
                if data != _ACCEPTED:
                    raise LoadError(
                        f"{quote(client.party.client_id)} was answered with {data[:16].hex()}",
                        fix="check the reservations that the measurement made",
                    )
                self._answered += 1
                self._waiting -= 1
                if sending:
                    self._subscribe(client)
