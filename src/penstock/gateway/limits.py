"""What clients may cost, in the units that the gateway counts in."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.config.sections.gateway import GatewaySettings

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
