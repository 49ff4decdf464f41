"""The other gateways before the same broker: who takes a client identifier over, and from whom.

    CONNECT here ──▶ takeover, to all ──▶ each: its connection ends, its lane is settled
                                             │
    let in ◀── all have answered ◀───────────┘

The broker ends the other connection of a client identifier itself (MQTT5 3.1.4), but it does not
know whose messages come on a publish lane. So gateways with lanes tell each other.

Rules that hold here:
- The broker keeps who is there: each gateway has a retained message, and a will that clears it.
- Nobody is let in before all other gateways have ended their connections of that identifier, and
  the broker has dealt with what these published. One that does not answer in time is taken for
  gone; it announces itself again when it is not.
- Who comes later takes over. Of two takeovers that neither gateway has answered to the other,
  nobody is the later one: the one with the greater holder wins, at both.
- Lanes need a broker that answers in turn: an answer to a PINGREQ has to confirm what came before
  it. So some messages of QoS 1 to itself go before the first PINGREQ. Where the answer comes before
  their PUBACKs, or one of them says that it is not allowed, this gateway uses no lanes. Nor does
  it where the broker keeps no messages, or takes packets so small that a takeover might not fit.
- The topics begin as commands do: what clients publish there never reaches the broker, and what
  the broker delivers there reaches no client.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.gateway.broker import HEADROOM, SHARED_NAME_BYTES, BrokerAddress
from penstock.gateway.publishing.own_connection import PING, OwnConnection
from penstock.mqtt import (
    V5,
    MqttError,
    Packet,
    PeerLimits,
    Pingresp,
    Puback,
    Publish,
    ReasonCode,
    RequestedSubscription,
    Suback,
    Subscribe,
    Will,
)
from penstock.mqtt.codes import FAILURE
from penstock.telemetry import get_logger

TRIES: Final = 2
ANSWER_SECONDS: Final = 1.0
PROBES: Final = range(2, 6)
"""The packet identifiers of the messages that show whether the broker answers in turn."""
_NAME: Final = 16
_LEAST_PACKET: Final = HEADROOM + SHARED_NAME_BYTES
"""A takeover must fit: topic, both names, and the client identifier."""
_log = get_logger("gateway")

GiveWay = Callable[[str, Callable[[], None]], None]
"""Ends the connection of a client identifier, and calls back when its messages are through."""


class _Takeover:
    """A takeover that others have to answer."""

    __slots__ = ("answered", "client_id", "missing")

    def __init__(self, client_id: str, missing: set[str]) -> None:
        self.client_id = client_id
        self.missing = missing
        self.answered = asyncio.Event()

    def settle(self, name: str) -> None:
        self.missing.discard(name)
        if not self.missing:
            self.answered.set()


class Peers(OwnConnection):
    """What this gateway and the others tell each other through the broker."""

    purpose = "peer"

    def __init__(
        self, broker: BrokerAddress, prefix: str, give_way: GiveWay, lost: Callable[[], None]
    ) -> None:
        super().__init__(broker)
        self.ready = asyncio.Event()
        """Whether this gateway knows the others, and they know it."""
        self.refused = False
        """Whether no lanes can be used with this broker."""
        self.decided = asyncio.Event()
        """Whether one of both is known."""
        self.name = secrets.token_hex(_NAME // 2)
        self.others: set[str] = set()
        self._give_way = give_way
        self._lost = lost
        self._presence = f"{prefix}penstock/gateway/"
        self._takeover = f"{prefix}penstock/takeover"
        self._answer = f"{prefix}penstock/answer/"
        self._open: dict[str, _Takeover] = {}
        self._retains = True
        """Whether the broker keeps messages."""
        self._pings = 0
        """How many PINGREQs are not answered."""
        self._probes: set[int] | None = None
        """The messages to itself that are not acknowledged; None: there were none yet."""

    async def take_over(self, client_id: str, holder: str) -> None:
        """Let all other gateways end their connections of a client identifier."""
        if not self.ready.is_set() and not self.refused:
            # Nobody is let in whom others may not hear of; the broker may be away, too.
            async with asyncio.timeout(min(self.broker.timeout, ANSWER_SECONDS)):
                await self.decided.wait()
        if self.refused or not self.others:
            return
        waiting = self._open[holder] = _Takeover(client_id, set(self.others))
        try:
            for _ in range(TRIES):
                self._publish(self._takeover, f"{self.name}{holder}{client_id}")
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await waiting.answered.wait()
                except TimeoutError:
                    continue
                return
            for name in list(waiting.missing):
                _log.warning("a gateway that does not answer is taken for gone")
                self._publish(self._presence + name, "", retain=True)
        finally:
            del self._open[holder]

    # --- the connection ---

    def will(self) -> Will | None:
        """Let the broker clear the sign of this gateway."""
        return Will(self._presence + self.name, retain=True) if self._retains else None

    def turn_back(self, reason: int) -> None:
        """Come without a will next time, where the broker refuses one that it is to keep."""
        if reason == ReasonCode.RETAIN_NOT_SUPPORTED:
            self._retains = False

    def begin(self) -> None:
        """Listen to the others."""
        self._pings, self._probes, self.refused = 0, None, False
        without_will, self._retains = not self._retains, self.granted.retain_available != 0
        if without_will and self._retains:
            self.drop()  # the broker has changed: connect again, with a will
            return
        filters = (f"{self._presence}+", self._takeover, self._answer + self.name)
        wanted = tuple(RequestedSubscription(it, 0) for it in filters)
        self.send(Subscribe(1, wanted).encode(V5))

    def lose(self) -> None:
        """Take note that nobody can be told, or tell."""
        self.ready.clear()
        self.decided.clear()
        self.others.clear()
        for it in self._open.values():
            it.missing.clear()
            it.answered.set()
        self._lost()

    def ping(self) -> bool:
        """Send a PINGREQ unless one is under way; say whether one is."""
        if self._pings:
            return True
        self._ask()
        return False

    def take(self, packet: Packet) -> None:
        """Deal with a packet of the broker."""
        match packet:
            case Publish():
                self._hear(packet)
            case Suback():
                if max(packet.reasons) >= FAILURE or self.granted.maximum_qos == 0:
                    _log.error("no lanes: the broker does not let gateways tell of takeovers")
                    self._refuse()
                    return
                if not self._retains:
                    _log.warning("no lanes: the broker does not keep who is there")
                    self._refuse()
                    return
                if PeerLimits.said_in(self.granted).maximum_packet_size < _LEAST_PACKET:
                    _log.warning("no lanes: the packets that the broker takes are too small")
                    self._refuse()
                    return
                self._probes = set(PROBES)
                for number in PROBES:
                    probe = Publish.of(self._answer + self.name, qos=1, packet_id=number)
                    self.send(probe.encode(V5))
                self._publish(self._presence + self.name, self.name, retain=True)
                # Behind the signs of all others, and whatever was asked before.
                self._ask()
            case Puback():
                if self._probes:
                    self._probes.discard(packet.packet_id)
                if packet.failed and not self.refused:
                    _log.error("no lanes: the broker does not let gateways tell of takeovers")
                    self._refuse()
            case Pingresp():
                self._pings -= 1
                if not self._pings and self._probes is not None and not self.refused:
                    self._decide(in_turn=not self._probes)
            case _:
                raise MqttError(f"{packet.packet_type.name} is not expected here")

    def leave(self) -> None:
        """Take the sign of this gateway down, and leave in order."""
        if self.open:
            self._publish(self._presence + self.name, "", retain=True)
            self.close()

    # --- inside ---

    def _ask(self) -> None:
        self._pings += 1
        self.send(PING)

    def _decide(self, *, in_turn: bool) -> None:
        if in_turn:
            self.ready.set()
            self.decided.set()
        else:
            _log.warning("no lanes: the broker does not answer in turn")
            self._refuse()

    def _refuse(self) -> None:
        """Use no lanes: the broker itself ends the older connection of an identifier."""
        self.refused = True
        self.ready.clear()
        if self._retains:
            self._publish(self._presence + self.name, "", retain=True)
        self.decided.set()

    def _publish(self, topic: str, payload: str, *, retain: bool = False) -> None:
        self.send(Publish.of(topic, payload.encode(), retain=retain).encode(V5))

    def _hear(self, packet: Publish) -> None:
        topic, payload = packet.topic, packet.payload.decode("utf-8", "replace")
        if topic.startswith(self._presence):
            self._see(topic.removeprefix(self._presence), there=bool(payload))
        elif topic == self._takeover:
            name, holder = payload[:_NAME], payload[_NAME : 2 * _NAME]
            if name != self.name:
                answer = partial(self._publish, self._answer + name, f"{holder}{self.name}")
                client_id = payload[2 * _NAME :]
                if self._wins(client_id, holder, name):
                    answer()
                else:
                    self._give_way(client_id, answer)
        else:
            asked = self._open.get(payload[:_NAME])
            if asked is not None:
                asked.settle(payload[_NAME:])

    def _wins(self, client_id: str, holder: str, name: str) -> bool:
        """Say whether a takeover of this gateway came at once with one of another, and wins."""
        return any(
            own > holder and it.client_id == client_id and name in it.missing
            for own, it in self._open.items()
        )

    def _see(self, name: str, *, there: bool) -> None:
        if name == self.name:
            if not there and not self.refused:
                self._publish(self._presence + self.name, self.name, retain=True)
        elif there:
            self.others.add(name)
        else:
            self.others.discard(name)
            for it in self._open.values():
                it.settle(name)
