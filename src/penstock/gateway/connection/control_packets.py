"""What clients send beside messages and their acknowledgements.

Rules that hold here:
- A packet names at most as many filters as a client may have, or `FILTERS` where these are
  fewer: each costs a decision, a row and a question to the broker, and one client must not
  keep the loop from the others. A longer packet ends the connection before any of them is
  looked at.
- So does one whose answer, a byte for each filter, would be larger than the client takes.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from penstock.gateway.connection import subscribe
from penstock.gateway.connection.disconnect import Cause, end
from penstock.gateway.translation import strip
from penstock.mqtt import (
    V5,
    Disconnect,
    MqttError,
    Packet,
    Properties,
    ProtocolError,
    Pubrel,
    ReasonCode,
    Sender,
    Subscribe,
    Unsuback,
    Unsubscribe,
    encode_pubcomp,
)

if TYPE_CHECKING:
    from penstock.gateway.connection.downstream import Downstream

FILTERS = 1_000
"""How many filters a SUBSCRIBE or UNSUBSCRIBE may have in any case."""


def handle(client: Downstream, packet: Packet) -> Coroutine[Any, Any, None] | None:
    """Deal with a request; return what must be awaited before the next packet."""
    client.connection.see(Sender.CLIENT, packet)
    match packet:
        case Pubrel():
            if packet.packet_id in client.refused:
                client.refused.discard(packet.packet_id)
                client.send(encode_pubcomp(packet.packet_id))
            else:
                client.broker().write([packet.encode(V5)])
            return None
        case Subscribe():
            _check_count(client, len(packet.subscriptions))
            return subscribe.subscribe(client, packet)
        case Unsubscribe():
            _check_count(client, len(packet.filters))
            return subscribe.unsubscribe(client, packet)
        case Disconnect():
            _leave(client, packet)
    return None


def _check_count(client: Downstream, filters: int) -> None:
    most = max(FILTERS, client.gateway.limits.subscriptions)
    if filters > most:
        raise MqttError(
            f"one packet names {filters} filters; at most {most} are taken",
            reason=ReasonCode.QUOTA_EXCEEDED,
            fix="send several packets",
        )
    room = client.takes.maximum_packet_size
    needed = len(Unsuback(1, (0,) * filters).encode(client.version))
    if needed > room:
        raise MqttError(
            f"the answer for {filters} filters has {needed} bytes; the client takes {room}",
            reason=ReasonCode.PACKET_TOO_LARGE,
            fix="send several packets, or connect with a larger maximum packet size",
        )


def _leave(client: Downstream, packet: Disconnect) -> None:
    """Tell the broker in the client's words that it leaves."""
    said = packet.properties
    if said.session_expiry and not client.session.expiry:
        raise ProtocolError("DISCONNECT: a session that ends with its connection cannot be kept")
    if said.session_expiry is not None:
        client.session.expiry = said.session_expiry
    farewell = Disconnect(
        packet.reason, Properties(session_expiry=said.session_expiry, user=strip(said.user))
    )
    end(client, Cause.CLIENT, farewell=farewell)
