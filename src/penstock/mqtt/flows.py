"""QoS 1 and 2: the exchanges that are under way in a session, by packet identifier.

`Outgoing` is the side that sends messages, `Incoming` the side that receives them. In
capitals: what the side itself sends.

    Outgoing  QoS 1   PUBLISH ─▶ WAIT_PUBACK ─ puback ─▶ done
              QoS 2   PUBLISH ─▶ WAIT_PUBREC ─ pubrec ─▶ PUBREL ─▶ WAIT_PUBCOMP ─ pubcomp ─▶ done
                                      └─ pubrec ≥ 0x80 ─▶ done

    Incoming  QoS 1   publish ─▶ OWES_PUBACK ─ PUBACK ─▶ done
              QoS 2   publish ─▶ OWES_PUBREC ─ PUBREC ─▶ WAIT_PUBREL ─ pubrel ─▶ OWES_PUBCOMP
                                      │                    publish again: not new     │
                                      └─ PUBREC ≥ 0x80 ─▶ done  ◀────── PUBCOMP ──────┘

Rules that hold here:
- An identifier means one exchange per direction until that exchange is done.
- An answer of the wrong kind is a protocol error; one for an unknown identifier is not, as
  it happens after a session was lost: the caller answers 0x92 or ignores it.
- Never more messages are under way than the receiver's Receive Maximum. The sender waits;
  the receiver treats more as an error. Both begin anew with each network connection.
- What must be sent again after a reconnect is given in the order of its first sending.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from penstock.errors import UsageError
from penstock.mqtt.acks import Ack, Puback, Pubcomp, Pubrec, Pubrel
from penstock.mqtt.errors import ProtocolError, ReceiveMaximumError
from penstock.mqtt.kinds import PacketType

_HIGHEST_ID = 65_535
_EXACTLY_ONCE = 2

T = TypeVar("T")


class Sent(Enum):
    """Where a sent message stands."""

    WAIT_PUBACK = "waits for PUBACK"
    WAIT_PUBREC = "waits for PUBREC"
    WAIT_PUBCOMP = "waits for PUBCOMP"


class Received(Enum):
    """Where a received message stands."""

    OWES_PUBACK = "owes PUBACK"
    OWES_PUBREC = "owes PUBREC"
    WAIT_PUBREL = "waits for PUBREL"
    OWES_PUBCOMP = "owes PUBCOMP"


class Step(Enum):
    """What an answer did to an exchange."""

    DONE = "done"
    GOES_ON = "goes on"
    UNKNOWN = "unknown"


SENDING: Final[dict[tuple[Sent, PacketType], Sent | None]] = {
    (Sent.WAIT_PUBACK, PacketType.PUBACK): None,
    (Sent.WAIT_PUBREC, PacketType.PUBREC): Sent.WAIT_PUBCOMP,
    # A PUBREC can come again after a reconnect; the PUBREL is then repeated.
    (Sent.WAIT_PUBCOMP, PacketType.PUBREC): Sent.WAIT_PUBCOMP,
    (Sent.WAIT_PUBCOMP, PacketType.PUBCOMP): None,
}
"""The state after an answer to a sent message; None where the exchange is done."""

RECEIVING: Final[dict[tuple[Received, PacketType], Received | None]] = {
    (Received.OWES_PUBACK, PacketType.PUBACK): None,
    (Received.OWES_PUBREC, PacketType.PUBREC): Received.WAIT_PUBREL,
    # A message that came again is acknowledged again.
    (Received.WAIT_PUBREL, PacketType.PUBREC): Received.WAIT_PUBREL,
    (Received.WAIT_PUBREL, PacketType.PUBREL): Received.OWES_PUBCOMP,
    (Received.OWES_PUBCOMP, PacketType.PUBREL): Received.OWES_PUBCOMP,
    (Received.OWES_PUBCOMP, PacketType.PUBCOMP): None,
}
"""The state after an answer to a received message; None where the exchange is done."""


@dataclass(slots=True)
class Exchange(Generic[T]):
    """One sent message that is not acknowledged yet."""

    packet_id: int
    state: Sent
    message: T
    counted: bool = True
    """Whether it counts against the receive maximum of this network connection."""


class Outgoing(Generic[T]):
    """The messages that were sent with QoS 1 or 2 and are still under way."""

    __slots__ = ("_exchanges", "_last", "_open", "_receive_maximum", "_unsent")

    def __init__(self, receive_maximum: int = _HIGHEST_ID) -> None:
        self._exchanges: dict[int, Exchange[T]] = {}
        self._receive_maximum = receive_maximum
        # Messages of this network connection that count against the maximum.
        self._open = 0
        # Identifiers whose packets must be repeated before anything new is sent.
        self._unsent: dict[int, None] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._exchanges)

    @property
    def ready(self) -> bool:
        """Whether another message may be sent now."""
        return (
            self._open < self._receive_maximum
            and not self._unsent
            and len(self._exchanges) < _HIGHEST_ID
        )

    def start(self, qos: int, message: T) -> int:
        """Give a new message a free packet identifier."""
        packet_id = self._last
        if len(self._exchanges) < _HIGHEST_ID:
            packet_id = packet_id % _HIGHEST_ID + 1
            while packet_id in self._exchanges:
                packet_id = packet_id % _HIGHEST_ID + 1
        self.adopt(packet_id, qos, message)
        self._last = packet_id
        return packet_id

    def adopt(self, packet_id: int, qos: int, message: T) -> None:
        """Begin with an identifier that somebody else has chosen."""
        if not self.ready or packet_id in self._exchanges:
            raise UsageError(
                f"packet identifier {packet_id} cannot be used now",
                fix="wait until `ready`, and until the identifier is free",
            )
        state = Sent.WAIT_PUBREC if qos == _EXACTLY_ONCE else Sent.WAIT_PUBACK
        self._exchanges[packet_id] = Exchange(packet_id, state, message)
        self._open += 1

    def take(self, ack: Puback | Pubrec | Pubcomp) -> Step:
        """Take an answer. After PUBREC, `GOES_ON` says that the PUBREL is due."""
        exchange = self._exchanges.get(ack.packet_id)
        if exchange is None:
            return Step.UNKNOWN
        state = _advance(SENDING, exchange.state, ack)
        if state is None or (ack.failed and isinstance(ack, Pubrec)):
            del self._exchanges[ack.packet_id]
            self._unsent.pop(ack.packet_id, None)
            self._open -= exchange.counted
            return Step.DONE
        if exchange.state is not state:
            # PUBRELs are repeated in the order of the PUBRECs, so the exchange moves back.
            self._exchanges[ack.packet_id] = self._exchanges.pop(ack.packet_id)
            exchange.state = state
        return Step.GOES_ON

    def reconnect(self, receive_maximum: int = _HIGHEST_ID) -> None:
        """Begin with a new network connection of the same session."""
        self._receive_maximum = receive_maximum
        self._open = 0
        self._unsent = dict.fromkeys(self._exchanges)
        for exchange in self._exchanges.values():
            exchange.counted = False

    def repeat(self) -> list[Exchange[T]]:
        """Give what must be sent again and may be sent now.

        Call it after `reconnect` and after each answer until `ready`. In WAIT_PUBCOMP it is
        the PUBREL that is repeated, otherwise the message with DUP.
        """
        due: list[Exchange[T]] = []
        for packet_id in list(self._unsent):
            exchange = self._exchanges[packet_id]
            if exchange.state is not Sent.WAIT_PUBCOMP:
                if self._open >= self._receive_maximum:
                    break
                self._open += 1
                exchange.counted = True
            del self._unsent[packet_id]
            due.append(exchange)
        return due


class Incoming:
    """The messages that were received with QoS 1 or 2 and are not done yet."""

    __slots__ = ("_counted", "_open", "_receive_maximum", "_states")

    def __init__(self, receive_maximum: int = _HIGHEST_ID) -> None:
        self._states: dict[int, Received] = {}
        self._receive_maximum = receive_maximum
        # The sender's quota as it must see it: an exchange of an earlier connection that
        # ends gives quota back as well, up to the maximum.
        self._open = 0
        self._counted: set[int] = set()

    def __len__(self) -> int:
        return len(self._states)

    def state(self, packet_id: int) -> Received | None:
        """Tell where a message stands."""
        return self._states.get(packet_id)

    def receive(self, packet_id: int, qos: int) -> bool:
        """Take a message; False says that it came before and must not be delivered again."""
        owes = Received.OWES_PUBREC if qos == _EXACTLY_ONCE else Received.OWES_PUBACK
        known = self._states.get(packet_id)
        if known is not None and (known is Received.OWES_PUBACK) is not (
            owes is Received.OWES_PUBACK
        ):
            raise ProtocolError("PUBLISH: its packet identifier is in use with another QoS")
        if packet_id not in self._counted:
            if self._open >= self._receive_maximum:
                raise ReceiveMaximumError(
                    f"PUBLISH: more than {self._receive_maximum} messages are not acknowledged"
                )
            self._counted.add(packet_id)
            self._open += 1
        if known is None:
            self._states[packet_id] = owes
        return known is None

    def step(self, ack: Puback | Pubrec | Pubrel | Pubcomp) -> Step:
        """Take a PUBREL that came, or an acknowledgement that is being sent."""
        known = self._states.get(ack.packet_id)
        if known is None:
            return Step.UNKNOWN
        state = _advance(RECEIVING, known, ack)
        if state is None or (ack.failed and isinstance(ack, Pubrec)):
            del self._states[ack.packet_id]
            self._counted.discard(ack.packet_id)
            self._open = max(0, self._open - 1)
            return Step.DONE
        self._states[ack.packet_id] = state
        return Step.GOES_ON

    def reconnect(self, receive_maximum: int = _HIGHEST_ID) -> None:
        """Begin with a new network connection: only QoS 2 is remembered across it."""
        self._receive_maximum = receive_maximum
        self._open = 0
        self._counted.clear()
        kept = (Received.OWES_PUBREC, Received.WAIT_PUBREL)
        self._states = {number: state for number, state in self._states.items() if state in kept}


_S = TypeVar("_S", Sent, Received)


def _advance(table: dict[tuple[_S, PacketType], _S | None], state: _S, ack: Ack) -> _S | None:
    try:
        return table[state, ack.packet_type]
    except KeyError:
        raise ProtocolError(f"{ack.packet_type.name} for a message that {state.value}") from None
