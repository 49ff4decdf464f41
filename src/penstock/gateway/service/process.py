"""Builds a gateway from the settings, runs it in one process or several, and ends it in order.

    open: store ─▶ audit ─▶ follower ─▶ rules ─▶ listeners ─▶ /metrics, /healthz, /readyz
    end (SIGTERM, SIGINT): listeners ─▶ clients (0x8B) ─▶ sessions ─▶ audit ─▶ store

Rules that hold here:
- The gateway listens only when it knows the definitions.
- Ready means: the lease holds, the broker accepts connections, the audit log can be
  written, and events are detected where any are defined, here or by a gateway that tells
  us what it knows. Alive means: the loop turns.
- Workers are the same program with a number; the system spreads clients over them, and
  the store makes them one gateway.
- They start and end together: where one ends unasked, all end, and who started the
  gateway may start it again.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType

from penstock.clock import boot_clock
from penstock.config import Config
from penstock.config.gateway import LimitSettings
from penstock.config.secrets import generate_key
from penstock.definitions.authorizer import configured_settings
from penstock.errors import UnavailableError
from penstock.gateway.authorization.compiled_definitions import AnswerTopics
from penstock.gateway.authorization.credentials import TrustSource
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.authorization.sealing import GroupKeySource
from penstock.gateway.broker import BrokerAddress
from penstock.gateway.connection.authentication import Authenticator, PasswordFile
from penstock.gateway.connection.tokens import TokenVerifier, derive_pass_key
from penstock.gateway.detection.persistence import make_holder, make_place
from penstock.gateway.event_loop import Background
from penstock.gateway.limits import TICK_SECONDS, Limits
from penstock.gateway.publishing.domains import NetworkSettings
from penstock.gateway.recording.log_writer import EventLogs
from penstock.gateway.recording.recorder import Recorder
from penstock.gateway.replication.protocol import derive_secret
from penstock.gateway.service.emergencies import Sharing
from penstock.gateway.service.gateway import Gateway
from penstock.gateway.service.listeners import Listener, open_listener
from penstock.policy.purposes.settings import Notation
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pruning import keep_pruned
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.writer import AuditWriter
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions, recorder
from penstock.store.definitions.history import Definitions
from penstock.store.detection.journal import DetectionStore
from penstock.store.detection.situations import Situations
from penstock.store.enforcement_points import ClientRequests
from penstock.store.follower import Follower
from penstock.store.key_groups import KeyOffice
from penstock.store.keys import open_group_keys
from penstock.store.opt_out_feed import OptOutFeed
from penstock.store.session_tables import SessionQuotas
from penstock.store.sessions import Sessions
from penstock.store.spent_nonces import SpentNonces
from penstock.store.wills import WillStore
from penstock.telemetry import Endpoint, Health, get_logger
from penstock.trust.credentials import derive_client_prefix
from penstock.trust.keys import open_key

DRAIN_SECONDS = 8.0
_LOOP_SECONDS = 10.0
_OWN_DESCRIPTORS = 256
_COLLECT = (20_000, 20, 50)

_log = get_logger("gateway")


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that runs, and where its listeners are."""

    gateway: Gateway
    listeners: tuple[Listener, ...]
    health: Health

    def port(self, name: str) -> int:
        """Return the port of a listener."""
        return next(listener.port for listener in self.listeners if listener.name == name)

    def reload(self) -> None:
        """Read the TLS files of all listeners again."""
        for listener in self.listeners:
            listener.reload()


