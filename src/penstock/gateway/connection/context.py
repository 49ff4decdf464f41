"""What all connections of one gateway have in common: their collaborators, and how they end.

    cause          to the client (MQTT 5)       to the broker
    CLIENT         nothing                      its DISCONNECT, as it said it
    LOST           nothing                      closed without a word: the will fires
    PROTOCOL       DISCONNECT with the reason   closed without a word
    KEEP_ALIVE     DISCONNECT 0x8D              closed without a word
    SLOW           DISCONNECT 0x97              closed without a word
    DENIED         DISCONNECT 0x87              closed without a word
    REVOKED        DISCONNECT 0x87              DISCONNECT: the will is not sent
    DRAIN          DISCONNECT 0x8B              closed without a word
    TAKEOVER       DISCONNECT 0x8E              closed without a word (the broker knows)
    BROKER         the broker's reason, 0x8B    nothing

Rules that hold here:
- The service builds the context once; nothing in it is exchanged while the gateway runs.
- What only one handler needs, that handler gets as an argument of its own.
- A server of MQTT 5 says why it closes (MQTT5 4.13); one of 3.1.1 has no words for it: only
  clients send DISCONNECT (MQTT3.1.1 3.14).
- No DISCONNECT is larger than the client takes: its text is left out first (MQTT5 3.14.2.2.3).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.gateway.authorization.delivery_check import DeliveryCheck
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.broker import RESERVED
from penstock.gateway.counters import Counters
from penstock.gateway.limits import Arrivals, Limits
from penstock.gateway.publishing.lanes import Lanes
from penstock.gateway.publishing.wills import Wills
from penstock.gateway.recording.recorder import Recorder
from penstock.mqtt import (
    V5,
    Connack,
    Disconnect,
    MqttError,
    Properties,
    PropertyLists,
    ReasonCode,
    Sender,
    TopicNames,
    UnsupportedVersionError,
)

FAREWELL_SECONDS = 5.0
"""After this a transport that cannot send the last words is cut off."""


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
    REVOKED = "revoked"


_REASONS = {
    Cause.BROKER: ReasonCode.SERVER_SHUTTING_DOWN,
    Cause.TAKEOVER: ReasonCode.SESSION_TAKEN_OVER,
    Cause.KEEP_ALIVE: ReasonCode.KEEP_ALIVE_TIMEOUT,
    Cause.SLOW: ReasonCode.QUOTA_EXCEEDED,
    Cause.DRAIN: ReasonCode.SERVER_SHUTTING_DOWN,
    Cause.DENIED: ReasonCode.NOT_AUTHORIZED,
    Cause.REVOKED: ReasonCode.NOT_AUTHORIZED,
}


def make_disconnect(
    cause: Cause, error: MqttError | None, *, texts: bool, largest: int
) -> Disconnect:
    """Make the DISCONNECT for a client, with a text where it wants texts and has room for it."""
    reason = int(error.reason if error is not None else _REASONS[cause])
    if error is None or not texts:
        return Disconnect(reason)
    told = Disconnect(reason, Properties(reason_string=error.message))
    return told if len(told.encode(V5)) <= largest else Disconnect(reason)


def encode_refusal(version: int | None, error: MqttError) -> bytes:
    """Encode the CONNACK for a CONNECT that could not be read; nothing: closed unanswered."""
    if isinstance(error, UnsupportedVersionError):
        return error.connack()
    if version is None:
        return b""
    # MQTT3.1.1 3.2.2.3: of its return codes only that for a bad client identifier fits.
    if version != V5 and error.reason is not ReasonCode.CLIENT_IDENTIFIER_NOT_VALID:
        return b""
    return Connack(int(error.reason)).encode(version)


def _client_properties() -> PropertyLists:
    return PropertyLists(Sender.CLIENT, reserved=RESERVED)


def _broker_properties() -> PropertyLists:
    return PropertyLists(Sender.SERVER, reserved=RESERVED)


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The collaborators of every connection."""

    loop: asyncio.AbstractEventLoop
    arrivals: Arrivals
    rules: Rules
    delivery_check: DeliveryCheck
    limits: Limits
    counters: Counters
    denials: Denials
    recorder: Recorder
    wills: Wills
    lanes: Lanes
    close_denied: bool = False
    """Whether a client of 3.1.1 whose message is denied is closed, instead of acknowledged."""
    topics: TopicNames = field(default_factory=TopicNames)
    """Topic names that were checked before, shared by all readers."""
    client_properties: PropertyLists = field(default_factory=_client_properties)
    broker_properties: PropertyLists = field(default_factory=_broker_properties)
