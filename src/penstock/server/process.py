"""Builds the server from the settings, runs it, and ends it in order.

    open: store ─▶ audit ─▶ follower ─▶ operations ─▶ listeners ─▶ /metrics, /healthz, /readyz
    end (SIGTERM, SIGINT): listeners ─▶ calls under way ─▶ threads ─▶ audit ─▶ store

Rules that hold here:
- It listens when it knows the definitions, and says that it is ready when it can accept requests.
- Ready means: the lease holds, and the store can be asked. Alive means: the loop turns.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from penstock.config import Config
from penstock.gateway.connection.authentication import Authenticator, PasswordFile
from penstock.gateway.service.listeners import Listener
from penstock.server.callers import CallerAuthenticator, CallLimits, RateLimit
from penstock.server.connection import HttpServer
from penstock.server.grpc_service import GrpcServer
from penstock.server.operations import Brokerage, PrivacyOperations
from penstock.server.rest import make_app
from penstock.store.access_tokens import TokenBook
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pruning import keep_pruned
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions, recorder
from penstock.store.definitions.history import Definitions
from penstock.store.follower import Follower
from penstock.store.rights.requests import RequestBook
from penstock.store.rights.tables import Sealer
from penstock.telemetry import Endpoint, Health, get_logger

FIRST_SECONDS: Final = 30.0
CALLS_PER_THREAD: Final = 64
_LOOP_SECONDS: Final = 10.0

_log = get_logger("server")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that runs, and where its listeners are."""

    listeners: tuple[Listener, ...]
    health: Health

    def reload(self) -> None:
        """Read the TLS files of all listeners again; gRPC looks at its own by itself."""
        for listener in self.listeners:
            listener.reload()


@asynccontextmanager
async def run(config: Config) -> AsyncIterator[RunningServer]:
    """Run the server on this loop for as long as the block lasts."""
    settings = config.server
    async with AsyncExitStack() as stack:
        database = stack.enter_context(Database.open(config.store.connection_url()))
        people = Pseudonyms.open(config.audit.pseudonym_key)
        log = AuditLog.open(database, config.audit.signing_key)
        stack.callback(log.close)
        stack.enter_context(keep_pruned(log, config.audit))
        consent = ConsentBook.open(database, config.consent.key)
        book = RequestBook(database, consent, Sealer(config.consent.key.read()))
        follower = stack.enter_context(Follower(database, lease=config.store.lease))
        await asyncio.to_thread(follower.wait_for, 0, FIRST_SECONDS)
        definitions = CheckedDefinitions(
            Definitions(database), recorder(log, people), signer=log.signer
        )
        operations = PrivacyOperations(
            Brokerage(follower, definitions, book, log, people),
            TokenBook(database),
            CallLimits(
                RateLimit(settings.limits.rate, settings.limits.burst),
                RateLimit(settings.limits.denials / 60, settings.limits.denials),
                settings.limits.at_a_time,
                settings.threads * CALLS_PER_THREAD,
            ),
            settings.threads,
            defined_users=config.gateway.authentication.defined_users,
            console=config.console.address,
        )
        stack.callback(operations.close)
        authenticator = CallerAuthenticator(operations.find_user, make_passwords(config))
        stack.callback(authenticator.close)
        server = HttpServer(
            make_app(operations, authenticator, settings.limits.body), settings.limits
        )
        stack.push_async_callback(server.close)
        listeners = [
            await server.listen(name, it)
            for name, it in settings.listeners.items()
            if it.protocol == "rest"
        ]
        spoken = {name: it for name, it in settings.listeners.items() if it.protocol == "grpc"}
        if spoken:
            remote = GrpcServer(operations, authenticator, settings.limits)
            stack.push_async_callback(remote.close)
            for name, listener in spoken.items():
                remote.listen(name, listener)
            await remote.start()
        heartbeat = Heartbeat()
        stack.callback(heartbeat.stop)
        yield RunningServer(tuple(listeners), make_health(follower, database, heartbeat))


async def run_until_told(config: Config) -> None:
    """Run the server until SIGTERM or SIGINT; SIGHUP reads the TLS files again."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # until there is something to read again
    async with run(config) as running:
        loop.add_signal_handler(signal.SIGHUP, running.reload)
        with _endpoint(config, running.health):
            _log.info("the server is ready")
            await told.wait()
            _log.info("the server ends")


def make_passwords(config: Config) -> Authenticator | None:
    """Make what checks passwords of users that the gateway knows; None where there is no file."""
    settings = config.gateway.authentication
    if settings.passwords is None or not settings.passwords.exists():
        return None
    passwords = PasswordFile(settings.passwords)
    passwords.load()
    limits = config.server.limits
    return Authenticator(
        passwords=passwords,
        relay=False,
        anonymous=False,
        checks=settings.checks,
        waiting=limits.unauthenticated,
        waiting_per_address=limits.unauthenticated_per_address,
    )


def make_health(follower: Follower, database: Database, heartbeat: Heartbeat) -> Health:
    """Make the checks of a server."""
    health = Health()

    def check_lease() -> str | None:
        return None if follower.status().is_fresh else "the definitions are stale"

    def check_store() -> str | None:
        with database.read() as connection:
            connection.execute(sa.select(1))
        return None

    health.register("definitions", check_lease, details=lambda: follower.status().details())
    health.register("store", check_store)
    health.register("loop", heartbeat.check, liveness=True)
    return health


class Heartbeat:
    """Tells whether the loop still turns."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._task = asyncio.get_running_loop().create_task(self._beat())

    def check(self) -> str | None:
        """Say how long the loop has been stuck, if it is."""
        behind = time.monotonic() - self._last
        return None if behind < _LOOP_SECONDS else f"the loop has not turned for {behind:.0f} s"

    def stop(self) -> None:
        """Look no longer."""
        self._task.cancel()

    async def _beat(self) -> None:
        while True:
            self._last = time.monotonic()
            await asyncio.sleep(1.0)


@contextmanager
def _endpoint(config: Config, health: Health) -> Iterator[None]:
    if not config.monitor.enabled:
        yield
        return
    with Endpoint(health, host=config.monitor.host, port=config.server.monitor_port) as endpoint:
        _log.info("answering probes", port=endpoint.port)
        yield