@asynccontextmanager
async def run(config: Config, *, shared: bool = False, worker: int = 0) -> AsyncIterator[Running]:
    """Run a gateway on this loop for as long as the block lasts."""
    async with AsyncExitStack() as stack:
        settings = config.gateway
        if settings.open_mode:
            _log.warning("open mode: every client may reserve and administer; for trials only")
        database = stack.enter_context(Database.open(config.store.connection_url()))
        pseudonyms = Pseudonyms.open(config.audit.pseudonym_key)
        log = AuditLog.open(database, config.audit.signing_key)
        writer = AuditWriter(log, batch=config.audit.batch, delay=config.audit.delay)
        stack.callback(_close_audit, writer, log)
        stack.enter_context(keep_pruned(log, config.audit))
        opt_outs = OptOutFeed(database, config.consent.key, config.store.lease)
        stack.callback(_withdraw, opt_outs)
        follower = stack.enter_context(
            Follower(database, lease=config.store.lease, companion=opt_outs)
        )
        record = recorder(log, pseudonyms)
        definitions = CheckedDefinitions(Definitions(database), record, signer=log.signer)
        place, holder = make_place(), make_holder()
        broker, limits = _read_broker(config), Limits.of(settings)
        notation = Notation(**dict(word.split("=", 1) for word in settings.notation))
        authenticator = make_authenticator(config)
        gateway = Gateway(
            rules=Rules(
                configured_settings(settings.filtering),
                open_mode=settings.open_mode,
                clear_excepts=settings.filtering.clear_excepts,
                answers=AnswerTopics(notation, published=settings.filtering.publish_answers),
                defined_users=settings.authentication.defined_users,
                trusts=definitions.trusts,
                place=settings.place,
                read_key=partial(config.pipeline.key.read_or_create, generate_key),
                trust=_read_trust(config),
            ),
            network=_read_network(config),
            nonces=SpentNonces(database),
            skew=int(1000 * config.trust.skew),
            limits=limits,
            notation=notation,
            broker=broker,
            authenticator=authenticator,
            definitions=definitions,
            sessions=make_sessions(database, settings.limits, pseudonyms),
            follower=follower,
            denials=Denials(
                writer,
                pseudonyms,
                per_principal=config.audit.denials_per_principal,
                per_hour=config.audit.denials_per_hour,
            ),
            close_denied=settings.filtering.denied_publish == "close",
            replay_retained=settings.filtering.replay_retained,
            emergencies=settings.emergencies,
            situations=Situations(database, log, pseudonyms),
            detection_store=DetectionStore(
                database,
                place,
                seconds=settings.emergencies.lease,
                holder=holder,
            ),
            sharing=make_sharing(config, worker),
            recorder=Recorder(config.recording, EventLogs(config).topic),
            wills=WillStore(database, holder, place),
            stands_at=settings.place,
            opt_outs=opt_outs,
            client_requests=ClientRequests(database),
            group_keys=GroupKeySource(
                partial(open_group_keys, database, config.trust.key),
                int(1000 * config.trust.key_delay),
                int(1000 * config.trust.key_retention),
                partial(_open_office, config, database),
            ),
            # Where the broker knows clients, it has to hear each by itself. Where other domains
            # are, each message is marked, and none fits a lane; no gateway is told of takeovers.
            lanes=settings.lanes if _has_lanes(config) else 0,
        )
        stack.push_async_callback(gateway.stop)
        tokens = authenticator.tokens
        if tokens is not None:
            await tokens.load()
            gateway.background.start(tokens.watch())
        await gateway.start()
        if settings.authentication.anonymous:
            _warn_of_client_names(gateway.rules)
        stack.push_async_callback(gateway.drain, DRAIN_SECONDS)
        listeners: list[Listener] = []
        for name, listener in settings.listeners.items():
            opened = await open_listener(
                gateway.make_client,
                gateway.arrivals,
                gateway.counters,
                name,
                listener,
                limits,
                shared=shared,
            )
            stack.callback(opened.close)
            listeners.append(opened)
            _log.info("listening", kind=listener.transport, host=listener.host, port=opened.port)
        health = make_health(gateway, follower, writer, broker)
        yield Running(gateway, tuple(listeners), health)


async def run_until_told(config: Config, *, worker: int = 0) -> None:
    """Run a gateway, or one of several workers, until SIGTERM or SIGINT.

    SIGHUP reads the TLS files again, as a change of the files does. Passwords are read whenever
    their file has changed.
    """
    _raise_descriptor_limit(config)
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # until there is something to read again
    async with run(config, shared=config.gateway.workers > 1, worker=worker) as running:
        # What is here now stays; the collector need not look at it, nor often at the rest:
        # messages are freed by their counts.
        loop.add_signal_handler(signal.SIGHUP, running.reload)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECT)
        with _endpoint(config, running.health, worker):
            _log.info("the gateway is ready")
            await told.wait()
            _log.info("the gateway drains its connections")


def _raise_descriptor_limit(config: Config) -> None:
    """Let the process have the descriptors that its limits need, as far as the system allows."""
    limits = config.gateway.limits
    # A client has two, its own connection and that to the broker.
    wanted = 2 * limits.connections + limits.unauthenticated + _OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if soft != resource.RLIM_INFINITY and soft < 2 * limits.connections:
        _log.warning(
            "the system allows fewer open files than so many clients need",
            limit=soft,
            count=wanted,
        )


def _warn_of_client_names(rules: Rules) -> None:
    """Tell a fleet that connects without user names what its identifiers do not give it."""
    named = len(rules.named_clients())
    if named:
        _log.warning(
            "definitions name client identifiers, and anonymous clients are accepted: to those "
            "they give nothing, as anybody can choose an identifier",
            count=named,
        )


def _open_office(config: Config, database: Database) -> KeyOffice:
    """Return what gives out keys of this domain, and takes those of others."""
    trust = config.trust
    return KeyOffice(
        open_group_keys(database, trust.key),
        open_key(trust.key),
        refresh_every=int(1000 * trust.key_refresh),
        lead=int(1000 * trust.key_lead),
    )


def _has_lanes(config: Config) -> bool:
    return not config.gateway.authentication.relay and config.trust.network is None


def _read_broker(config: Config) -> BrokerAddress:
    """Return the broker, and what our clients are called there."""
    found = BrokerAddress.of(config.broker)
    if config.trust.network is None or config.gateway.authentication.relay:
        return found
    return replace(found, client_prefix=derive_client_prefix(open_key(config.trust.key)))


def _read_trust(config: Config) -> TrustSource:
    """Return what the gateway knows of its domain."""
    found = config.trust
    return TrustSource(
        partial(open_key, found.key), found.network, int(1000 * found.skew), found.verify_rate
    )


