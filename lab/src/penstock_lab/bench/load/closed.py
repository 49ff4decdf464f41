"""The closed loop: each client has a fixed number of messages on their way, no more.

As soon as a message has reached its receiver, its publisher sends the next one. That
finds the highest throughput without ever overrunning anybody.

Rules that hold here:
- The window fits into what a socket takes at once, so that no send is ever cut short.
- Messages are counted by bytes at QoS 0, by walking the packets at QoS 1; every so often
  a whole message is compared with what was sent.
- When the clock stops, what is on its way is awaited: each receiver must then have exactly
  what was published for it, or the measurement is void.
"""

from __future__ import annotations

import select
import time
from dataclasses import dataclass, field

from penstock.errors import UsageError, quote
from penstock_lab.bench.load.fleet import (
    PUBACK,
    PUBACK_SIZE,
    RECEIVE_SIZE,
    Fleet,
    LoadClient,
    LoadError,
    closed_by_peer,
)
from penstock_lab.bench.load.usage import UsageMeter

DRAIN_SECONDS = 15.0
WINDOW_BYTES = 1 << 16
_POLL_SECONDS = 0.1
_SAMPLE_EVERY = 256
_MINIMUM_RING = 600


@dataclass(frozen=True, slots=True)
class Throughput:
    """What a closed loop found."""

    messages: int
    seconds: float
    cpu: dict[str, float] = field(default_factory=dict)
    sampled: int = 0
    """How many messages were compared whole with what was sent."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    def cpu_micros(self, name: str) -> float:
        """CPU time of a process per message, in µs."""
        return self.cpu[name] / self.messages * 1e6


class _Lane:
    """One receiver with the publisher whose messages it gets."""

    __slots__ = (
        "position",
        "publisher",
        "receiver",
        "recv",
        "rest",
        "ring",
        "ring_count",
        "send",
        "whole",
    )

    def __init__(
        self, fleet: Fleet, receiver: LoadClient, publisher: LoadClient, window: int
    ) -> None:
        self.receiver = receiver
        self.publisher = publisher
        self.recv = receiver.socket.recv
        self.send = publisher.socket.send
        self.whole = frozenset(publisher.packets)
        packets = publisher.packets
        self.ring_count = len(packets)
        if fleet.qos:
            rounds = -(-max(_MINIMUM_RING, 4 * window) // len(packets))
            at = fleet.id_offset
            packets = [
                packet[:at] + number.to_bytes(2) + packet[at + 2 :]
                for number, packet in enumerate(packets * rounds, start=1)
            ]
            self.ring_count = len(packets)
        repeats = -(-(self.ring_count + window) // self.ring_count)
        self.ring = memoryview(b"".join(packets) * repeats)
        self.position = 0
        self.rest = 0


class ClosedLoop:
    """A fleet whose clients keep `window` messages each on their way."""

    def __init__(self, fleet: Fleet, window: int) -> None:
        if fleet.plan.receivers != 1 or -1 in fleet.plan.source:
            raise UsageError("a closed loop needs one receiver per message", fix="use a mesh")
        if window * fleet.size > WINDOW_BYTES:
            raise UsageError(
                f"a window of {window} messages of {fleet.size} bytes",
                fix=f"keep the product below {WINDOW_BYTES}, what a socket takes at once",
            )
        self.fleet = fleet
        self.window = window
        self.sampled = 0
        self._reads = 0
        self._sending = True
        self._lanes = {
            client.fileno: _Lane(fleet, client, fleet.source_of(number), window)
            for number, client in enumerate(fleet.clients)
        }

    def run(self, *, seconds: float, warm_up: float, meter: UsageMeter) -> Throughput:
        """Run the loop, measure after the warm-up, and await what is on its way."""
        self.fleet.start_afresh()
        self._sending = True
        for lane in self._lanes.values():
            self._publish(lane, self.window)
        self._turn(time.perf_counter() + warm_up)
        meter.start()
        begin, before = time.perf_counter(), self._received()
        self._turn(begin + seconds)
        end, after = time.perf_counter(), self._received()
        cpu = meter.stop()
        self._drain()
        return Throughput(after - before, end - begin, cpu, self.sampled)

    def _received(self) -> int:
        return sum(client.received for client in self.fleet.clients)

    def _turn(self, until: float) -> None:
        if self.fleet.qos == 0:
            self._turn_counting(until)
            return
        while time.perf_counter() < until:
            for fileno, event in self.fleet.epoll.poll(_POLL_SECONDS):
                lane = self._lanes[fileno]
                if event & select.EPOLLOUT:
                    self.fleet.finish(lane.receiver)
                self._walk(lane)

    def _publish(self, lane: _Lane, count: int) -> None:
        publisher, size = lane.publisher, self.fleet.size
        start = lane.position * size
        publisher.published += count
        lane.position = (lane.position + count) % lane.ring_count
        self.fleet.send(publisher, lane.ring[start : start + count * size])

    def _turn_counting(self, until: float) -> None:
        """Turn the loop at QoS 0: messages are counted by their bytes.

        All in one body, without calls of our own: this is the loop that must not be what
        limits a measurement.
        """
        poll, clock = self.fleet.epoll.poll, time.perf_counter
        size, lanes, sending = self.fleet.size, self._lanes, self._sending
        reads = 0
        while clock() < until:
            for fileno, _ in poll(_POLL_SECONDS):
                lane = lanes[fileno]
                data = lane.recv(RECEIVE_SIZE)
                count, rest = divmod(lane.rest + len(data), size)
                reads += 1
                if not reads % _SAMPLE_EVERY or not data:
                    self._sample(lane, data)
                lane.rest = rest
                if not count:
                    continue
                lane.receiver.received += count
                if sending:
                    publisher, position = lane.publisher, lane.position
                    publisher.published += count
                    lane.position = (position + count) % lane.ring_count
                    lane.send(lane.ring[position * size : (position + count) * size])

    def _walk(self, lane: _Lane) -> None:
        """Count and acknowledge messages of QoS 1, and count acknowledgements."""
        fleet, receiver = self.fleet, lane.receiver
        size, first, id_offset = fleet.size, fleet.first, fleet.id_offset
        data = fleet.receive(receiver)
        at, end, acks = 0, len(data), []
        acknowledged = 0
        while at < end:
            kind = data[at]
            if kind == first:
                if at + size > end:
                    break
                acks.append(data[at + id_offset : at + id_offset + 2])
                at += size
            elif kind == PUBACK:
                if at + PUBACK_SIZE > end:
                    break
                acknowledged += 1
                at += PUBACK_SIZE
            else:
                raise _stray(receiver, data[at : at + 16])
        receiver.rest = data[at:]
        receiver.acknowledged += acknowledged
        self._reads += 1
        if acks:
            if not self._reads % _SAMPLE_EVERY and data[0] == first:
                clear = data[:id_offset] + b"\x00\x01" + data[id_offset + 2 : size]
                self._compare(lane, clear)
            fleet.send(receiver, b"\x40\x02" + b"\x40\x02".join(acks))
            receiver.received += len(acks)
            if self._sending:
                if lane.publisher.published - lane.publisher.acknowledged > lane.ring_count // 2:
                    raise LoadError(
                        "messages are delivered but not acknowledged",
                        fix="see the log of the gateway or the broker",
                    )
                self._publish(lane, len(acks))

    def _sample(self, lane: _Lane, data: bytes) -> None:
        if not data:
            raise closed_by_peer(lane.receiver)
        if not lane.rest and len(data) >= self.fleet.size:
            self._compare(lane, data[: self.fleet.size])

    def _compare(self, lane: _Lane, message: bytes) -> None:
        if message not in lane.whole:
            raise _stray(lane.receiver, message)
        self.sampled += 1

    def _unfinished(self) -> bool:
        if self.fleet.outstanding() != 0:
            return True
        return bool(self.fleet.qos) and any(
            client.acknowledged != client.published for client in self.fleet.clients
        )

    def _drain(self) -> None:
        self._sending = False
        deadline = time.perf_counter() + DRAIN_SECONDS
        while self._unfinished() and time.perf_counter() < deadline:
            self._turn(time.perf_counter() + _POLL_SECONDS)
        # A little longer: a copy may be the last to come.
        self._turn(time.perf_counter() + _POLL_SECONDS)
        if self._unfinished() or self.fleet.astray():
            raise LoadError(
                f"{self.fleet.outstanding()} deliveries are missing and {self.fleet.astray()} "
                "clients received another number of messages than was sent to them",
                fix="see the log of the gateway or the broker",
            )


def _stray(receiver: LoadClient, data: bytes) -> LoadError:
    return LoadError(
        f"{quote(receiver.party.client_id)} received what nobody sent: {data.hex()}",
        fix="see the log of the gateway or the broker",
    )
