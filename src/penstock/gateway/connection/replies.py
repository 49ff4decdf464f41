"""Answers to messages that do not go to the broker: denied ones, and commands.

Rules that hold here:
- MQTT 5 is told the reason, 0x87 or what fits better, with a text where the client wants
  texts; 3.1.1 gets an ordinary acknowledgement or the end of its connection, as configured.
- With QoS 0 there is no answer.
- No answer is larger than the largest packet that the client takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.gateway.connection.disconnect import Cause, end
from penstock.mqtt import (
    NO_PROPERTIES,
    V5,
    Properties,
    Puback,
    Publish,
    Pubrec,
    ReasonCode,
    encode_puback,
    encode_pubrec,
)

if TYPE_CHECKING:
    from penstock.gateway.connection.downstream import Downstream

_QOS = 0x06
_AT_LEAST_ONCE = 0x02


class Answer(Protocol):
    """A packet that can be encoded."""

    def encode(self, version: int, /) -> bytes:
        """Encode for a protocol version."""
        ...


def within(client: Downstream, told: Answer, short: Answer) -> bytes:
    """Encode an answer, or its short form where the client takes no packet of that size."""
    data = told.encode(client.version)
    return data if len(data) <= client.takes.maximum_packet_size else short.encode(client.version)


def deny(client: Downstream, packet: Publish, why: str, text: str, reason: ReasonCode) -> None:
    """Answer a message that does not go to the broker."""
    gateway = client.gateway
    gateway.counters.denied("publish", why)
    qos = packet.first & _QOS
    if client.version == V5:
        if qos:
            kind = Puback if qos == _AT_LEAST_ONCE else Pubrec
            properties = Properties(reason_string=text) if client.problems else NO_PROPERTIES
            told = kind(packet.packet_id, int(reason), properties)
            client.send(within(client, told, kind(packet.packet_id, int(reason))))
        return
    if gateway.close_denied:
        end(client, Cause.DENIED)
        return
    confirm(client, packet)


def confirm(client: Downstream, packet: Publish) -> None:
    """Acknowledge a message that was dealt with here."""
    qos = packet.first & _QOS
    if qos == _AT_LEAST_ONCE:
        client.send(encode_puback(packet.packet_id))
    elif qos:
        client.refused.add(packet.packet_id)
        client.send(encode_pubrec(packet.packet_id))
