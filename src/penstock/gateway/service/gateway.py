"""The gateway as a whole: all rooms put together, its clock, its start and its end.

    listeners ──▶ Downstream ◀──▶ Upstream ──▶ broker        one pair per client
                      │               │
                      └──── Rules ◀───┴──── DefinitionFeed ◀──── store

Rules that hold here:
- One loop, one thread for all that concerns messages. Other threads read and write the
  store; what they bring is taken over on the loop in one step.
- This is the only place that knows all parts. Each gets what it needs when it is made.
- Looking after all connections takes one pass per second, however many there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial

from penstock.config.gateway import EmergencySettings
from penstock.errors import PenstockError
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.authorization.sealing import GroupKeyFeed, GroupKeySource
from penstock.gateway.broker import BrokerAddress
from penstock.gateway.commands.purpose_commands import PurposeCommands
from penstock.gateway.connection.admission import Admission
from penstock.gateway.connection.authentication import Authenticator
from penstock.gateway.connection.client_registry import ClientAnswering, ClientRegistry, Revocation
from penstock.gateway.connection.context import ConnectionContext
from penstock.gateway.connection.downstream import Downstream, Handlers
from penstock.gateway.connection.handshake import Handshake
from penstock.gateway.connection.presented_capabilities import PresentedCapabilities
from penstock.gateway.connection.session_resumption import SessionResumption
from penstock.gateway.connection.subscription_lifecycle import (
    SubscriptionLifecycle,
    SubscriptionState,
)
from penstock.gateway.connection.subscription_requests import SubscriptionRequests
from penstock.gateway.counters import Counters
from penstock.gateway.event_loop import Background, SessionWriter
from penstock.gateway.limits import TICK_SECONDS, Arrival, Arrivals, Limits
from penstock.gateway.publishing.domains import DomainLink, NetworkSettings
from penstock.gateway.publishing.key_exchange import KeyExchange
from penstock.gateway.publishing.lanes import Lanes
from penstock.gateway.publishing.peers import Peers
from penstock.gateway.publishing.publisher import Publisher
from penstock.gateway.publishing.wills import Wills
from penstock.gateway.recording.recorder import Recorder
from penstock.gateway.service.definition_feed import DefinitionFeed
from penstock.gateway.service.emergencies import Emergencies, Sharing
from penstock.model.document import Document
from penstock.policy.purposes.settings import Notation
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.detection.journal import DetectionStore
from penstock.store.detection.situations import Situations
from penstock.store.enforcement_points import ClientRequests
from penstock.store.follower import Follower
from penstock.store.opt_out_feed import OptOutFeed
from penstock.store.sessions import SessionChange, Sessions
from penstock.store.spent_nonces import SpentNonces
from penstock.store.wills import WillStore
from penstock.telemetry import get_logger
from penstock.trust.keys import fingerprint

_SWEEP_TICKS = 3_600

_log = get_logger("gateway")


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
        opt_outs: OptOutFeed | None = None,
        lanes: int = 0,
        client_requests: ClientRequests | None = None,
        group_keys: GroupKeySource | None = None,
        network: NetworkSettings | None = None,
        nonces: SpentNonces | None = None,
        skew: int = 60_000,
    ) -> None:
        self.rules = rules
        self.sessions = sessions
        self.recorder = recorder
        self.counters = Counters()
        self.background = Background()
        self.session_writer: SessionWriter[SessionChange] = SessionWriter(self._store_sessions)
        self.clients = ClientRegistry(rules, self.counters, self.session_writer)
        self.arrivals = Arrivals(limits, self.counters)
        self.publisher = Publisher(broker, recorder.note, rules.credentials.prepare)
        self.peers = Peers(broker, notation.prefix, self._give_way, self.clients.leave_lanes)
        self.lanes = Lanes(broker, lanes, self.peers)
        self.domains: DomainLink | None = None
        """The gateways of other domains, where there is a network of them."""
        self._exchange: KeyExchange | None = None
        if network is not None:
            if group_keys is not None and group_keys.office is not None:
                self._exchange = KeyExchange(
                    group_keys.office,
                    skew=int(1000 * network.skew),
                    pause=int(1000 * network.refresh),
                )
            self.domains = DomainLink(
                broker,
                network,
                definitions=lambda: rules.snapshot,
                register=partial(self._register, definitions),
                keys=self._exchange,
            )
        self.emergencies = Emergencies(
            emergencies or EmergencySettings(),
            situations,
            detection_store,
            sharing=sharing,
            rules=rules,
            denials=denials,
            limits=limits,
            notation=notation,
            publisher=self.publisher,
            place=stands_at,
            retry_deliveries=self.clients.retry_deliveries,
        )
        self.wills = Wills(
            wills,
            self.clients,
            rules=rules,
            check=self.emergencies.publication_check,
            publisher=self.publisher,
            feeds=recorder.feeds,
            record=recorder.note,
            denials=denials,
            counters=self.counters,
            background=self.background,
        )
        self.context = ConnectionContext(
            asyncio.get_running_loop(),
            arrivals=self.arrivals,
            rules=rules,
            delivery_check=self.emergencies.delivery_check,
            limits=limits,
            counters=self.counters,
            denials=denials,
            recorder=recorder,
            wills=self.wills,
            lanes=self.lanes,
            close_denied=close_denied,
        )
        lifecycle = SubscriptionLifecycle(
            rules, denials, self.session_writer, self.background, replay_retained=replay_retained
        )
        state = SubscriptionState(rules, self.clients, lifecycle)
        self.revocation = Revocation(
            authenticator, rules, denials, self.clients, patience=follower.lease
        )
        self.definition_feed = DefinitionFeed(
            definitions,
            follower,
            rules=rules,
            follow_program=self.emergencies.detection.follow,
            mappings=recorder.mappings,
            clients=self.clients,
            revocation=self.revocation,
            lifecycle=lifecycle,
            state=state,
            background=self.background,
            opt_outs=opt_outs,
        )
        admission = Admission(
            self.context,
            self.emergencies.publication_check,
            notation,
            PurposeCommands(
                rules,
                denials,
                self.counters,
                self.definition_feed,
                state_commands=limits.state_commands,
                answer_bytes=limits.packet,
                publish_answer=self._publish_answer if rules.answers.published else None,
            ),
            self.publisher,
        )
        resumption = SessionResumption(
            rules,
            self.clients,
            lifecycle,
            authenticator=authenticator,
            sessions=sessions,
            session_writer=self.session_writer,
            background=self.background,
            broker_timeout=broker.timeout,
        )
        presented = None
        if nonces is not None:
            presented = PresentedCapabilities(rules.credentials, nonces, self.background, skew)
        handshake = Handshake(
            self.context,
            self.clients,
            admission,
            resumption,
            lifecycle,
            state,
            self.revocation,
            authenticator=authenticator,
            broker=broker,
            presented=presented,
        )
        requests = SubscriptionRequests(self.context, notation, lifecycle)
        self._handlers = Handlers(admission, handshake, requests)
        self._authenticator = authenticator
        self._ticks = 0
        self._answering: ClientAnswering | None = None
        if client_requests is not None and opt_outs is not None:
            self._answering = ClientAnswering(
                client_requests,
                self.clients,
                denials,
                holder=opt_outs.holder,
                place=detection_store.place,
                run_in_thread=self.background.run_in_thread,
            )

        self._group_keys: GroupKeyFeed | None = None
        if group_keys is not None:
            self._group_keys = GroupKeyFeed(
                rules.sealing, group_keys, self.background.run_in_thread, self._exchange_keys
            )

    def make_client(self, arrival: Arrival) -> Downstream:
        """Make what a listener hands a new connection to."""
        return Downstream(self.context, self.clients, arrival, self._handlers)

    def _exchange_keys(self) -> Callable[[], None] | None:
        """Return what there is to do for key groups; None where there is no network now."""
        exchange, link, snapshot = self._exchange, self.domains, self.rules.snapshot
        if exchange is None or link is None or not link.open or snapshot is None:
            return None
        work, loop = exchange.prepare(snapshot, int(1000 * time.time())), link.loop

        def run() -> None:
            found = work()
            if found:
                loop.call_soon_threadsafe(link.tell, found)

        return run

    # --- start and end ---

    async def start(self) -> None:
        """Follow the definitions, and wait until they are known."""
        await self.definition_feed.start()
        if self._group_keys is not None:
            await self._group_keys.look()
            self.background.start(self._group_keys.watch())
        await self.emergencies.start()
        await self.wills.start()
        await self.lanes.start()
        if self.domains is not None:
            self.background.start(self.domains.run())
        self.background.start(self._keep_time())
        self.background.start(self.definition_feed.watch_lease())
        self.background.start(self.revocation.watch())
        if self._answering is not None:
            self.background.start(self._answering.watch())

    async def drain(self, seconds: float) -> None:
        """End all connections in order, and wait for what they still have to do."""
        await self.clients.drain(seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.lanes.finish()
        self.wills.finish()
        if self.domains is not None:
            self.domains.leave()
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
        self.lanes.stop()
        await self.background.cancel()
        self._publish_counts(ending=True)
        self._authenticator.close()
        self.background.close()

    # --- the clock ---

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Look after all connections, once a second."""
        self._ticks += 1
        self.clients.tick()
        self.lanes.tick(TICK_SECONDS)
        if self.domains is not None:
            self.domains.tick(TICK_SECONDS)
        self.recorder.tick()
        self.definition_feed.advance_roles()
        self._publish_counts()
        if not self._ticks % _SWEEP_TICKS:
            self.background.start(self._sweep_sessions())

    # --- inside ---

    def _publish_counts(self, *, ending: bool = False) -> None:
        self.counters.waiting(self.arrivals.unauthenticated, len(self._authenticator.logins))
        self.counters.publish()
        self.context.denials.flush(self.rules.epoch, ending=ending)

    def _give_way(self, client_id: str, done: Callable[[], None]) -> None:
        """End a client that another gateway takes over; say so when its messages are through."""
        self.clients.give_way(client_id)
        lane = self.lanes.of(client_id)
        if lane is not None:
            lane.when_settled_earlier(client_id, done)

    def _register(
        self, definitions: CheckedDefinitions, documents: Sequence[Document], key: str
    ) -> None:
        """Register what another domain has signed; what is not believed is left out."""

        async def register() -> None:
            actor = f"domain {fingerprint(key)}"
            for it in documents:
                try:
                    await self.background.run_in_thread(
                        partial(definitions.apply, [it], actor=actor, reason="from the broker")
                    )
                except PenstockError as error:
                    _log.warning("what another domain offers is not registered", error=error)

        self.background.start(register())

    def _publish_answer(self, topic: str, payload: bytes) -> None:
        """Publish the answer to a question; no stream records it, whatever it reads."""
        self.publisher.send(topic, payload, b"", _no_matter, recorded=False)

    async def _sweep_sessions(self) -> None:
        await self.clients.hold_sessions()
        await self.background.run_in_thread(self.sessions.sweep)

    async def _store_sessions(self, changes: list[SessionChange]) -> None:
        await self.background.run_in_thread(self.sessions.apply, changes)


def _no_matter() -> None:
    """Do nothing: an answer that does not arrive is asked for again."""
