"""Who is connected, by connection and identifier; and who may no longer be.

    file of passwords changed ──┐
    `user` blocked or removed ──┤
    identifier now in a policy ─┼──▶ is this client still who it logged in as? ── no ──▶ closed
    CONNECT on its way ─────────┘

    store: request ──▶ (a thread looks) ──▶ loop: look at the clients, or end one ──▶ answer

Rules that hold here:
- A client identifier has at most one connection here: who takes it over ends the one that had
  it (MQTT5 3.1.4).
- How many there are is counted from their accept on (`Arrivals`).
- A session that outlives its connection is left in the store by whoever had it last.
- A user is gone when the file of passwords no longer has them; a user whose password or client
  identifiers have changed logs in again. Certificates and the broker's own users have no such
  file: a `user` definition that is `blocked` keeps anybody out, however they log in. Who is no
  longer defined has to log in again, and is kept out where only defined users may come.
- Where users may choose any identifier, one that a definition begins to give something to is
  no longer whose it happens to be: that connection ends in the step that takes it over.
- The file is looked at several times a second, by each gateway and worker. One that cannot be
  used for as long as a lease says nothing any more: who came by it has to go.
- Whoever is closed here publishes nothing more, the will included. A user that is gone leaves no
  session behind, connected or not, so that a later user of the same name inherits nothing.
- Who logs in while that changes is looked at again in the step that lets them in.
- Looking at the clients is one step of the loop: at most `LISTED` of them are described.
- Who is kicked gets DISCONNECT 0x98 (administrative action); the session stays, the will is sent,
  and nothing keeps the client from coming back: blocking is for `user` definitions.
- A store that is away is asked again at the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from penstock.clock import boot_clock
from penstock.errors import PenstockError, UnavailableError
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.connection.authentication import Authenticator, RefusedError
from penstock.gateway.connection.broker_connection import AWAITING_LEADER, STALE
from penstock.gateway.connection.client_connection import ClientConnection
from penstock.gateway.connection.context import Cause
from penstock.gateway.counters import Counters
from penstock.gateway.event_loop import SessionWriter
from penstock.gateway.session import Session
from penstock.mqtt import Disconnect, ReasonCode
from penstock.store.enforcement_points import LISTED, ClientRequest, ClientRequests
from penstock.store.sessions import Disown, Hold, Leave, SessionChange
from penstock.telemetry import get_logger


class ClientRegistry:
    """The clients of one gateway."""

    def __init__(
        self,
        rules: Rules,
        counters: Counters,
        session_writer: SessionWriter[SessionChange],
    ) -> None:
        self.connections: set[ClientConnection] = set()
        self._rules = rules
        self._counters = counters
        self._session_writer = session_writer
        self._by_id: dict[str, ClientConnection] = {}
        self._await_definitions: set[ClientConnection] = set()
        self._await_leader: set[ClientConnection] = set()
        self._draining = False
        self._emptied = asyncio.Event()

    # --- connections ---

    def arrive(self, client: ClientConnection) -> bool:
        """Take note of a new connection; False where nobody is let in any more."""
        if self._draining:
            self._counters.opened("limit")
            return False
        self.connections.add(client)
        return True

    def leave(self, client: ClientConnection) -> None:
        """Take note that a connection is gone."""
        self.connections.discard(client)
        if not self.connections:
            self._emptied.set()

    def tick(self) -> None:
        """Look after all connections, once a second."""
        for client in list(self.connections):
            client.tick()

    async def drain(self, seconds: float) -> None:
        """End all connections in order, and cut off those that take too long."""
        self._draining = True
        self._emptied.clear()
        for client in list(self.connections):
            client.end(Cause.DRAIN)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if self.connections:
                    await self._emptied.wait()
        for client in list(self.connections):
            client.transport.abort()

    # --- client identifiers ---

    def get(self, client_id: str) -> ClientConnection | None:
        """Return the connection that has a client identifier."""
        return self._by_id.get(client_id)

    def __getitem__(self, client_id: str) -> ClientConnection:
        return self._by_id[client_id]

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._by_id

    def opened(self) -> Iterator[ClientConnection]:
        """Walk over the clients that are let in."""
        for client in list(self._by_id.values()):
            if client.open:
                yield client

    def identified(self) -> Iterator[ClientConnection]:
        """Walk over the clients that have an identifier, let in or about to be."""
        return iter(list(self._by_id.values()))

    def sessions(self) -> Iterator[Session]:
        """Walk over the sessions of the clients that are let in."""
        return (client.session for client in self.opened())

    def take_over(self, client: ClientConnection) -> None:
        """Let a client have its identifier; another connection that has it ends.

        Who has it is looked at here, in one step: somebody else may have come meanwhile.
        """
        session = client.session
        other = self._by_id.get(session.client_id)
        # What begins with the user's own name is theirs, whoever has chosen it before.
        own = Authenticator.is_own(session.principal, session.client_id)
        if other is not None and other.session.principal != session.principal and not own:
            raise RefusedError(
                "this client identifier is in use by somebody else",
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                "client_id",
            )
        self._by_id[session.client_id] = client
        self._rules.open_roles(session)
        if other is not None:
            other.end(Cause.TAKEOVER)
            # Should the new one never open, the session ends in the time of the old one.
            self._leave_session(other.session)

    def give_way(self, client_id: str) -> None:
        """End the connection of a client identifier that another gateway takes over."""
        client = self._by_id.get(client_id)
        if client is not None:
            client.end(Cause.TAKEOVER)

    def leave_lanes(self) -> None:
        """Let every client publish by itself: takeovers elsewhere are not known here."""
        for client in self.opened():
            if client.upstream is None:
                client.lose_broker()
            else:
                client.leave_lane()

    def release(self, client: ClientConnection) -> None:
        """Take note that a connection has ended and has no identifier any more."""
        self._await_definitions.discard(client)
        self._await_leader.discard(client)
        session = getattr(client, "session", None)
        if session is None or self._by_id.get(session.client_id) is not client:
            return
        del self._by_id[session.client_id]
        self._rules.engine.end_session(session.client_id)
        self._rules.close_roles(session)
        self._leave_session(session)

    def ask_to_reconnect(self, client_id: str) -> None:
        """Let a client connect again; to the broker it left in order: no will is sent."""
        client = self._by_id[client_id]
        client.session.will = None
        client.broker().close(Disconnect())
        client.end(Cause.BROKER)

    def _leave_session(self, session: Session) -> None:
        if session.stored:
            will = session.will if session.will_given else None
            waits = will is not None and bool(will.properties.will_delay)
            self._session_writer.later(
                Leave(session.client_id, session.holder, session.expiry, will_waits=waits)
            )

    async def disown_sessions(self, users: Collection[str]) -> None:
        """Let the store forget the sessions of users that are no more."""
        await self._session_writer.save(Disown(tuple(sorted(users))))

    async def hold_sessions(self) -> None:
        """Tell the store which sessions are held, so that it does not take them for left."""
        held = [it for it in self.sessions() if it.stored]
        changes = [Hold(it.client_id, it.holder, it.expiry) for it in held]
        await asyncio.gather(*map(self._session_writer.save, changes))

    # --- what deliveries wait for ---

    def await_definitions(self, client: ClientConnection) -> None:
        """Go on with what the broker sends as soon as the definitions are fresh."""
        self._await_definitions.add(client)

    def await_leader(self, client: ClientConnection) -> None:
        """Go on with what the broker sends as soon as the situations are known."""
        self._await_leader.add(client)

    def tell_fresh(self) -> None:
        """Go on with the deliveries that waited for fresh definitions."""
        waiting, self._await_definitions = self._await_definitions, set()
        for client in waiting:
            client.broker().resume(STALE)

    def retry_deliveries(self) -> None:
        """Decide on the deliveries that waited for replicated state."""
        waiting, self._await_leader = self._await_leader, set()
        for client in waiting:
            client.broker().resume(AWAITING_LEADER)


LOOK_SECONDS: Final = 0.2
_HALF_WRITTEN_SECONDS: Final = 1.0
_log = get_logger("gateway")


class Revocation:
    """Looks after who may stay connected."""

    def __init__(
        self,
        authenticator: Authenticator,
        rules: Rules,
        denials: Denials,
        clients: ClientRegistry,
        *,
        patience: float,
    ) -> None:
        self._authenticator = authenticator
        self._rules = rules
        self._denials = denials
        self._clients = clients
        self._patience = patience
        """For how many seconds the file of passwords may be unusable."""
        self._known: object = None
        self._usable_at = boot_clock()
        self._usable = True
        self._gone: dict[str, tuple[float, Callable[[str], bool]]] = {}
        """Users whose sessions the store may still have: since when, and who says they are gone."""

    async def watch(self) -> None:
        """Look at the file of passwords again and again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()
            if self._gone:
                await self._disown()

    async def _disown(self) -> None:
        """Forget the sessions of users that are gone, and stay gone: a file may be half written."""
        now = boot_clock()
        due = {name: it for name, it in self._gone.items() if now - it[0] >= _HALF_WRITTEN_SECONDS}
        # A store that is away is told at a later look.
        with contextlib.suppress(PenstockError):
            gone = [name for name, (_, is_gone) in due.items() if is_gone(name)]
            if gone:
                await self._clients.disown_sessions(gone)
            for name, it in due.items():
                if self._gone.get(name) == it:
                    del self._gone[name]

    def _note_gone(self, users: Iterable[str], is_gone: Callable[[str], bool]) -> None:
        now = boot_clock()
        self._gone |= dict.fromkeys(users, (now, is_gone))

    def _is_undefined(self, user: str) -> bool:
        return self._rules.keeps_out(user) and not self._rules.defines(user)

    def look(self) -> None:
        """Look at the file of passwords; end the connections that it no longer allows."""
        try:
            found = self._authenticator.refresh()
        except PenstockError as error:
            if self._usable:
                _log.exception("the file of passwords cannot be used", error=error)
            self._usable = False
            if boot_clock() - self._usable_at > self._patience:
                self._end(it for it in self._opened() if it.session.credential is not None)
            return
        self._usable, self._usable_at = True, boot_clock()
        if found != self._known:
            self._known = found
            self._note_gone(self._authenticator.take_removed(), self._authenticator.lacks)
            self._end(it for it in self._opened() if not self._allows(it.session))

    def check(self, session: Session) -> None:
        """Refuse a client that may not be here, before it is let in."""
        if self._rules.keeps_out(session.user):
            raise RefusedError("this user may not connect", ReasonCode.BANNED, "blocked")
        if not self._allows(session):
            raise RefusedError(
                "the user was changed meanwhile", ReasonCode.NOT_AUTHORIZED, "password"
            )

    def take(self, changed: Collection[str]) -> None:
        """Take note that the definitions of these users have changed, or are gone."""
        rules = self._rules
        ended = {user for user in changed if rules.keeps_out(user) or not rules.defines(user)}
        if ended:
            self._note_gone(filter(self._is_undefined, ended), self._is_undefined)
            self._end(it for it in self._opened() if it.session.user in ended)

    def take_names(self) -> None:
        """Take note that definitions may name other client identifiers than before."""
        if self._authenticator.any_client_id:
            self._end(it for it in self._opened() if not self._allows(it.session))

    def _allows(self, session: Session) -> bool:
        return self._authenticator.vouches(session, self._rules.named_clients)

    def _is_gone(self, session: Session) -> bool:
        """Say whether the user of a client is no more, not only kept out."""
        user = session.user
        undefined = user is not None and self._is_undefined(user)
        return undefined or not self._authenticator.knows(session)

    def _opened(self) -> Iterable[ClientConnection]:
        return self._clients.opened()

    def _end(self, clients: Iterable[ClientConnection]) -> None:
        for client in list(clients):
            session = client.session
            if self._is_gone(session):
                session.expiry = 0
            self._denials.revocation(session)
            client.end(Cause.REVOKED)


