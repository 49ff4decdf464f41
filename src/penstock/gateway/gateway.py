"""The gateway as a whole: its clients, its rules, its clock, its start and its end.

    listeners ──▶ Downstream ◀──▶ Upstream ──▶ broker        one pair per client
                      │               │
                      └──── Rules ◀───┴──── follower ◀──── store

Rules that hold here:
- One loop, one thread for all that concerns messages. Other threads read and write the
  store; what they bring is taken over on the loop in one step.
- The follower's lease is renewed only when the loop has taken an update over.
- A client identifier has at most one connection here.
- Looking after all connections takes one pass per second, however many there are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from penstock.errors import UnavailableError
from penstock.gateway import holding
from penstock.gateway.broker_address import BrokerAddress
from penstock.gateway.changes import concerned_filters, differing
from penstock.gateway.counters import Counters
from penstock.gateway.credentials import Authenticator, RefusedError
from penstock.gateway.denials import Denials
from penstock.gateway.downstream import Downstream
from penstock.gateway.ending import Cause, end
from penstock.gateway.limits import TICK_SECONDS, Limits
from penstock.gateway.rules import PURPOSE, Rules, Turn
from penstock.gateway.saving import Saver
from penstock.gateway.session import Session
from penstock.gateway.translation import RESERVED, Offer
from penstock.gateway.upstream import Upstream
from penstock.model.document import Document, Key
from penstock.mqtt import Connect, PropertyLists, ReasonCode, Sender, TopicNames
from penstock.policy.notation import Notation
from penstock.store.checked import CheckedDefinitions
from penstock.store.definitions import Change
from penstock.store.follower import Follower, boot_clock
from penstock.store.sessions import Leave, SessionChange, Sessions
from penstock.store.snapshots import Snapshot, Update
from penstock.telemetry import get_logger

_TAKE_SECONDS = 10.0
_LOOKS_PER_LEASE = 20
_SWEEP_TICKS = 3_600
_THREADS = 4

T = TypeVar("T")


class Gateway:
    """One gateway process's share of the work, on the running loop."""

    def __init__(
        self,
        *,
        rules: Rules,
        limits: Limits,
        notation: Notation,
        broker: BrokerAddress,
        authenticator: Authenticator,
        definitions: CheckedDefinitions,
        sessions: Sessions,
        follower: Follower,
        denials: Denials,
        close_denied: bool = False,
        replay_retained: bool = False,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.log = get_logger("gateway")
        self.rules = rules
        self.limits = limits
        self.notation = notation
        self.broker = broker
        self.authenticator = authenticator
        self.sessions = sessions
        self.denials = denials
        self.close_denied = close_denied
        self.replay_retained = replay_retained
        self.counters = Counters()
        self.topics = TopicNames()
        self.client_properties = PropertyLists(Sender.CLIENT, reserved=RESERVED)
        self.broker_properties = PropertyLists(Sender.SERVER, reserved=RESERVED)
        self.saver = Saver(self._store_sessions)
        self.clients: dict[str, Downstream] = {}
        self.connections: set[Downstream] = set()
        self.waiting: set[Upstream] = set()
        """Connections to the broker that are not read until the definitions are fresh."""
        self.draining = False
        self._emptied = asyncio.Event()
        self._addresses: dict[str, int] = {}
        self.definitions = definitions
        self._follower = follower
        self._threads = ThreadPoolExecutor(_THREADS, "penstock-store")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unfollow: Callable[[], None] | None = None
        self._ticks = 0
        self._tried: frozenset[Key] = frozenset()
        self._was_fresh = False
        self._behind = 0

    @property
    def broker_timeout(self) -> float:
        """How long the broker may take to accept a client."""
        return self.broker.timeout

    # --- start and end ---

    async def start(self) -> None:
        """Follow the definitions, and wait until they are known."""
        self._unfollow = await self.loop.run_in_executor(
            self._threads, self._follower.subscribe, self._hear
        )
        await self.loop.run_in_executor(
            self._threads, partial(self._follower.wait_for, 0, _TAKE_SECONDS)
        )
        self._look_at_lease()
        self.start_task(self._keep_time())
        self.start_task(self._watch_lease())

    async def drain(self, seconds: float) -> None:
        """End all connections in order, and wait for what they still have to do."""
        self.draining = True
        self._emptied.clear()
        for client in list(self.connections):
            end(client, Cause.DRAIN)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if self.connections:
                    await self._emptied.wait()
        for client in list(self.connections):
            client.transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.saver.finish()

    async def stop(self) -> None:
        """Give back threads and tasks."""
        if self._unfollow is not None:
            await self.loop.run_in_executor(self._threads, self._unfollow)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.counters.publish()
        self.denials.flush(self.rules.epoch)
        self.authenticator.close()
        self._threads.shutdown(wait=False)

    def start_task(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let something run beside; if it fails, that is logged."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)

    async def run_in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that waits for the store, away from the loop."""
        return await self.loop.run_in_executor(self._threads, function, *arguments)

    # --- connections ---

    def arrive(self, client: Downstream) -> None:
        """Count a new connection, or close it where there are too many."""
        here = self._addresses.get(client.peer, 0)
        limits = self.limits
        if (
            self.draining
            or len(self.connections) >= limits.connections
            or here >= limits.connections_per_address
        ):
            self.counters.opened("limit")
            client.ended = True
            client.transport.abort()
            return
        self._addresses[client.peer] = here + 1
        self.connections.add(client)

    def leave(self, client: Downstream) -> None:
        """Take a connection off the count."""
        if client not in self.connections:
            return
        self.connections.discard(client)
        left = self._addresses[client.peer] - 1
        if left:
            self._addresses[client.peer] = left
        else:
            del self._addresses[client.peer]
        if not self.connections:
            self._emptied.set()

    def take_over(self, client: Downstream) -> None:
        """Let a client have its identifier; another connection that has it ends.

        Who has it is looked at here, in one step: somebody else may have come meanwhile.
        """
        session = client.session
        other = self.clients.get(session.client_id)
        if other is not None and other.session.principal != session.principal:
            raise RefusedError(
                "this client identifier is in use by somebody else",
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                "client_id",
            )
        self.clients[session.client_id] = client
        if other is not None:
            end(other, Cause.TAKEOVER)
            # Should the new one never open, the session ends in the time of the old one.
            self._leave_session(other.session)

    def forget(self, client: Downstream) -> None:
        """Take note that a client's connection has ended."""
        if client.upstream is not None:
            self.waiting.discard(client.upstream)
        if client.open:
            self.counters.connections -= 1
        session = getattr(client, "session", None)
        if session is None or self.clients.get(session.client_id) is not client:
            return
        del self.clients[session.client_id]
        self.rules.engine.end_session(session.client_id)
        self._leave_session(session)

    def _leave_session(self, session: Session) -> None:
        if session.stored:
            self.saver.later(Leave(session.client_id, session.holder, session.expiry))

    def offer(self, connect: Connect) -> Offer:
        """Say what a client is granted."""
        limits = self.limits
        return Offer(
            packet=limits.packet,
            receive_maximum=limits.receive_maximum,
            topic_aliases=limits.topic_aliases,
            keep_alive=limits.granted_keep_alive(connect.keep_alive),
            broker_keep_alive=self.broker.keep_alive,
        )

    def broker_login(self, connect: Connect) -> tuple[str | None, bytes | None]:
        """Return the user name and password for the broker."""
        if self.authenticator.relay:
            return connect.username, connect.password
        return self.broker.username, self.broker.password()

    async def reach_broker(self, protocol: Callable[[], Upstream]) -> Upstream:
        """Open a connection to the broker."""
        _, upstream = await self.loop.create_connection(
            protocol, self.broker.host, self.broker.port, ssl=self.broker.tls
        )
        return upstream

    # --- rules ---

    def take(self, change: Change) -> None:
        """Take over a change that was made here, unless the follower was faster."""
        held = self.rules.snapshot
        if held is None or change.after.epoch <= held.epoch:
            return
        if change.before.mark == held.mark:
            keys: Iterable[Key] = (*change.created, *change.updated, *change.deleted)
        else:
            keys = differing(held, change.after)
        self._take_set(change.after, keys)

    def turn(self, turn: Turn, changed: Iterable[Key] | None = None) -> None:
        """Let the broker know of subscriptions that are paused or resumed.

        What sleeps is tried again where the change concerns it: these keys, or, if none are
        given, what was or is tried out at this gateway alone.
        """
        for subscription in turn.paused:
            client = self.clients.get(subscription.client)
            if client is not None and client.open:
                holding.pause(client, subscription)
        for subscription in turn.resumed:
            client = self.clients.get(subscription.client)
            if client is not None and client.open:
                holding.resume(client, subscription)
        tried = frozenset(self.rules.unsaved())
        concerned = concerned_filters(self._tried | tried if changed is None else changed)
        self._tried = tried
        if concerned == ():
            return
        for client in self.clients.values():
            if client.open and client.session.dormant:
                holding.wake(client, concerned)

    def check(self, wanted: dict[Key, Document | None]) -> None:
        """Raise what is wrong with the definitions that would result. Runs in a thread."""
        _, meaning = self.definitions.current()
        put = [document for document in wanted.values() if document is not None]
        meaning.change(put, [key for key, document in wanted.items() if document is None])

    def _hear(self, update: Update) -> None:
        """Take an update from the follower's thread; return when the loop has it."""
        taken = asyncio.run_coroutine_threadsafe(self._take(update), self.loop)
        taken.result(_TAKE_SECONDS)

    async def _take(self, update: Update) -> None:
        # An update that is not newer is late: a change made here was taken over before it.
        # Its keys are those since the follower's last one, so never fewer than are new.
        held = self.rules.snapshot
        if held is None or update.snapshot.epoch > held.epoch:
            self._take_set(update.snapshot, update.changed)

    def _take_set(self, snapshot: Snapshot, changed: Iterable[Key]) -> None:
        keys = tuple(changed)
        turn = self.rules.take(snapshot, keys)
        if any(key.kind == PURPOSE for key in keys):
            for client in self.clients.values():
                if client.open:
                    holding.rest(client)
        self.turn(turn, keys)

    def _look_at_lease(self) -> None:
        status = self._follower.status()
        fresh = status.is_fresh and self.rules.snapshot is not None
        age = status.age if status.age is not None else 0.0
        self.rules.fresh_until = boot_clock() + self._follower.lease - age if fresh else 0.0
        if fresh:
            self._look_for_another_history()
            waiting, self.waiting = self.waiting, set()
            for upstream in waiting:
                upstream.resume("stale")
        if self._was_fresh and not fresh:
            self.log.error("the definitions are stale: everything is denied")
        self._was_fresh = fresh

    def _look_for_another_history(self) -> None:
        """Take over what the follower has if it stays behind: the store was set back."""
        held = self.rules.snapshot
        known = self._follower.current()
        if held is None or known.mark == held.mark or known.epoch > held.epoch:
            self._behind = 0
            return
        self._behind += 1
        if self._behind > _LOOKS_PER_LEASE:
            self._behind = 0
            self.log.warning("the store was set back to an earlier epoch", epoch=known.epoch)
            self._take_set(known, differing(held, known))

    # --- the clock ---

    async def _watch_lease(self) -> None:
        pause = self._follower.lease / _LOOKS_PER_LEASE
        while True:
            await asyncio.sleep(pause)
            self._look_at_lease()

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Look after all connections, once a second."""
        self._ticks += 1
        for client in list(self.connections):
            self._look_after(client)
        self.counters.publish()
        self.denials.flush(self.rules.epoch)
        if not self._ticks % _SWEEP_TICKS:
            self.start_task(self.run_in_thread(self.sessions.sweep))

    def _look_after(self, client: Downstream) -> None:
        if client.ended:
            return
        if client.open:
            client.idle = 0 if client.heard else client.idle + 1
            client.heard = False
        elif not client.version:
            # Until its CONNECT is whole, a client buys no time by sending byte after byte.
            client.idle += 1
        if client.idle >= client.idle_limit:
            if not client.open:
                self.counters.opened("timeout")
            end(client, Cause.KEEP_ALIVE)
            return
        upstream = client.upstream
        if client.blocked or (upstream is not None and upstream.waits_for_client):
            client.stalled += 1
            if client.stalled >= self.limits.stall_ticks:
                end(client, Cause.SLOW)
                client.transport.abort()
                return
        else:
            client.stalled = 0
        if client.open and upstream is not None and not upstream.tick(TICK_SECONDS):
            self.counters.broker_lost()
            end(client, Cause.BROKER)

    # --- inside ---

    async def _store_sessions(self, changes: list[SessionChange]) -> None:
        await self.run_in_thread(self.sessions.apply, changes)

    def _end_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, UnavailableError):
            self.log.error("work beside the connections failed", error=error)
