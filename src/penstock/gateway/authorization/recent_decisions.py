"""What was decided lately, for people who ask why, and for trying a draft on it.

    decision that no cache had ──▶ ring of this gateway ◀── "recent", by the store ── console

Rules that hold here:
- Kept in memory alone, the newest `MOST`, and nothing of what a message said: topic, reader,
  publisher, purposes, outcome and rule. What depends on payloads cannot be decided anew from it.
- Every denial that was worked out is noted. So is what passes, until the ring is half full; then
  one in `EVERY`, at random, so that no reader is left out by its place in a row.
- What holds for all messages of a topic is cached, and so noted once.
- Who asks is on record (`console.decisions`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from random import random
from typing import Final

from penstock.gateway.authorization.request_context import Stamp
from penstock.gateway.session import Session
from penstock.store.enforcement_points import RecentDecision

MOST: Final = 1_000
EVERY: Final = 16
_LONGEST: Final = 1_000


class RecentDecisions:
    """The ring of one gateway."""

    __slots__ = ("_clock", "_kept")

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept: deque[RecentDecision] = deque(maxlen=MOST)

    def takes(self) -> bool:
        """Say whether something that was allowed is one to note."""
        return len(self._kept) < MOST // 2 or random() * EVERY < 1  # noqa: S311 - no secret

    def delivery(
        self,
        session: Session,
        topic: str,
        numbers: tuple[int, ...],
        stamp: Stamp,
        why: str = "",
        rule: str = "",
    ) -> None:
        """Note a message that reached a client, or why it did not."""
        known = (session.purpose_under(it) for it in numbers)
        purposes = tuple(dict.fromkeys(it[0] for it in known if it is not None))
        carried = stamp.purposes
        self._keep(
            RecentDecision(
                at=self._clock(),
                action="read",
                user=session.user,
                client=session.client_id,
                topic=topic,
                purposes=purposes,
                publisher=stamp.user,
                publishing_client=stamp.client,
                behalf=stamp.behalf,
                aip=None if carried is None else tuple(sorted(carried.aip)),
                pip=None if carried is None else tuple(sorted(carried.pip)),
                allowed=not why,
                why=why,
                rule=rule,
            )
        )

    def publication(self, session: Session, topic: str, why: str = "", rule: str = "") -> None:
        """Note a message that reached the broker, or why it did not."""
        self._keep(
            RecentDecision(
                at=self._clock(),
                action="write",
                user=session.user,
                client=session.client_id,
                topic=topic,
                allowed=not why,
                why=why,
                rule=rule,
            )
        )

    def _keep(self, decision: RecentDecision) -> None:
        if len(decision.topic) <= _LONGEST and len(decision.client or "") <= _LONGEST:
            self._kept.append(decision)

    def newest(self) -> list[RecentDecision]:
        """Return what is kept, the newest first."""
        return list(reversed(self._kept))
