"""The state machine of a network connection, and what belongs to one: peer limits, aliases.

One table serves both sides of the gateway, as it is written from neither: the gateway
shows it what it receives and what it sends.

        client CONNECT
    OPENING ──────────┬── without method ──▶ CONNECTING ─────────┐
                      │                                          │ server CONNACK
                      └── with method ─────▶ AUTHENTICATING ─────┤
                                               ▲  │ AUTH of      │
                                               └──┘ either side  ├─ below 0x80 ─▶ CONNECTED
                                                                 │                  │
                 CLOSED ◀── refusal ─────────────────────────────┘                  │
                    ▲                                                               │
                    └────────────────── DISCONNECT, or the network ends ────────────┘

Rules that hold here:
- What the table does not name is a protocol error; so is a second CONNECT or CONNACK.
- A client need not wait for the CONNACK before it sends, unless it named an authentication
  method. Who serves clients must not act on such packets before it has accepted them.
- AUTH is only for connections that were opened with a method, and keeps to that method.
- In CONNECTED, PUBLISH and its acknowledgements change nothing here: a caller that sees
  them by the thousand can leave out `see` while `state` is `ConnectionState.CONNECTED`.
- Topic aliases belong to one direction of one connection. The table never holds more than
  the maximum that this side announced, which also bounds what a sender makes us remember.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from penstock.mqtt.codes import (
    FAILURE,
    PACKET_SIZE_LIMIT,
    PacketType,
    ProtocolError,
    Sender,
    TopicAliasError,
)
from penstock.mqtt.connect import Auth, Connack, Connect
from penstock.mqtt.data_types import FIELD_LIMIT
from penstock.mqtt.properties import Properties
from penstock.mqtt.publish import Publish
from penstock.mqtt.reader import Packet


class ConnectionState(Enum):
    """Where a connection stands."""

    OPENING = "opening"
    CONNECTING = "connecting"
    AUTHENTICATING = "authenticating"
    CONNECTED = "connected"
    CLOSED = "closed"


_Moves = dict[tuple[Sender, PacketType], ConnectionState]

_EXCHANGE = (
    *(PacketType.PUBLISH, PacketType.PUBACK, PacketType.PUBREC),
    *(PacketType.PUBREL, PacketType.PUBCOMP),
)
_REQUESTS = (*_EXCHANGE, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.PINGREQ)
_ANSWERS = (*_EXCHANGE, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP)
_CLIENT_LEAVES: Final[_Moves] = {(Sender.CLIENT, PacketType.DISCONNECT): ConnectionState.CLOSED}


def _stay(state: ConnectionState, sender: Sender, kinds: tuple[PacketType, ...]) -> _Moves:
    return {(sender, kind): state for kind in kinds}


TABLE: Final[dict[ConnectionState, _Moves]] = {
    ConnectionState.OPENING: {(Sender.CLIENT, PacketType.CONNECT): ConnectionState.CONNECTING},
    ConnectionState.CONNECTING: {
        (Sender.SERVER, PacketType.CONNACK): ConnectionState.CONNECTED,
        **_stay(ConnectionState.CONNECTING, Sender.CLIENT, _REQUESTS),
        **_CLIENT_LEAVES,
    },
    ConnectionState.AUTHENTICATING: {
        (Sender.SERVER, PacketType.CONNACK): ConnectionState.CONNECTED,
        **_stay(ConnectionState.AUTHENTICATING, Sender.CLIENT, (PacketType.AUTH,)),
        **_stay(ConnectionState.AUTHENTICATING, Sender.SERVER, (PacketType.AUTH,)),
        **_CLIENT_LEAVES,
    },
    ConnectionState.CONNECTED: {
        **_stay(ConnectionState.CONNECTED, Sender.CLIENT, (*_REQUESTS, PacketType.AUTH)),
        **_stay(ConnectionState.CONNECTED, Sender.SERVER, (*_ANSWERS, PacketType.AUTH)),
        **_CLIENT_LEAVES,
        (Sender.SERVER, PacketType.DISCONNECT): ConnectionState.CLOSED,
    },
    ConnectionState.CLOSED: {},
}
"""Who may send which packet in a state, and the state after it."""


class Connection:
    """Follows one network connection through its states."""

    __slots__ = ("method", "state")

    def __init__(self) -> None:
        self.state = ConnectionState.OPENING
        self.method: str | None = None

    def see(self, sender: Sender, packet: Packet) -> ConnectionState:
        """Follow a packet that was received or is sent; refuse one that the state forbids."""
        kind = packet.packet_type
        state = TABLE[self.state].get((sender, kind))
        if state is None:  # MQTT5 3.1, 4.12
            raise ProtocolError(f"{kind.name} from the {sender.value} while {self.state.value}")
        if isinstance(packet, Connect):
            self.method = packet.properties.authentication_method
            if self.method is not None:
                state = ConnectionState.AUTHENTICATING
        elif isinstance(packet, Connack):
            if packet.reason >= FAILURE:
                state = ConnectionState.CLOSED
            elif packet.properties.authentication_method != self.method:  # MQTT5 4.12
                raise ProtocolError("CONNACK: another authentication method than the client's")
        elif isinstance(packet, Auth):
            self._check_method(packet)
        self.state = state
        return state

    def close(self) -> None:
        """Note that the network connection has ended."""
        self.state = ConnectionState.CLOSED

    def _check_method(self, packet: Auth) -> None:
        if self.method is None:  # MQTT5 4.12
            raise ProtocolError("AUTH on a connection without authentication method")
        # Reason 0 without properties is the short form, which names no method.
        given = packet.properties.authentication_method
        if given != self.method and (given is not None or packet.reason):  # MQTT5 4.12.1
            raise ProtocolError("AUTH: another authentication method than at CONNECT")


class PeerLimits(NamedTuple):
    """What one side said it takes, with the specification's values where it said nothing."""

    receive_maximum: int = FIELD_LIMIT
    maximum_packet_size: int = PACKET_SIZE_LIMIT
    topic_alias_maximum: int = 0

    @classmethod
    def said_in(cls, properties: Properties) -> PeerLimits:
        """Read the limits out of a CONNECT's or CONNACK's properties."""
        return cls(
            properties.receive_maximum or FIELD_LIMIT,
            properties.maximum_packet_size or PACKET_SIZE_LIMIT,
            properties.topic_alias_maximum or 0,
        )


class TopicAliases:
    """The topic aliases that the other side has introduced.

    After `expand` a message has its topic; the alias stays behind, as
    `PublishProperties.kept` never carries one.
    """

    __slots__ = ("_maximum", "_topics")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._topics: dict[int, tuple[bytes, str]] | None = None

    def expand(self, message: Publish) -> None:
        """Learn the alias that a message introduces, or fill in the topic it stands for."""
        alias = message.properties.topic_alias
        if not alias:
            return
        if alias > self._maximum:  # MQTT5 3.3.2.3.4
            raise TopicAliasError(f"PUBLISH: topic alias {alias} is above {self._maximum}")
        if self._topics is None:
            self._topics = {}
        if message.topic:
            self._topics[alias] = (message.topic_field, message.topic)
            return
        known = self._topics.get(alias)
        if known is None:
            raise ProtocolError(f"PUBLISH: topic alias {alias} was never introduced")
        message.topic_field, message.topic = known