def _read_network(config: Config) -> NetworkSettings | None:
    """Return the network of domains that this one belongs to."""
    found = config.trust
    if found.network is None or found.coordinator is None:
        return None
    return NetworkSettings(
        found.network, found.coordinator, open_key(found.key), found.skew, found.refresh
    )


def make_sessions(database: Database, limits: LimitSettings, pseudonyms: Pseudonyms) -> Sessions:
    """Make the store of sessions, with the quotas of the settings."""
    quotas = SessionQuotas(limits.sessions_per_user, limits.sessions_per_address)
    return Sessions(database, quotas=quotas, hide=pseudonyms.client)


def make_sharing(config: Config, worker: int) -> Sharing:
    """Say where other gateways reach this one, and what proves that they are ours."""
    settings = config.gateway.emergencies
    port = settings.link_port
    secret = derive_secret(config.audit.pseudonym_key.read().strip())
    return Sharing(secret, settings.link_host, port + worker if port else 0)


def make_authenticator(config: Config) -> Authenticator:
    """Make what finds out who clients are."""
    settings = config.gateway.authentication
    passwords = None
    if settings.passwords is not None:
        passwords = PasswordFile(settings.passwords)
        passwords.load()
    return Authenticator(
        passwords=passwords,
        relay=settings.relay,
        anonymous=settings.anonymous,
        checks=settings.checks,
        tokens=TokenVerifier(settings.tokens) if settings.tokens.enabled else None,
        any_client_id=settings.client_ids == "any",
        certificates=any(it.client_ca for it in config.gateway.listeners.values()),
        waiting=config.gateway.limits.unauthenticated,
        waiting_per_address=config.gateway.limits.unauthenticated_per_address,
        pass_key=None if settings.relay else _read_pass_key(config),
    )


def _read_pass_key(config: Config) -> bytes | None:
    """Return what passes of the console are checked with; None: there is no key yet."""
    if not config.audit.pseudonym_key.path.exists():
        return None
    return derive_pass_key(config.audit.pseudonym_key.read().strip())


def make_health(
    gateway: Gateway, follower: Follower, writer: AuditWriter, broker: BrokerAddress
) -> Health:
    """Make the checks of a gateway."""
    health = Health()
    beat = _Heartbeat(gateway.background)

    def check_lease() -> str | None:
        # The loop decides by what it has seen of the lease, which may be later than the follower.
        decides = boot_clock() <= gateway.rules.fresh_until
        return None if decides and follower.status().is_fresh else "the definitions are stale"

    health.register("definitions", check_lease, details=lambda: follower.status().details())
    health.register("broker", broker.check)
    health.register("audit", writer.check)
    health.register("detection", gateway.emergencies.detection.check)
    health.register("event_log", gateway.recorder.check)
    health.register("loop", beat.check, liveness=True)
    return health


class _Heartbeat:
    """Tells whether the loop still turns."""

    def __init__(self, background: Background) -> None:
        self._last = time.monotonic()
        background.start(self._beat())

    def check(self) -> str | None:
        """Say how long the loop has been stuck, if it is."""
        behind = time.monotonic() - self._last
        return None if behind < _LOOP_SECONDS else f"the loop has not turned for {behind:.0f} s"

    async def _beat(self) -> None:
        while True:
            self._last = time.monotonic()
            await asyncio.sleep(TICK_SECONDS)


@contextmanager
def _endpoint(config: Config, health: Health, worker: int) -> Iterator[None]:
    if not config.monitor.enabled:
        yield
        return
    port = config.gateway.monitor_port
    port = port + worker if port else 0
    with Endpoint(health, host=config.monitor.host, port=port) as endpoint:
        _log.info("answering probes", port=endpoint.port)
        yield


def _withdraw(opt_outs: OptOutFeed) -> None:
    try:
        opt_outs.close()
    except UnavailableError as error:
        # Who opts out next waits a lease for this gateway, no more.
        _log.warning("the gateway could not be taken off the list", error=error)


def _close_audit(writer: AuditWriter, log: AuditLog) -> None:
    try:
        writer.close()
    except UnavailableError as error:
        _log.exception("audit entries were given up", error=error)
    log.close()


_LOOK_SECONDS = 0.1
_STOP_SECONDS = DRAIN_SECONDS * 2 + 5


def run_workers(commands: Sequence[Sequence[str]]) -> None:
    """Run these commands until told to end, or until one of them ends."""
    told: list[int] = []

    def take_note(number: int, frame: FrameType | None) -> None:
        del frame
        told.append(number)

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, take_note)
    workers = [subprocess.Popen(command) for command in commands]
    signal.signal(signal.SIGHUP, pass_on)
    try:
        while not told and all(worker.poll() is None for worker in workers):
            time.sleep(_LOOK_SECONDS)
        failed = not told
    finally:
        _end(workers)
    if failed:
        raise UnavailableError("a worker of the gateway has ended", fix="see its log")


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for worker in workers:
        try:
            worker.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
