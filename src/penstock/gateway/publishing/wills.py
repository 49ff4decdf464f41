"""Wills that are judged: a will is a message, and is decided on when it is sent.

    CONNECT ──▶ would the topic be looked at? ── no ──▶ the broker keeps and sends the will
                      └── yes ──▶ kept here ──▶ the connection ends ──▶ as any publication
                                      └── this gateway is killed ──▶ by the one that comes after

Rules that hold here:
- A will on a topic that policies or detection look at never lies at the broker, which would
  send it unseen. Nor does one that feeds a stream and has a delay: it is recorded when it is
  sent, and only who sends it knows when. Where that begins to hold for a will that the broker
  has, its client is asked to connect again; should it leave before that, the will is taken back
  and judged here.
- A will that waits (its delay, definitions that are not fresh, detection that is not at work) is
  sent unless the client is back by then (MQTT5 3.1.3.2.2). A client whose session is gone is not
  back.
- A will that is kept here is in the store before its client is told that it is connected, until
  the broker has it or nobody wants it any more. Where this gateway is killed, the next one to
  run sends it before it lets clients in; where others run, one of them does.
- Whoever is kept out by then publishes nothing more: their will is dropped.
- Each is sent once. Who is killed between handing a will to the broker and hearing that it
  has arrived leaves one that is sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

from penstock.clock import boot_clock
from penstock.errors import PenstockError
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.publication_check import PublicationCheck
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.broker import MESSAGE_AIP, MESSAGE_PIP, RESERVED, strip
from penstock.gateway.counters import Counters
from penstock.gateway.detection.persistence import is_gone
from penstock.gateway.event_loop import Background, SessionWriter
from penstock.gateway.publications import PendingResult, PublishOutcome, PublishResult
from penstock.gateway.publishing.publisher import Publisher, Record
from penstock.gateway.session import Session
from penstock.mqtt import Connect, Publish, Reader, Sender, Will
from penstock.policy.decision import Reshaped
from penstock.store.detection.journal import LeaderRecord
from penstock.store.wills import DroppedWill, KeptWill, WillChange, WillStore, make_number
from penstock.telemetry import get_logger

LOOK_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 0.5
_START_SECONDS: Final = 5.0
_RETRIED: Final = frozenset({PublishOutcome.NO_LEADER, PublishOutcome.NO_ANSWER})
_log = get_logger("gateway")


class ConnectedClients(Protocol):
    """Who is connected to this gateway."""

    def __contains__(self, client_id: object) -> bool: ...

    def sessions(self) -> Iterator[Session]:
        """Walk over the sessions of the clients that are let in."""
        ...

    def ask_to_reconnect(self, client_id: str) -> None:
        """Let a client connect again; its will is not sent."""


@dataclass(eq=False, slots=True)
class _Leaving:
    """A will whose client is gone."""

    session: Session
    will: Will
    number: str
    timer: asyncio.TimerHandle | None = None
    """What it waits with; None while it is on its way."""


class Wills:
    """The wills that this gateway keeps."""

    def __init__(
        self,
        store: WillStore,
        clients: ConnectedClients,
        *,
        rules: Rules,
        check: PublicationCheck,
        publisher: Publisher,
        feeds: Callable[[str], bool],
        record: Record,
        denials: Denials,
        counters: Counters,
        background: Background,
    ) -> None:
        self._store = store
        self._clients = clients
        self._rules = rules
        self._check = check
        self._publisher = publisher
        self._feeds = feeds
        self._record = record
        self._denials = denials
        self._counters = counters
        self._background = background
        self._writer: SessionWriter[WillChange] = SessionWriter(self._save)
        self._kept: dict[Session, str] = {}
        """The numbers of the wills of connected clients."""
        self._leaving: dict[str, _Leaving] = {}
        self._by_client: dict[str, list[_Leaving]] = {}
        self._sent = asyncio.Event()
        self._reviewed = 0
        """The generation of the rules that the wills at the broker were looked at under."""

    # --- while the client is connected ---

    def keep(self, session: Session, will: Will) -> Will | None:
        """Take a will that a client connects with; return what the broker is to know of it."""
        session.will = will
        session.will_given = not self._is_ours(will)
        return will if session.will_given else None

    async def secure(self, session: Session, *, resumed: bool) -> None:
        """Let a client come in: its will is durable, and an earlier one has no use any more.

        Where its session is not `resumed`, the earlier session has ended, and the will with it.
        """
        for it in list(self._by_client.get(session.client_id, ())):
            if it.timer is not None:
                if resumed:
                    self._drop(it)
                else:
                    self._send(it)
        will = session.will
        if will is not None and not session.will_given:
            self._kept[session] = make_number()
            await self._writer.save(self._row(session, will))

    def forget(self, session: Session) -> None:
        """Take note that a connection is over and its will is not to be sent."""
        number = self._kept.pop(session, "")
        if number:
            self._writer.later(DroppedWill(number))

    # --- when it is gone ---

    def leave(self, session: Session) -> bool:
        """Send a will whose client has left without a word; False: the broker does."""
        will = session.will
        if will is None:
            return False
        if session.will_given and not self._is_ours(will):
            self._record(will.topic, will.payload, _is_restricted(will), will.properties.user)
            return False
        session.will = None
        self._depart(_Leaving(session, will, self._kept.pop(session, "") or make_number()))
        return True

    def finish(self) -> None:
        """Send those that wait: nobody can come back any more."""
        for it in list(self._leaving.values()):
            if it.timer is not None:
                self._send(it)

    async def stop(self) -> None:
        """Let another gateway have those that were not sent."""
        await self._writer.finish()
        if self._leaving:
            await self._background.run_in_thread(self._store.leave)

    # --- those of gateways that are gone ---

    async def start(self) -> None:
        """Send the wills of gateways that are gone, and look for further ones from now on."""
        await self._take()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                # A client that comes back must not be told of by its will afterwards.
                while any(self._is_due(it) for it in self._leaving.values()):
                    self._sent.clear()
                    await self._sent.wait()
        self._background.start(self._look())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._reviewed != self._rules.generation:
                self._review()
            if self._kept or self._leaving:
                await self._renew()
            await self._take()

    def _review(self) -> None:
        """Let clients connect again whose wills must not lie at the broker any more.

        The broker is told that they left in order: such a will is not sent.
        """
        self._reviewed = self._rules.generation
        for session in list(self._clients.sessions()):
            will = session.will
            if will and session.will_given and self._is_ours(will):
                self._clients.ask_to_reconnect(session.client_id)

    async def _renew(self) -> None:
        """Say that this gateway is there; store its wills anew where it was taken for dead."""
        try:
            if not await self._background.run_in_thread(self._store.renew):
                for session in list(self._kept):
                    if session.will is not None:
                        self._writer.later(self._row(session, session.will))
        except PenstockError as error:
            _log.warning("the store does not answer for wills", error=error)

    async def _take(self) -> None:
        try:
            found = await self._background.run_in_thread(self._store.take, _is_gone)
        except PenstockError as error:
            _log.warning("wills of other gateways cannot be read", error=error)
            return
        for row in found:
            leaving = _read(row)
            if leaving is None or leaving.session.client_id in self._clients:
                self._writer.later(DroppedWill(row.number))
            else:
                self._depart(leaving)
        if found:
            _log.info("wills of a gateway that is gone are sent", count=len(found))

    # --- inside ---

    def _is_ours(self, will: Will) -> bool:
        delayed = bool(will.properties.will_delay)
        return self._check.concerns(will.topic) or (delayed and self._feeds(will.topic))

    def _row(self, session: Session, will: Will) -> KeptWill:
        packet = Connect(session.client_id, will=will).encode()
        number = self._kept[session]
        return KeptWill(number, session.client_id, session.principal, session.expiry, packet)

    def _is_due(self, it: _Leaving) -> bool:
        return it.timer is None or not _delay(it)

    def _depart(self, it: _Leaving) -> None:
        self._leaving[it.number] = it
        self._by_client.setdefault(it.session.client_id, []).append(it)
        delay = _delay(it)
        if delay:
            self._wait(it, delay)
        else:
            self._send(it)

    def _wait(self, it: _Leaving, seconds: float) -> None:
        it.timer = asyncio.get_running_loop().call_later(seconds, self._fire, it)

    def _fire(self, it: _Leaving) -> None:
        if it.session.client_id in self._clients:
            self._drop(it)
        else:
            self._send(it)

    def _drop(self, it: _Leaving) -> None:
        """Be done with a will, sent or not."""
        if it.timer is not None:
            it.timer.cancel()
        if self._leaving.pop(it.number, None) is not None:
            self._writer.later(DroppedWill(it.number))
            client_id = it.session.client_id
            self._by_client[client_id].remove(it)
            if not self._by_client[client_id]:
                del self._by_client[client_id]
        self._sent.set()

    def _send(self, it: _Leaving) -> None:
        """Let a will be decided on and take effect; wait where that cannot be now."""
        if it.timer is not None:
            it.timer.cancel()
            it.timer = None
        if boot_clock() > self._rules.fresh_until or not self._rules.enforceable:
            self._wait(it, _AGAIN_SECONDS)
            return
        said = replace(it.will.properties, user=strip(it.will.properties.user))
        result = self._check.publish(it.session, _message(replace(it.will, properties=said)))
        if isinstance(result, PublishResult):
            self._conclude(it, result)
        else:
            self._background.start(self._send_later(it, result))

    async def _send_later(self, it: _Leaving, pending: PendingResult) -> None:
        self._conclude(it, await pending)

    def _conclude(self, it: _Leaving, result: PublishResult) -> None:
        """Hand a will to the broker that was decided on, or be done with it."""
        will = it.will
        if result.outcome in _RETRIED:
            self._wait(it, _AGAIN_SECONDS)
            return
        if not result.accepted:
            self._counters.denied("publish", result.outcome)
            self._denials.will(it.session, result.outcome, result.rule)
            self._drop(it)
            return

        messages = _list_messages(will, result.reshaped)

        def hand_over(durable: bool) -> None:  # noqa: FBT001
            if not durable or not all(
                self._publisher.send(
                    topic,
                    payload,
                    _message(said).properties.raw,
                    partial(self._drop, it) if last else _no_matter,
                    retain=said.retain,
                    restricted=_is_restricted(said),
                    user_properties=said.properties.user,
                )
                for topic, payload, said, last in messages
            ):
                self._wait(it, _AGAIN_SECONDS)

        result.when_durable(hand_over)

    async def _save(self, changes: list[WillChange]) -> None:
        await self._background.run_in_thread(self._store.apply, changes)


def _list_messages(will: Will, reshaped: Reshaped | None) -> list[tuple[str, bytes, Will, bool]]:
    """Return what is published of a will: topic, payload, what it says beside, whether it ends."""
    if reshaped is None:
        return [(will.topic, will.payload, will, True)]
    own = tuple(it for it in will.properties.user if it[0].startswith(RESERVED))
    kept = replace(will.properties, user=own, response_topic=None, correlation_data=None)
    bare = replace(will, properties=kept)
    found = [(topic, payload, bare) for topic, payload in reshaped.copies]
    if reshaped.payload is not None:
        said = will if reshaped.keeps_properties else bare
        found.append((will.topic, reshaped.payload, said))
    return [(*it, at == len(found)) for at, it in enumerate(found, 1)]


def _no_matter() -> None:
    """Do nothing: the last of several tells that all are done."""


def _message(will: Will) -> Publish:
    properties = replace(will.properties, will_delay=None)
    return Publish.of(will.topic, will.payload, retain=will.retain, properties=properties)


def _delay(it: _Leaving) -> int:
    return min(it.will.properties.will_delay or 0, it.session.expiry)


def _read(row: KeptWill) -> _Leaving | None:
    """Return a will from the store; None where it is not one that this version has written."""
    reader = Reader(Sender.CLIENT)
    try:
        reader.feed(row.packet)
        packets = reader.packets()
    except PenstockError:
        return None
    if len(packets) != 1 or not isinstance(packets[0], Connect) or packets[0].will is None:
        return None
    session = Session(packets[0].client_id, row.principal, row.expiry)
    return _Leaving(session, packets[0].will, row.number)


def _is_gone(holder: str, place: str) -> bool:
    """Say whether a gateway was a process of this machine that is no more."""
    now = datetime.now(UTC)
    return is_gone(LeaderRecord(holder, place, since=now, held_until=now, trouble=""))


def _is_restricted(will: Will) -> bool:
    """Say whether a will carries purposes of its own."""
    return any(name in {MESSAGE_AIP, MESSAGE_PIP} for name, _ in will.properties.user)
