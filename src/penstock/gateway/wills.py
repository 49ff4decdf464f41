"""Wills that are judged: a will is a message, and is decided on when it is sent.

    CONNECT ──▶ would the topic be looked at? ── no ──▶ the broker keeps and sends the will
                      └── yes ──▶ kept here ──▶ the connection ends ──▶ as any publication

Rules that hold here:
- A will on a topic that policies or detection look at never lies at the broker, which would
  send it unseen. Nor does one that feeds a stream and has a delay: it is recorded when it is
  sent, and only who sends it knows when. One that was given to the broker before that held
  is taken back when the connection ends, and judged here.
- A will that waits (its delay) is sent unless the client is back by then.
- Where this gateway is killed, the wills that it keeps are not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.gateway.session import Session
from penstock.gateway.translation import MESSAGE_AIP, MESSAGE_PIP
from penstock.gateway.written import Written
from penstock.mqtt import Publish, Will

if TYPE_CHECKING:
    from penstock.gateway.gateway import Gateway


class Wills:
    """The wills that this gateway keeps."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._waiting: dict[Session, tuple[Will, asyncio.TimerHandle]] = {}

    def keep(self, session: Session, will: Will) -> Will | None:
        """Take a will that a client connects with; return what the broker is to know of it."""
        session.will = will
        session.will_given = not self._is_ours(will)
        return will if session.will_given else None

    def leave(self, session: Session) -> bool:
        """Send a will whose client has left without a word; False: the broker does."""
        will = session.will
        if will is None:
            return False
        if session.will_given and not self._is_ours(will):
            self._gateway.recording.note(will.topic, will.payload, _is_restricted(will))
            return False
        session.will = None
        delay = min(will.properties.will_delay or 0, session.expiry)
        if delay:
            loop = self._gateway.loop
            self._waiting[session] = (will, loop.call_later(delay, self._fire, session))
        else:
            self._send(session, will)
        return True

    def finish(self) -> None:
        """Send those that wait: nobody can come back any more."""
        for session in list(self._waiting):
            self._fire(session)

    def _is_ours(self, will: Will) -> bool:
        gateway = self._gateway
        delayed = bool(will.properties.will_delay)
        return gateway.guard.concerns(will.topic) or (
            delayed and bool(gateway.recording.feeds.of(will.topic))
        )

    def _fire(self, session: Session) -> None:
        will, timer = self._waiting.pop(session)
        timer.cancel()
        if session.client_id not in self._gateway.clients:
            self._send(session, will)

    def _send(self, session: Session, will: Will) -> None:
        gateway = self._gateway
        properties = replace(will.properties, will_delay=None)
        message = Publish.of(will.topic, will.payload, retain=will.retain, properties=properties)
        written = gateway.guard.publish(session, message)
        if written.waits is not None:
            gateway.start_task(self._hand_over_later(session, will, message, written.waits))
        else:
            self._hand_over(session, will, message, written)

    async def _hand_over_later(
        self, session: Session, will: Will, message: Publish, waits: Awaitable[Written]
    ) -> None:
        self._hand_over(session, will, message, await waits)

    def _hand_over(self, session: Session, will: Will, message: Publish, written: Written) -> None:
        gateway = self._gateway
        if written.why:
            gateway.counters.denied("publish", written.why)
            gateway.denials.will(session, written.why, written.rule)
            return

        def hand_over(durable: bool) -> None:  # noqa: FBT001
            if durable:
                gateway.publisher.send(
                    will.topic,
                    will.payload,
                    message.properties.raw,
                    _nothing,
                    retain=will.retain,
                    restricted=_is_restricted(will),
                )

        keeper = written.keeper or gateway.guard.detection.journal
        keeper.wait(written.ticket, hand_over)


def _is_restricted(will: Will) -> bool:
    """Say whether a will carries purposes of its own."""
    return any(name in {MESSAGE_AIP, MESSAGE_PIP} for name, _ in will.properties.user)


def _nothing() -> None:
    """Take note that a will was sent: nothing is left to do."""
