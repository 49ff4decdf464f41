"""Builds the console from the settings, runs it, and ends it in order.

    open: store ─▶ audit ─▶ follower ─▶ pages ─▶ listener ─▶ one-time link, where nobody administers
    end (SIGTERM, SIGINT): streams ─▶ listener ─▶ calls under way ─▶ audit ─▶ store

Rules that hold here:
- There is no default password. While nobody administers, each start prints a link that is good
  once, for an hour; it goes to the terminal, not to the log.
- Ready means: the definitions are current, and the store can be asked.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from penstock.config import Config
from penstock.console.application import Application, Streams
from penstock.console.choices import Choices
from penstock.console.credentials import Credentials
from penstock.console.desk import Desk
from penstock.console.gate import Gate
from penstock.console.openid import OpenId
from penstock.console.pages import ROOMS
from penstock.console.rendering import Renderer
from penstock.console.sign_in import SignIn
from penstock.gateway.service.listeners import Listener
from penstock.server.connection import HttpServer
from penstock.telemetry import Endpoint, Health, get_logger

FIRST_SECONDS: Final = 30.0

_log = get_logger("console")


@dataclass(frozen=True, slots=True)
class RunningConsole:
    """A console that runs, where it listens, and the link to the first account."""

    desk: Desk
    listener: Listener
    health: Health
    link: str | None

    def reload(self) -> None:
        """Read the TLS files again."""
        self.listener.reload()


@asynccontextmanager
async def run(config: Config) -> AsyncIterator[RunningConsole]:
    """Run the console on this loop for as long as the block lasts."""
    settings = config.console
    async with AsyncExitStack() as stack:
        desk = stack.enter_context(Desk.open(config))
        await asyncio.to_thread(desk.follower.wait_for, 0, FIRST_SECONDS)
        credentials = Credentials(config, desk)
        stack.callback(credentials.close)
        desk.proof_holds = credentials.holds
        openid = OpenId(config) if settings.openid.enabled else None
        if openid is not None:
            stack.callback(openid.close)
        renderer = Renderer(ROOMS, openid=openid is not None)
        streams = Streams(settings.limits.streams, settings.limits.streams_per_user)
        application = Application(desk, ROOMS, renderer, streams)
        SignIn(config, desk, credentials, renderer, openid).add_routes(application.app)
        Choices(desk, renderer).add_routes(application.app)
        server = HttpServer(Gate(application, config, desk, credentials), settings.limits)
        stack.push_async_callback(server.close)
        stack.callback(streams.closing.set)
        listener = await server.listen("console", settings.listener)
        address = settings.address
        if settings.listener.port == 0 and settings.url is None:
            address = f"{address.rpartition(':')[0]}:{listener.port}"
        link = None
        if not await asyncio.to_thread(desk.has_administrator):
            link = f"{address}/first?link={await asyncio.to_thread(desk.sessions.make_link)}"
        yield RunningConsole(desk, listener, make_health(desk), link)


async def run_until_told(config: Config) -> None:
    """Run the console until SIGTERM or SIGINT; SIGHUP reads the TLS files again."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # until there is something to read again
    async with run(config) as running:
        loop.add_signal_handler(signal.SIGHUP, running.reload)
        if running.link is not None:
            # No log line: whoever reads logs later has no use for it, or too much.
            sys.stdout.write(f"nobody administers yet → make the first account: {running.link}\n")
            sys.stdout.flush()
        with _endpoint(config, running.health):
            _log.info("the console is ready")
            await told.wait()
            _log.info("the console ends")


def make_health(desk: Desk) -> Health:
    """Make the checks of a console."""
    health = Health()

    def check_lease() -> str | None:
        return None if desk.follower.status().is_fresh else "the definitions are stale"

    def check_store() -> str | None:
        with desk.database.read() as connection:
            connection.execute(sa.select(1))
        return None

    health.register("definitions", check_lease, details=lambda: desk.follower.status().details())
    health.register("store", check_store)
    return health


@contextmanager
def _endpoint(config: Config, health: Health) -> Iterator[None]:
    if not config.monitor.enabled:
        yield
        return
    with Endpoint(health, host=config.monitor.host, port=config.console.monitor_port) as endpoint:
        _log.info("answering probes", port=endpoint.port)
        yield
