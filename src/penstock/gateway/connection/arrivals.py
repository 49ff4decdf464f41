"""Connections from their accept on: counted by where they come from, before TLS begins.

    accept ──▶ admit ──▶ (TLS) ──▶ WebSocket or CONNECT ──▶ log-in ──▶ established
                 │         │                                  │
              `connecting`, `handshaking`               LoginQueue

Rules that hold here:
- What is over a limit is closed before anything is read from it or computed for it.
- Until the CONNECT of a peer is here, it has one of `unauthenticated` places, and while TLS
  is negotiated one of `handshakes`. Networks share both fairly (`FairPlaces`).
- What unauthenticated peers have sent is bounded in bytes, too: beyond that the one that
  holds most is closed.
- `connections` and `connections_per_address` count from the accept to the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from penstock.gateway.limits import FairPlaces, network_of

PATIENCE: Final = 2.0
"""How long a peer may use its place, in seconds, before one of its own network may take it."""
HELD_BYTES: Final = 32 << 20
"""The most that all unauthenticated peers together may have sent without its being dealt with."""


class ArrivalLimits(Protocol):
    """What is limited of connections."""

    @property
    def connections(self) -> int:
        """The most at a time."""

    @property
    def connections_per_address(self) -> int:
        """The most of one network."""

    @property
    def unauthenticated(self) -> int:
        """The most that nobody knows yet."""

    @property
    def unauthenticated_per_address(self) -> int:
        """The most of these of one network."""

    @property
    def handshakes(self) -> int:
        """The most that negotiate TLS."""


class ArrivalCounters(Protocol):
    """Counts connections that are not established."""

    def opened(self, outcome: str) -> None:
        """Count how the opening of a connection ended."""

    def turned_away(self, cause: str) -> bool:
        """Count a connection that was not established, by the cause."""


class Arrival:
    """One connection, as it is counted."""

    __slots__ = ("address", "cut_off", "held", "network")

    def __init__(self, address: str, cut_off: Callable[[], None]) -> None:
        self.address = address
        self.network = network_of(address)
        self.cut_off = cut_off
        """Ends the connection at once, until its client is let in."""
        self.held = 0


def _stay() -> None:
    """End nothing."""


class Arrivals:
    """All connections of one process."""

    def __init__(
        self,
        limits: ArrivalLimits,
        counters: ArrivalCounters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._counters = counters
        self._clock = clock
        places, each = limits.unauthenticated, limits.unauthenticated_per_address
        self._connecting: FairPlaces[Arrival] = FairPlaces(places, each, PATIENCE)
        self._handshaking: FairPlaces[Arrival] = FairPlaces(
            limits.handshakes, max(1, limits.handshakes // 2), PATIENCE
        )
        self._all: set[Arrival] = set()
        self._addresses: dict[str, int] = {}
        self._held: dict[Arrival, None] = {}
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def unauthenticated(self) -> int:
        """How many have not sent their CONNECT."""
        return len(self._connecting)

    @property
    def held_bytes(self) -> int:
        """What unauthenticated peers have sent and nobody has dealt with."""
        return self._held_bytes

    def admit(self, address: str, cut_off: Callable[[], None], *, tls: bool) -> Arrival | None:
        """Count a connection that was just accepted; None where there is no room for it."""
        arrival = Arrival(address, cut_off)
        limits = self._limits
        here = self._addresses.get(arrival.network, 0)
        if here >= limits.connections_per_address:
            self._counters.turned_away("address")
            return None
        now = self._clock()
        room = limits.connections - (len(self._all) - len(self._connecting))
        if not self._take(self._connecting, arrival, now, "connections", room):
            return None
        if tls and not self._take(self._handshaking, arrival, now, "handshakes"):
            self._connecting.leave(arrival)
            return None
        self._all.add(arrival)
        self._addresses[arrival.network] = self._addresses.get(arrival.network, 0) + 1
        return arrival

    def secured(self, arrival: Arrival) -> None:
        """Take note that TLS is negotiated."""
        self._handshaking.leave(arrival)

    def hold(self, arrival: Arrival, size: int) -> None:
        """Take note of how much of a peer waits to be dealt with."""
        self._held_bytes += size - arrival.held
        arrival.held = size
        if size:
            self._held[arrival] = None
        else:
            self._held.pop(arrival, None)
        while self._held_bytes > HELD_BYTES:
            largest = max(self._held, key=lambda it: it.held)
            self._counters.turned_away("bytes")
            self._cut_off(largest)

    def connected(self, arrival: Arrival) -> None:
        """Take note that the CONNECT is here: what comes now is the log-in."""
        self._connecting.leave(arrival)

    def established(self, arrival: Arrival) -> None:
        """Take note that a client is let in: nobody takes its place any more."""
        self.hold(arrival, 0)
        arrival.cut_off = _stay

    def leave(self, arrival: Arrival) -> None:
        """Take a connection off the count."""
        if arrival not in self._all:
            return
        self._all.discard(arrival)
        self._connecting.leave(arrival)
        self._handshaking.leave(arrival)
        self.hold(arrival, 0)
        left = self._addresses[arrival.network] - 1
        if left:
            self._addresses[arrival.network] = left
        else:
            del self._addresses[arrival.network]

    def _take(
        self,
        places: FairPlaces[Arrival],
        arrival: Arrival,
        now: float,
        cause: str,
        room: int | None = None,
    ) -> bool:
        claim = places.claim(arrival.network, arrival, now, room=room)
        if not claim.granted or claim.displaced is not None:
            self._counters.turned_away(cause)
        if claim.displaced is not None:
            self._cut_off(claim.displaced)
        return claim.granted

    def _cut_off(self, arrival: Arrival) -> None:
        self.leave(arrival)
        arrival.cut_off()
