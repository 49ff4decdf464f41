"""The gateway as a whole: its clients, its clock, its start and its end.

    listeners ──▶ Downstream ◀──▶ Upstream ──▶ broker        one pair per client
                      │               │
                      └──── Rules ◀───┴──── DefinitionFeed ◀──── store

Rules that hold here:
- One loop, one thread for all that concerns messages. Other threads read and write the
  store; what they bring is taken over on the loop in one step.
- A client identifier has at most one connection here.
- Looking after all connections takes one pass per second, however many there are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.config.sections.gateway import EmergencySettings
from penstock.errors import UnavailableError
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.broker import BrokerAddress
from penstock.gateway.connection.authentication import Authenticator, RefusedError
from penstock.gateway.connection.disconnect import Cause, end
from penstock.gateway.connection.downstream import Downstream
from penstock.gateway.connection.intake import AWAITING_LEADER
from penstock.gateway.connection.upstream import Upstream
from penstock.gateway.counters import Counters
from penstock.gateway.limits import TICK_SECONDS, Limits
from penstock.gateway.publishing.wills import Wills
from penstock.gateway.recording.recorder import Recorder
from penstock.gateway.service.definition_feed import DefinitionFeed
from penstock.gateway.service.emergencies import Emergencies, Sharing
from penstock.gateway.session import Session
from penstock.gateway.session_writer import SessionWriter
from penstock.gateway.translation import RESERVED, Offer
from penstock.mqtt import Connect, PropertyLists, ReasonCode, Sender, TopicNames
from penstock.policy.purposes.notation import Notation
from penstock.store.checked import CheckedDefinitions
from penstock.store.detection import DetectionStore
from penstock.store.follower import Follower
from penstock.store.sessions import Leave, SessionChange, Sessions
from penstock.store.situations import Situations
from penstock.store.wills import WillStore
from penstock.telemetry import get_logger

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
        emergencies: EmergencySettings | None = None,
        situations: Situations,
        detection_store: DetectionStore,
        sharing: Sharing | None = None,
        recorder: Recorder,
        wills: WillStore,
        stands_at: str | None = None,
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
        self.stands_at = stands_at
        self.counters = Counters()
        self.topics = TopicNames()
        self.client_properties = PropertyLists(Sender.CLIENT, reserved=RESERVED)
        self.broker_properties = PropertyLists(Sender.SERVER, reserved=RESERVED)
        self.session_writer = SessionWriter(self._store_sessions)
        self.clients: dict[str, Downstream] = {}
        self.connections: set[Downstream] = set()
        self.waiting: set[Upstream] = set()
        """Connections to the broker that are not read until the definitions are fresh."""
        self.awaiting_leader: set[Upstream] = set()
        """Connections to the broker that are not read until the situations are known."""
        self.draining = False
        self._emptied = asyncio.Event()
        self._addresses: dict[str, int] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "penstock-store")
        self.emergencies = Emergencies(
            self, emergencies or EmergencySettings(), situations, detection_store, sharing
        )
        self.guard = self.emergencies.guard
        self.publisher = self.emergencies.publisher
        self.recorder = recorder
        self.publisher.record = recorder.note
        self.wills = Wills(self, wills)
        rules.guard = self.guard
        self.definition_feed = DefinitionFeed(self, definitions, follower)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ticks = 0

    @property
    def broker_timeout(self) -> float:
        """How long the broker may take to accept a client."""
        return self.broker.timeout

    # --- start and end ---

    async def start(self) -> None:
        """Follow the definitions, and wait until they are known."""
        await self.definition_feed.start()
        await self.emergencies.start()
        await self.wills.start()
        self.start_task(self._keep_time())
        self.start_task(self.definition_feed.watch_lease())

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
        self.wills.finish()
        await self.emergencies.finish(seconds)
        await self.recorder.finish(seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.session_writer.finish()
                await self.wills.stop()

    async def stop(self) -> None:
        """Give back threads and tasks."""
        await self.definition_feed.stop()
        await self.emergencies.stop()
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

    def decide_again(self) -> None:
        """Go on with the deliveries that waited for situations to be known."""
        waiting, self.awaiting_leader = self.awaiting_leader, set()
        for upstream in waiting:
            upstream.resume(AWAITING_LEADER)

    def forget(self, client: Downstream) -> None:
        """Take note that a client's connection has ended."""
        if client.upstream is not None:
            self.waiting.discard(client.upstream)
            self.awaiting_leader.discard(client.upstream)
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
            self.session_writer.later(Leave(session.client_id, session.holder, session.expiry))

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

    # --- the clock ---

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Look after all connections, once a second."""
        self._ticks += 1
        for client in list(self.connections):
            self._look_after(client)
        self.recorder.tick()
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
