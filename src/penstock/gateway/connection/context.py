"""What all connections of one gateway have in common.

Rules that hold here:
- The service builds it once; nothing in it is exchanged while the gateway runs.
- What only one handler needs, that handler gets as an argument of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from penstock.gateway.authorization.delivery_check import DeliveryCheck
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.connection.arrivals import Arrivals
from penstock.gateway.counters import Counters
from penstock.gateway.limits import Limits
from penstock.gateway.publishing.lanes import Lanes
from penstock.gateway.publishing.wills import Wills
from penstock.gateway.recording.recorder import Recorder
from penstock.gateway.translation import RESERVED
from penstock.mqtt import PropertyLists, Sender, TopicNames


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
