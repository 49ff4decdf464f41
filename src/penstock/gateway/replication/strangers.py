"""Connections to the leader that have not said yet which follower they are.

Rules that hold here:
- They have few places, which networks share fairly: nobody keeps followers out by opening many.
- Their refusal is logged once a second, with how many there were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, cast

from penstock.clock import boot_clock
from penstock.gateway.fair_places import FairPlaces, network_of
from penstock.gateway.replication.link import Link, ReplicationTerms
from penstock.gateway.replication.messages import Message
from penstock.telemetry import get_logger

MAX_STRANGERS: Final = 100
_PATIENCE_SECONDS: Final = 1.0
_TOO_MANY: Final = "there are too many strangers"

_log = get_logger("gateway")


class Strangers:
    """Who is connected and not known."""

    def __init__(self) -> None:
        self._places: FairPlaces[Link] = FairPlaces(
            MAX_STRANGERS, MAX_STRANGERS // 2, _PATIENCE_SECONDS
        )
        self._refused = 0
        self._told = 0.0

    def __iter__(self) -> Iterator[Link]:
        return iter(self._places)

    def admit(self, link: Link, address: str) -> bool:
        """Give a connection a place; False where there is none for it."""
        claim = self._places.claim(network_of(address), link, boot_clock())
        if claim.displaced is not None:
            claim.displaced.cut_off(_TOO_MANY)
        return claim.granted

    def leave(self, link: Link) -> None:
        """Take note that a connection is known, or gone."""
        self._places.leave(link)

    def note_refusal(self) -> None:
        """Log that somebody was refused, once a second."""
        self._refused += 1
        now = boot_clock()
        if now - self._told >= 1.0:
            count, self._refused, self._told = self._refused, 0, now
            _log.warning(
                "connections from another gateway were refused", reason="link", count=count
            )


class IncomingLink(Link):
    """A connection that somebody opened to the leader."""

    def __init__(
        self,
        terms: ReplicationTerms,
        strangers: Strangers,
        *,
        heard: Callable[[Link, Message], None],
        ended: Callable[[Link, str], None],
    ) -> None:
        super().__init__(terms, caller=False, opened=_nothing, heard=heard, ended=ended)
        self._strangers = strangers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello, if there is a place."""
        peer = transport.get_extra_info("peername")
        if self._strangers.admit(self, str(peer[0]) if peer else ""):
            super().connection_made(transport)
        else:
            cast("asyncio.Transport", transport).abort()
            self.cut_off(_TOO_MANY)


def _nothing(link: Link) -> None:
    """Wait until the other says who it is."""
