"""From bytes to packets, however the bytes were cut.

    reader.feed(data)
    while batch := reader.packets():
        for packet in batch: ...

`packets` gives all complete packets at once. If one of them breaks a rule, the packets
before it are given first, and the next call raises. After that the reader takes nothing more.

Rules that hold here:
- Who sends and which version is spoken decides what is accepted. A reader for clients
  knows no version until it has read a CONNECT, and takes nothing else before.
- A packet's first byte and length are judged as soon as they are there; what is too large
  is refused before any of it is kept.
- At most one incomplete packet is kept. Every byte is copied a bounded number of times,
  even when bytes come one by one.
- PUBLISH and plain acknowledgements take the short way through the loop; everything else
  is rare and looked up in a table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.errors import UsageError, quote
from penstock.mqtt.acks import Puback, Pubcomp, Pubrec, Pubrel, read_ack
from penstock.mqtt.codes import (
    FIXED_FLAGS,
    PACKET_SIZE_LIMIT,
    RESENT,
    SENDABLE,
    V3,
    V5,
    V31,
    MalformedPacketError,
    MqttError,
    PacketTooLargeError,
    PacketType,
    ProtocolError,
    Sender,
)
from penstock.mqtt.connect import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    read_auth,
    read_connack,
    read_connect,
    read_disconnect,
    read_pingreq,
    read_pingresp,
    read_version,
)
from penstock.mqtt.data_types import Cursor, read_varint
from penstock.mqtt.publish import (
    PUBLISH_FIRST,
    PropertyLists,
    Publish,
    TopicNames,
    read_publish,
)
from penstock.mqtt.subscriptions import (
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    read_suback,
    read_subscribe,
    read_unsuback,
    read_unsubscribe,
)

Packet = (
    Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Connect
    | Connack
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)

_Decoder = Callable[[Cursor], Packet]


def _decoders(version: int, sender: Sender) -> dict[int, _Decoder]:
    """Give what reads a packet by its first byte; what is missing is not allowed."""
    every: dict[PacketType, _Decoder] = {
        PacketType.CONNACK: partial(read_connack, version=version),
        PacketType.PUBACK: partial(read_ack, version=version, sender=sender, kind=Puback),
        PacketType.PUBREC: partial(read_ack, version=version, sender=sender, kind=Pubrec),
        PacketType.PUBREL: partial(read_ack, version=version, sender=sender, kind=Pubrel),
        PacketType.PUBCOMP: partial(read_ack, version=version, sender=sender, kind=Pubcomp),
        PacketType.SUBSCRIBE: partial(read_subscribe, version=version),
        PacketType.SUBACK: partial(read_suback, version=version),
        PacketType.UNSUBSCRIBE: partial(read_unsubscribe, version=version),
        PacketType.UNSUBACK: partial(read_unsuback, version=version),
        PacketType.PINGREQ: read_pingreq,
        PacketType.PINGRESP: read_pingresp,
        PacketType.DISCONNECT: partial(read_disconnect, version=version, sender=sender),
        PacketType.AUTH: partial(read_auth, sender=sender),
    }
    return {
        kind << 4 | FIXED_FLAGS[kind]: every[kind]
        for kind in SENDABLE[sender, version]
        if kind in every
    }


_DECODERS: Final = {
    (version, sender): _decoders(version, sender) for version in (V3, V5) for sender in Sender
}
_ACK_TYPES: Final[dict[int, type[Puback | Pubrec | Pubrel | Pubcomp]]] = {
    0x40: Puback,
    0x50: Pubrec,
    0x62: Pubrel,
    0x70: Pubcomp,
}
_ACK_SIZE: Final = 2
_LONG: Final = 0x80
_CONNECT: Final = 0x10
_NAMES: Final = {int(kind): kind.name for kind in PacketType}


class Reader:
    """Splits what one side of a connection sends into packets.

    `topics` and `properties` can be shared by all readers of the same direction; a reader
    that gets none makes its own. `maximum_packet_size` can be changed between packets.
    """

    __slots__ = (
        "_late",
        "_need",
        "_unjudged",
        "held",
        "maximum_packet_size",
        "properties",
        "refused",
        "sender",
        "topics",
        "version",
    )

    def __init__(
        self,
        sender: Sender,
        *,
        version: int | None = None,
        maximum_packet_size: int = PACKET_SIZE_LIMIT,
        topics: TopicNames | None = None,
        properties: PropertyLists | None = None,
    ) -> None:
        if version not in ((None, V3, V5) if sender is Sender.CLIENT else (V3, V5)):
            raise UsageError(f"{quote(version)} is not a protocol version", fix="use V3 or V5")
        self.sender = sender
        self.version = version
        self.maximum_packet_size = maximum_packet_size
        self.topics = TopicNames() if topics is None else topics
        self.properties = PropertyLists(sender) if properties is None else properties
        self.held: bytes | bytearray = b""
        """What is kept of an incomplete packet."""
        self._need = 0
        self.refused = False
        """Whether a rule was broken: `packets` raises as soon as those before are taken."""
        self._late: MqttError | None = None
        self._unjudged = 0
        """The flags of PUBREL, SUBSCRIBE and UNSUBSCRIBE that mean nothing here."""

    @property
    def buffered(self) -> int:
        """How many bytes of an incomplete packet are kept."""
        return len(self.held)

    def feed(self, data: bytes) -> None:
        """Take what arrived."""
        held = self.held
        if not held:
            self.held = data
        elif self._need and len(held) + len(data) >= self._need:
            self.held = b"".join((held, data))
        elif isinstance(held, bytearray):
            held += data
        else:
            # Growing in place, so that a large packet in small pieces is not copied for each.
            self.held = bytearray(held)
            self.held += data

    def discard(self) -> None:
        """Forget what is kept: nothing more will come."""
        self.held = b""
        self._late = None

    def first_packet(self) -> Packet | None:
        """Give a client's first packet, its CONNECT, if complete; what follows stays bytes."""
        held = self.held
        if not held or len(held) < self._need:
            return None
        data = bytes(held)
        try:
            self._hold(data, 0)
            stop = self._need
            if stop > len(data):
                return None
            packet = self._decode(data[0], data, _body_of(data), stop)
        except MqttError:
            self.refused = True
            self.held = b""
            raise
        self._need = 0
        self.held = data[stop:]
        return packet

    # One function although it is long: every packet passes here, and calls cost.
    def packets(self) -> list[Packet]:  # noqa: C901, PLR0912
        """Give the packets that are complete; raise if the next one breaks a rule."""
        if self.refused:
            raise self._late_error()
        held = self.held
        if not held or len(held) < self._need:
            return []
        data = held if type(held) is bytes else bytes(held)
        self.held = b""
        self._need = 0
        packets: list[Packet] = []
        version = self.version
        limit = self.maximum_packet_size
        at = 0
        end = len(data)
        try:
            while end - at > 1:
                first = data[at]
                size = data[at + 1]
                start = at + 2
                if size >= _LONG:
                    if start < end and 0 < data[start] < _LONG:  # two bytes: most long lengths
                        size += (data[start] << 7) - _LONG
                        start += 1
                    else:
                        self._check_first(first)
                        read = read_varint(data, at + 1, end)
                        if read is None:
                            break
                        size, start = read
                stop = start + size
                if stop > end or stop - at > limit:
                    break
                if version and first in PUBLISH_FIRST:
                    packets.append(
                        read_publish(
                            first, data, start, stop, version, self.topics, self.properties
                        )
                    )
                elif size == _ACK_SIZE and version and first in _ACK_TYPES:
                    packet_id = data[start] << 8 | data[start + 1]
                    if not packet_id:  # MQTT5 2.2.1
                        raise ProtocolError(f"{_NAMES[first >> 4]}: packet identifier is 0")
                    packets.append(_ACK_TYPES[first](packet_id))
                else:
                    packets.append(self._decode(first, data, start, stop))
                    version = self.version
                at = stop
            if at < end:
                self._hold(data, at)
        except MqttError as error:
            self.refused = True
            if not packets:
                raise
            self._late = error.with_traceback(None)
        return packets

    def _decode(self, first: int, data: bytes, start: int, stop: int) -> Packet:
        """Decode one packet that is neither PUBLISH nor a plain acknowledgement."""
        self._check_first(first)
        cursor = Cursor(_NAMES[first >> 4], data, start, stop)
        version = self.version
        if version is None:
            # Known from here on, even if the rest is refused: the answer depends on it.
            level = read_version(cursor)
            self.version = V3 if level == V31 else level
            self._unjudged = RESENT if level == V31 else 0
            return read_connect(cursor, level)
        if first == _CONNECT:
            return read_connect(cursor, read_version(cursor))
        if FIXED_FLAGS[PacketType(first >> 4)]:
            first &= ~self._unjudged
        return _DECODERS[version, self.sender][first](cursor)

    def _hold(self, data: bytes, at: int) -> None:
        """Keep the beginning of a packet, unless it already shows that it is refused."""
        self._check_first(data[at])
        read = read_varint(data, at + 1, len(data))
        if read is None:
            self._need = len(data) - at + 1
        else:
            size, start = read
            self._need = start - at + size
            if self._need > self.maximum_packet_size:  # MQTT5 3.1.2.11.4
                raise PacketTooLargeError(
                    f"{_NAMES[data[at] >> 4]}: {self._need} bytes, of which at most "
                    f"{self.maximum_packet_size} are accepted"
                )
        self.held = data[at:]

    def _late_error(self) -> MqttError:
        """Give the error that waits until the packets before it are taken, if it still does.

        It is given once and not kept: an error that was raised refers to the frames it came
        through, and so to the bytes that a hostile client sent and to this reader.
        """
        self.held = b""
        late, self._late = self._late, None
        return late or ProtocolError("the connection was refused before")

    def _check_first(self, first: int) -> None:
        """Refuse a first byte that cannot begin a packet here."""
        kind = first >> 4
        if not kind:  # MQTT5 2.1.2
            raise MalformedPacketError("packet type 0 does not exist")
        if self.version is None:
            if kind != PacketType.CONNECT:  # MQTT5 3.1
                raise ProtocolError(f"{_NAMES[kind]} before CONNECT")
        elif kind not in SENDABLE[self.sender, self.version]:  # MQTT5 2.1.2
            raise ProtocolError(f"{_NAMES[kind]} is not for a {self.sender.value} to send")
        if kind == PacketType.PUBLISH:
            if first not in PUBLISH_FIRST:  # MQTT5 3.3.1.1, 3.3.1.2
                raise MalformedPacketError("PUBLISH: QoS is 3, or DUP is set although QoS is 0")
            return
        flags = FIXED_FLAGS[PacketType(kind)]
        if first & 0xF & ~(self._unjudged if flags else 0) != flags:  # MQTT5 2.1.3
            raise MalformedPacketError(f"{_NAMES[kind]}: reserved flags are set")


def _body_of(data: bytes) -> int:
    """Return where the packet at the beginning has its body."""
    return next(at for at in range(1, len(data)) if data[at] < _LONG) + 1
