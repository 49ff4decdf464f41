"""What clients may cost, and connections from their accept on: counted, before TLS begins.

    accept ──▶ admit ──▶ (TLS) ──▶ WebSocket or CONNECT ──▶ log-in ──▶ established
                 │         │                                  │
              `connecting`, `handshaking`               LoginQueue

Places for unknown peers are shared fairly among their networks:

    a peer comes ──▶ room? ──▶ it gets a place
                       │no
                       ▼
        another network has more ──▶ the oldest peer of the one with most gives way
                       │no
                       ▼
        the oldest of its own network has had its time ──▶ that one gives way
                       │no
                       ▼
                    refused

Rules that hold here:
- What is over a limit is closed before anything is read from it or computed for it.
- Until the CONNECT of a peer is here, it has one of `unauthenticated` places, and while TLS
  is negotiated one of `handshakes`. Networks share both fairly (`FairPlaces`).
- So many places in all, and so many per network. Whoever takes all of them keeps nobody of
  another network out.
- Within one network a peer that is under way is not displaced before it has had `patience`:
  when a whole fleet reconnects, those that came first finish.
- A network is an IPv4 address, or the /64 of an IPv6 address: a host chooses the rest of it.
- What unauthenticated peers have sent is bounded in bytes, too: beyond that the one that
  holds most is closed.
- `connections` and `connections_per_address` count from the accept to the end.
- Each step takes constant time, whatever the number of peers.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.config.gateway import GatewaySettings

TICK_SECONDS = 1
"""How often the gateway looks after its connections."""

_GRACE = 1.5
"""MQTT5 3.1.2.10: so many keep alives a client may be silent."""
_FOREVER = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one gateway."""

    connections: int
    connections_per_address: int
    unauthenticated: int
    unauthenticated_per_address: int
    handshakes: int
    connect: int
    packet: int
    queue: int
    subscriptions: int
    content_filters: int
    receive_maximum: int
    client_id_bytes: int
    topic_bytes: int
    topic_levels: int
    topic_aliases: int
    commands: int
    state_commands: int
    keep_alive: int
    session_expiry: int
    connect_ticks: int
    stall_ticks: int
    pause_broker: bool
    """Whether a slow client stops the reading from the broker, or loses QoS 0 messages."""

    @classmethod
    def of(cls, settings: GatewaySettings) -> Limits:
        """Read the limits out of the settings."""
        given = settings.limits
        return cls(
            connections=given.connections,
            connections_per_address=given.connections_per_address,
            unauthenticated=given.unauthenticated,
            unauthenticated_per_address=given.unauthenticated_per_address,
            handshakes=given.handshakes,
            connect=min(given.connect, given.packet),
            packet=given.packet,
            queue=given.queue,
            subscriptions=given.subscriptions,
            content_filters=given.content_filters,
            receive_maximum=given.receive_maximum,
            client_id_bytes=given.client_id_bytes,
            topic_bytes=given.topic_bytes,
            topic_levels=given.topic_levels,
            topic_aliases=given.topic_aliases,
            commands=given.commands,
            state_commands=given.state_commands,
            keep_alive=int(given.keep_alive),
            session_expiry=int(given.session_expiry),
            connect_ticks=ticks(given.connect_timeout),
            stall_ticks=ticks(given.stall_timeout),
            pause_broker=settings.filtering.slow_clients == "wait",
        )

    def granted_keep_alive(self, asked: int) -> int:
        """Return the keep alive that a client gets: what it asked for, up to the limit."""
        return min(asked or self.keep_alive, self.keep_alive)

    @staticmethod
    def idle_ticks(keep_alive: int) -> int:
        """Return how many silent looks a client of this keep alive survives."""
        return ticks(keep_alive * _GRACE) if keep_alive else _FOREVER


def ticks(seconds: float) -> int:
    """Return how many looks it takes until so many seconds have surely passed."""
    return math.ceil(seconds / TICK_SECONDS) + 1


_HOST_BITS = 64
_REMEMBERED = 4_096

Peer = TypeVar("Peer", bound=Hashable)


@lru_cache(_REMEMBERED)
def network_of(address: str) -> str:
    """Return the network that an address counts for: itself, or the first of its /64."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(found) >> _HOST_BITS << _HOST_BITS))


class Claim(NamedTuple, Generic[Peer]):
    """What became of a claim: whether the peer has a place, and who gave way for it."""

    granted: bool
    displaced: Peer | None = None


class FairPlaces(Generic[Peer]):
    """Who has a place now."""

    def __init__(self, total: int, per_network: int, patience: float) -> None:
        self._total = total
        self._per_network = per_network
        self._patience = patience
        self._networks: dict[str, dict[Peer, float]] = {}
        self._by_count: dict[int, dict[str, None]] = {}
        """The networks by how many places they have, those that had so many first at the front."""
        self._most = 0
        self._network_of: dict[Peer, str] = {}

    def __len__(self) -> int:
        return len(self._network_of)

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._network_of))

    def __contains__(self, peer: object) -> bool:
        return peer in self._network_of

    def claim(
        self, network: str, peer: Peer, now: float, *, room: int | None = None
    ) -> Claim[Peer]:
        """Give a peer a place, if need be that of another; `room` may lower the places in all."""
        held = len(self._networks.get(network, ()))
        total = self._total if room is None else min(self._total, room)
        displaced: Peer | None = None
        if held >= self._per_network or len(self) >= total:
            if held < self._per_network and self._most > held + 1:
                displaced = self._oldest(self._greediest())[0]
            elif self._network_of:
                oldest, since = self._oldest(network if held else self._greediest())
                if now - since < self._patience:
                    return Claim(granted=False)
                displaced = oldest
            if displaced is None or total <= 0:
                return Claim(granted=False)
            self.leave(displaced)
        self._network_of[peer] = network
        self._networks.setdefault(network, {})[peer] = now
        self._move(network, -1)
        return Claim(granted=True, displaced=displaced)

    def leave(self, peer: Peer) -> None:
        """Take a peer's place back, if it has one."""
        network = self._network_of.pop(peer, None)
        if network is None:
            return
        peers = self._networks[network]
        del peers[peer]
        self._move(network, 1)
        if not peers:
            del self._networks[network]

    def _oldest(self, network: str) -> tuple[Peer, float]:
        return next(iter(self._networks[network].items()))

    def _greediest(self) -> str:
        return next(iter(self._by_count[self._most]))

    def _move(self, network: str, difference: int) -> None:
        """Note under which count a network is now; before, it had `difference` more."""
        count = len(self._networks[network])
        before = count + difference
        if before:
            del self._by_count[before][network]
            if not self._by_count[before]:
                del self._by_count[before]
        if count:
            self._by_count.setdefault(count, {})[network] = None
        if count > self._most or (before == self._most and before not in self._by_count):
            self._most = count


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
