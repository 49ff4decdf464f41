"""What people ask about the clients of this gateway: who is here, with what, and ending one.

    store: request ──▶ (a thread looks) ──▶ loop: look at the clients, or end one ──▶ answer

Rules that hold here:
- Looking at the clients is one step of the loop: at most `LISTED` of them are described.
- Who is kicked gets DISCONNECT 0x98 (administrative action); the session stays, the will is sent,
  and nothing keeps the client from coming back: blocking is for `user` definitions.
- A store that is away is asked again at the next look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from penstock.errors import UnavailableError
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.connection.client_connection import ClientConnection
from penstock.gateway.connection.client_registry import ClientRegistry
from penstock.gateway.connection.context import Cause
from penstock.mqtt import Disconnect, ReasonCode
from penstock.store.client_requests import LISTED, ClientRequest, ClientRequests

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
        if request.verb == "list":
            opened = list(self._clients.opened())
            return {"count": len(opened), "clients": [_line(it) for it in opened[:LISTED]]}
        client = self._clients.get(request.client)
        if client is None or not client.open:
            return {"count": 0, "clients": []}
        described = _line(client) | _subscriptions(client)
        described["denied"] = self._denials.recent(client.session.client_id)
        if request.verb == "kick":
            client.end(Cause.DENIED, farewell=Disconnect(int(ReasonCode.ADMINISTRATIVE_ACTION)))
        return {"count": 1, "clients": [described]}


def _line(client: ClientConnection) -> dict[str, Any]:
    session = client.session
    return {
        "client": session.client_id,
        "user": session.user,
        "address": session.address,
        "mqtt": _VERSIONS.get(client.version, str(client.version)),
        "subscriptions": len(session.by_number) + len(session.dormant),
        "unacknowledged": len(client.unacked),
        "waiting_bytes": client.transport.get_write_buffer_size(),
        "kept": session.resumable,
    }


def _subscriptions(client: ClientConnection) -> dict[str, Any]:
    session = client.session
    held = [
        {
            "filter": it.text,
            "purpose": it.ap,
            "paused": not it.active,
            "filtered": it.content is not None,
        }
        for it in session.by_number.values()
    ]
    asleep = [
        {
            "filter": it.filter,
            "purpose": it.purpose,
            "paused": True,
            "filtered": it.content is not None,
        }
        for it in session.dormant.values()
    ]
    return {"filters": [*held, *asleep]}
