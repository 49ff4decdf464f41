"""The open loop: messages leave at fixed times, whether or not earlier ones have come.

Every message carries the moment it was due. The difference on arrival is its round trip,
and a generator or a gateway that falls behind makes it longer, never shorter.

Rules that hold here:
- Messages are spread evenly over time and over the publishers.
- The wait between two messages sleeps: a spinning generator would take the CPU that the
  measured processes need.
"""

from __future__ import annotations

import select
import struct
import time
from dataclasses import dataclass, field

from penstock.errors import quote
from penstock_lab.bench.load.closed import DRAIN_SECONDS
from penstock_lab.bench.load.fleet import PUBACK, PUBACK_SIZE, Fleet, LoadClient, LoadError
from penstock_lab.bench.load.usage import UsageMeter

_MOMENT = struct.Struct("!d")
_IDLE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """What an open loop found; times in ms."""

    sent: int
    delivered: int
    seconds: float
    median: float
    p99: float
    highest: float
    mean: float
    late_p99: float
    """How late the generator itself sent, at the 99th percentile."""
    cpu: dict[str, float] = field(default_factory=dict)


def percentile(ordered: list[float], share: float) -> float:
    """Return the value below which `share` of the ordered values lie."""
    if not ordered:
        raise LoadError("nothing was received", fix="see the log of the gateway or the broker")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class OpenLoop:
    """A fleet whose publishers send at a rate."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._trips: list[float] = []
        self._late: list[float] = []
        self._counting = False
        self._heads = {
            client.fileno: [packet[: fleet.size - fleet.payload] for packet in client.packets]
            for client in fleet.publishers
        }
        self._tail = bytes(fleet.payload - _MOMENT.size)

    def run(self, *, rate: float, seconds: float, warm_up: float, meter: UsageMeter) -> RoundTrips:
        """Send `rate` messages per second, measure after the warm-up, await the rest."""
        self.fleet.start_afresh()
        self._trips, self._late = [], []
        begin = time.perf_counter()
        self._counting = False
        sent = self._send_until(begin, 0, int(rate * warm_up), rate)
        self._counting = True
        meter.start()
        measured = time.perf_counter()
        last = self._send_until(begin, sent, sent + max(1, int(rate * seconds)), rate)
        spent = time.perf_counter() - measured
        cpu = meter.stop()
        self._drain()
        trips, late = sorted(self._trips), sorted(self._late)
        return RoundTrips(
            sent=last - sent,
            delivered=len(trips),
            seconds=spent,
            median=percentile(trips, 0.5) * 1e3,
            p99=percentile(trips, 0.99) * 1e3,
            highest=trips[-1] * 1e3,
            mean=sum(trips) / len(trips) * 1e3,
            late_p99=percentile(late, 0.99) * 1e3,
            cpu=cpu,
        )

    def _send_until(self, begin: float, number: int, end: int, rate: float) -> int:
        """Send the messages `number` to `end`, each when it is due."""
        publishers = self.fleet.publishers
        while number < end:
            now = time.perf_counter()
            due = begin + number / rate
            while due <= now and number < end:
                self._publish(publishers[number % len(publishers)], due)
                if self._counting:
                    self._late.append(now - due)
                number += 1
                due = begin + number / rate
            self._take(max(0.0, due - time.perf_counter()))
        return number

    def _publish(self, client: LoadClient, due: float) -> None:
        heads = self._heads[client.fileno]
        head = heads[client.position % len(heads)]
        client.position += 1
        client.published += 1
        if self.fleet.qos:
            head = head[:-2] + (client.position % 0xFFFF + 1).to_bytes(2)
        moment = due if self._counting else 0.0
        self.fleet.send(client, head + _MOMENT.pack(moment) + self._tail)

    def _take(self, wait: float) -> None:
        # epoll waits whole milliseconds; its own descriptor can be waited on in µs.
        if wait > 0:
            select.select([self.fleet.epoll.fileno()], [], [], min(wait, _IDLE_SECONDS))
        for fileno, event in self.fleet.epoll.poll(0):
            client = self.fleet.by_fileno[fileno]
            if event & select.EPOLLOUT:
                self.fleet.finish(client)
            self._walk(client)

    def _walk(self, client: LoadClient) -> None:
        fleet = self.fleet
        size, first, id_offset = fleet.size, fleet.first, fleet.id_offset
        moment_offset = size - fleet.payload
        data = fleet.receive(client)
        now = time.perf_counter()
        at, end, acks = 0, len(data), []
        while at < end:
            kind = data[at]
            if kind == first:
                if at + size > end:
                    break
                (moment,) = _MOMENT.unpack_from(data, at + moment_offset)
                if moment:
                    self._trips.append(now - moment)
                if fleet.qos:
                    acks.append(data[at + id_offset : at + id_offset + 2])
                client.received += 1
                at += size
            elif kind == PUBACK:
                if at + PUBACK_SIZE > end:
                    break
                client.acknowledged += 1
                at += PUBACK_SIZE
            else:
                raise LoadError(
                    f"{quote(client.party.client_id)} received what nobody sent: "
                    f"{data[at : at + 16].hex()}",
                    fix="see the log of the gateway or the broker",
                )
        client.rest = data[at:]
        if acks:
            fleet.send(client, b"\x40\x02" + b"\x40\x02".join(acks))

    def _drain(self) -> None:
        deadline = time.perf_counter() + DRAIN_SECONDS
        while self.fleet.outstanding() > 0 and time.perf_counter() < deadline:
            self._take(_IDLE_SECONDS)
        self._linger()
        if self.fleet.outstanding() or self.fleet.astray():
            raise LoadError(
                f"{self.fleet.outstanding()} deliveries are missing and {self.fleet.astray()} "
                "clients received another number of messages than was sent to them",
                fix="see the log of the gateway or the broker",
            )

    def _linger(self) -> None:
        """Wait a little longer: a copy may be the last to come."""
        deadline = time.perf_counter() + _IDLE_SECONDS
        while (left := deadline - time.perf_counter()) > 0:
            self._take(left)