_LOOK_SECONDS: Final = 0.3
_VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5"}


class ClientAnswering:
    """Answers for one gateway."""

    def __init__(
        self,
        requests: ClientRequests,
        clients: ClientRegistry,
        denials: Denials,
        *,
        holder: str,
        place: str,
        run_in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._requests = requests
        self._clients = clients
        self._denials = denials
        self._holder = holder
        self._place = place
        self._run_in_thread = run_in_thread

    async def watch(self) -> None:
        """Answer again and again."""
        last: int | None = None
        while True:
            try:
                if last is None:
                    last = await self._run_in_thread(self._requests.newest)
                for request in await self._run_in_thread(self._requests.after, last):
                    last = max(last, request.number)
                    body = {"gateway": self._place, **self._look(request)}
                    await self._run_in_thread(self._requests.answer, request, self._holder, body)
            except UnavailableError:
                pass
            await asyncio.sleep(_LOOK_SECONDS)

    def _look(self, request: ClientRequest) -> dict[str, Any]:
        if request.verb == "recent":
            return {"decisions": [it._asdict() for it in self._denials.decisions.newest()]}
        if request.verb == "list":
            opened = list(self._clients.opened())
            return {"count": len(opened), "clients": [_line(it) for it in opened[:LISTED]]}
        if request.verb == "held":
            return _list_held(list(self._clients.opened()))
        client = self._find(request.client)
        if client is None or not client.open:
            return {"count": 0, "clients": []}
        described = _line(client) | _subscriptions(client)
        described["denied"] = self._denials.recent(client.session.client_id)
        if request.verb == "kick":
            client.kick()
        return {"count": 1, "clients": [described]}

    def _find(self, name: str) -> ClientConnection | None:
        """Return the client of an identifier, also as a list shows a long one."""
        found = self._clients.get(name)
        if found is not None or not name.endswith(_CUT):
            return found
        fitting = [it for it in self._clients.opened() if _shorten(it.session.client_id) == name]
        return fitting[0] if len(fitting) == 1 else None


_SHOWN: Final = 256
_MOST_HELD: Final = 4_000
_CUT: Final = "…"


def _shorten(text: str) -> str:
    """Cut what a client chose, so that answers have room for all."""
    return text if len(text) <= _SHOWN else text[:_SHOWN] + _CUT


def _line(client: ClientConnection) -> dict[str, Any]:
    session = client.session
    return {
        "client": _shorten(session.client_id),
        "user": session.user,
        "address": session.address,
        "mqtt": _VERSIONS.get(client.version, str(client.version)),
        "subscriptions": len(session.by_number) + len(session.dormant),
        "unacknowledged": len(client.unacked),
        "waiting_bytes": client.transport.get_write_buffer_size(),
        "kept": session.resumable,
    }


def _list_held(opened: Sequence[ClientConnection]) -> dict[str, Any]:
    """Return clients with their subscriptions, as many as an answer has room for."""
    found, room = [], _MOST_HELD
    for client in opened[:LISTED]:
        held = _subscriptions(client)["filters"][:room]
        room -= len(held)
        found.append(_line(client) | {"filters": held})
        if not room:
            break
    return {"count": len(opened), "clients": found}


def _subscriptions(client: ClientConnection) -> dict[str, Any]:
    session = client.session
    held = [
        {
            "filter": _shorten(it.text),
            "purpose": _shorten(it.ap) if it.ap is not None else None,
            "paused": not it.active,
            "filtered": it.content is not None,
        }
        for it in session.by_number.values()
    ]
    asleep = [
        {
            "filter": _shorten(it.filter),
            "purpose": _shorten(it.purpose) if it.purpose is not None else None,
            "paused": True,
            "filtered": it.content is not None,
        }
        for it in session.dormant.values()
    ]
    return {"filters": [*held, *asleep][:LISTED]}
