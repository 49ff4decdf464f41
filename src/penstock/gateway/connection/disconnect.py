"""How connections end: on which side, with which words, and what becomes of the will.

    cause          to the client (MQTT 5)       to the broker
    CLIENT         nothing                      its DISCONNECT, as it said it
    LOST           nothing                      closed without a word: the will fires
    PROTOCOL       DISCONNECT with the reason   closed without a word
    KEEP_ALIVE     DISCONNECT 0x8D              closed without a word
    SLOW           DISCONNECT 0x97              closed without a word
    DENIED         DISCONNECT 0x87              closed without a word
    DRAIN          DISCONNECT 0x8B              closed without a word
    TAKEOVER       DISCONNECT 0x8E              closed without a word (the broker knows)
    BROKER         the broker's reason, 0x8B    nothing

Rules that hold here:
- A connection ends once; the first cause counts.
- A will is the broker's to publish, unless policies or detection look at its topic: then
  it is judged and sent from here (`Wills`). Where the broker has it, it is told an ordinary
  DISCONNECT, which deletes the will.
- What was already handed to a transport is still sent, but a client that does not read
  cannot keep its connection open: after a grace the transport is cut off.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.mqtt import (
    NO_PROPERTIES,
    V5,
    Connack,
    Disconnect,
    MqttError,
    Properties,
    ReasonCode,
    UnsupportedVersionError,
)

if TYPE_CHECKING:
    from penstock.gateway.connection.downstream import Downstream

FAREWELL_SECONDS = 5.0


class Cause(StrEnum):
    """What ended a connection."""

    CLIENT = "client"
    LOST = "lost"
    BROKER = "broker"
    TAKEOVER = "takeover"
    PROTOCOL = "protocol"
    KEEP_ALIVE = "keep_alive"
    SLOW = "slow"
    DRAIN = "drain"
    DENIED = "denied"


_REASONS = {
    Cause.BROKER: ReasonCode.SERVER_SHUTTING_DOWN,
    Cause.TAKEOVER: ReasonCode.SESSION_TAKEN_OVER,
    Cause.KEEP_ALIVE: ReasonCode.KEEP_ALIVE_TIMEOUT,
    Cause.SLOW: ReasonCode.QUOTA_EXCEEDED,
    Cause.DRAIN: ReasonCode.SERVER_SHUTTING_DOWN,
    Cause.DENIED: ReasonCode.NOT_AUTHORIZED,
}


def end(
    client: Downstream,
    cause: Cause,
    *,
    error: MqttError | None = None,
    farewell: Disconnect | None = None,
) -> None:
    """End a client's connection and the one to the broker.

    `farewell` is the DISCONNECT of the side that ended it: to be passed on.
    """
    if client.ended:
        return
    client.ended = True
    client.backlog.cancel()
    if cause is not Cause.LOST:
        _take_leave(client, cause, error, farewell)
    client.connection.close()
    if client.open:
        client.gateway.counters.ended(cause)
    upstream = client.upstream
    said = (farewell or Disconnect()) if cause is Cause.CLIENT else None
    instead = None
    if said is None or said.reason == ReasonCode.DISCONNECT_WITH_WILL:
        instead = _instead_of_will(client)
    if upstream is not None and not upstream.ended:
        upstream.close(instead or said)
    if hasattr(client, "session"):
        client.gateway.wills.forget(client.session)
    client.gateway.forget(client)


def _take_leave(
    client: Downstream, cause: Cause, error: MqttError | None, farewell: Disconnect | None
) -> None:
    words = b""
    if client.open:
        if cause is not Cause.CLIENT and client.version == V5:
            words = (farewell or _disconnect(client, cause, error)).encode(V5)
    elif error is not None:
        client.gateway.counters.opened("malformed")
        words = _refusal(client, error)
    if words:
        client.send(words)
    client.transport.close()
    client.gateway.loop.call_later(FAREWELL_SECONDS, client.transport.abort)


def _disconnect(client: Downstream, cause: Cause, error: MqttError | None) -> Disconnect:
    reason = error.reason if error is not None else _REASONS[cause]
    properties = NO_PROPERTIES
    if error is not None and client.problems:
        properties = Properties(reason_string=error.message)
    told = Disconnect(int(reason), properties)
    fits = len(told.encode(V5)) <= client.takes.maximum_packet_size
    return told if fits else Disconnect(int(reason))


def _refusal(client: Downstream, error: MqttError) -> bytes:
    """Encode the CONNACK for a CONNECT that could not be read."""
    if isinstance(error, UnsupportedVersionError):
        return error.connack()
    version = client.reader.version
    if version is None:
        return b""
    # 3.1.1 has a return code for a bad client identifier only; all else is closed unanswered.
    if version != V5 and error.reason is not ReasonCode.CLIENT_IDENTIFIER_NOT_VALID:
        return b""
    return Connack(int(error.reason)).encode(version)


def _instead_of_will(client: Downstream) -> Disconnect | None:
    """Return the DISCONNECT that deletes a will at the broker, where it is judged here."""
    if not client.open or client.session.will is None:
        return None
    session = client.session
    if not client.gateway.rules.enforceable:
        client.gateway.denials.will(session)
        return Disconnect()
    given = session.will_given
    return Disconnect() if client.gateway.wills.leave(session) and given else None
