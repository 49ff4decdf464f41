"""The gate before all pages: which host is meant, who asks, and whether a change is really theirs.

    host known? ─▶ static, sign-in ─────────────────────────────────▶ application
                └▶ cookie ─▶ session ─▶ proof still good? ─▶ visit ─▶ application
                     │no                                      └ POST: origin and CSRF token
                     ▼
            pages: to /sign-in · JSON and streams: 401

Rules that hold here:
- Who asks is found out before anything of a body is read, and bodies are read whole, up to the
  limit, before they are looked at.
- Without TLS the host must be an address of this machine or `localhost`: no name that others
  control may lead a browser here (DNS rebinding).
- A change comes by POST from a page of this origin, with the token of its session. What names no
  origin is no browser of today, and is refused.
- An access token reads `.json` alone: it opens no page and changes nothing.
- Every answer has the headers that keep what is shown from other pages, caches and frames.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote as encode
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.config import Config
from penstock.config.settings import is_loopback
from penstock.console.access import HiddenError, NobodyError
from penstock.console.credentials import Credentials
from penstock.console.desk import VISIT, Desk, Visit, make_csrf
from penstock.console.rooms import FORM, FormData
from penstock.errors import DeniedError, UsageError
from penstock.server.callers import CallerAuthenticator, TooLargeError, UnauthenticatedError

ERROR: Final = "console_error"
ADDRESS: Final = "address"
_STRANGERS_BODY: Final = 16 * 1024
_PUBLIC: Final = ("/static/", "/openid/")
_PUBLIC_PAGES: Final = frozenset(
    {"/sign-in", "/first", "/openapi.json", "/choices", "/choices.json"}
)
_FRAMED: Final = "/choices"
"""The one page that others may frame, where the settings name them; it knows no session."""
_HEADERS: Final[dict[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


_ELSEWHERE: Final = frozenset({"cross-site", "same-site"})
"""What browsers say where a page of others led to this one."""


class GoneError(Exception):
    """The browser went away in the middle of a body."""


class Gate:
    """Stands before the application; what it refuses, the application says in its own way."""

    def __init__(self, app: ASGIApp, config: Config, desk: Desk, credentials: Credentials) -> None:
        self._app = app
        self._desk = desk
        self._credentials = credentials
        self._limit = config.console.limits.body
        self._secure = config.console.listener.encrypted or (config.console.url or "").startswith(
            "https:"
        )
        self._url = config.console.url
        self._named = urlsplit(config.console.url or "").netloc
        self._encrypted = config.console.listener.encrypted
        self.cookie = cookie_name(config)
        self._framing = _allow_frames(config.console.framed_by)
        self._callers = CallerAuthenticator(self._find_user, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        headers = Headers(scope=scope)
        state: dict[str, Any] = scope["state"]
        state[ADDRESS] = getattr(state.get("connection"), "address", "")
        body = b""
        try:
            self._check_host(headers)
            if not is_public(scope["path"]):
                state[VISIT] = await self._identify(scope, headers)
                state["connection"].known()
            if scope["method"] not in {"GET", "HEAD"}:
                body = await self._read_change(scope, headers, receive)
        except GoneError:
            return
        except Exception as error:  # noqa: BLE001 - the application tells it as it tells its own
            state[ERROR] = error
        await self._app(scope, _replay(body, receive), self._guard(scope, send))

    def _guard(self, scope: Scope, send: Send) -> Send:
        kept = scope["path"].startswith("/static/")
        ends = ERROR in scope["state"]
        framing = self._framing if scope["path"] == _FRAMED else {}

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in (_HEADERS | framing).items():
                    if value:
                        headers.setdefault(name, value)
                if self._secure:
                    headers.setdefault("Strict-Transport-Security", "max-age=31536000")
                if not kept:
                    headers["Cache-Control"] = "no-store"
                if ends:
                    headers["Connection"] = "close"  # what follows of a body is not read
            await send(message)

        return guarded

    def _check_host(self, headers: Headers) -> None:
        given = headers.get("host", "").lower()
        if self._encrypted or (self._named and given == self._named):
            return
        try:
            name = urlsplit(f"//{given}").hostname or ""
        except ValueError:
            name = ""
        if not is_loopback(name):
            raise UsageError(
                "the console is not known by this name",
                fix="open it by 127.0.0.1 or localhost, or set console.url to where it is reached",
            )

    async def _identify(self, scope: Scope, headers: Headers) -> Visit:
        desk, path = self._desk, scope["path"]
        given = headers.get("authorization")
        if given is not None and path.endswith(".json") and scope["method"] in {"GET", "HEAD"}:
            try:
                user = await self._callers.identify(given, None, scope["state"][ADDRESS])
            except UnauthenticatedError:
                raise NobodyError(
                    "the access token is not known", fix="`penstock tokens make` makes one"
                ) from None
            return await asyncio.to_thread(desk.visit, user)
        shown = cookie_parser(headers.get("cookie", "")).get(self.cookie, "")
        if not shown:
            raise NobodyError("nobody is signed in", fix="sign in at /sign-in")
        led_here = headers.get("sec-fetch-site") in _ELSEWHERE
        return await asyncio.to_thread(self._resume, shown, scope["state"][ADDRESS], led_here)

    def _resume(self, shown: str, address: str, led_here: bool) -> Visit:  # noqa: FBT001
        session = self._desk.sessions.find(shown)
        if session is None:
            raise NobodyError("your session is over", fix="sign in again")
        if not self._credentials.holds(session.user, session.proof):
            self._desk.sessions.close(session)
            raise NobodyError("your password has changed", fix="sign in again")
        rest = {"csrf": make_csrf(shown), "address": address, "led_here": led_here}
        return self._desk.visit(session.user, session, **rest)

    async def _find_user(self, token: str) -> str | None:
        return await asyncio.to_thread(self._desk.tokens.find_user, token)

    async def _read_change(self, scope: Scope, headers: Headers, receive: Receive) -> bytes:
        self._check_origin(headers)
        visit = scope["state"].get(VISIT)
        if not is_public(scope["path"]) and (visit is None or visit.session is None):
            raise NobodyError("nobody is signed in", fix="sign in at /sign-in")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise UsageError("a form is expected", fix="send it from a page of the console")
        body = await _read(headers, receive, self._limit if visit else _STRANGERS_BODY)
        form = FormData.parse(body)
        if visit is not None and not hmac.compare_digest(
            form.get("csrf", "").encode(), visit.csrf.encode()
        ):
            raise HiddenError(
                "this form is not of your session", fix="go back, load the page anew, and try again"
            )
        scope["state"][FORM] = form
        return body

    def _check_origin(self, headers: Headers) -> None:
        own = {f"{'https' if self._encrypted else 'http'}://{headers.get('host', '').lower()}"}
        if self._url is not None:
            own.add(self._url)
        origin = headers.get("origin")
        same = headers.get("sec-fetch-site") in {None, "same-origin"}
        if origin is None or origin.lower() not in own or not same:
            raise DeniedError(
                "this change comes from another page", fix="make it on a page of the console"
            )


def _allow_frames(origins: Sequence[str]) -> dict[str, str]:
    """Return the headers of a page that pages of these origins may frame; none: nobody may."""
    if not origins:
        return {}
    ancestors = f"frame-ancestors {' '.join(origins)}"
    policy = _HEADERS["Content-Security-Policy"].replace("frame-ancestors 'none'", ancestors)
    # The older header knows no list; browsers of today heed the policy.
    return {
        "Content-Security-Policy": policy,
        "X-Frame-Options": "",
        "Cross-Origin-Resource-Policy": "cross-origin",
    }


def cookie_name(config: Config) -> str:
    """Return the name of the session's cookie; browsers keep the longer one to this host."""
    secure = config.console.listener.encrypted or (config.console.url or "").startswith("https:")
    return "__Host-penstock" if secure else "penstock-session"


def is_public(path: str) -> bool:
    """Say whether a path is for everybody."""
    return path in _PUBLIC_PAGES or path.startswith(_PUBLIC)


def sign_in_path(scope: Scope) -> str:
    """Return where to sign in, and come back from to where one wanted to be."""
    path, query = scope["path"], scope["query_string"].decode("ascii", "replace")
    if path in {"/", "/sign-out"} or scope["method"] != "GET":
        return "/sign-in"
    return f"/sign-in?next={encode(path + (f'?{query}' if query else ''), safe='')}"


def local_path(given: str) -> str:
    """Return where to go on after signing in: a path of the console, whatever was given."""
    plain = given.isascii() and given.isprintable() and "\\" not in given
    safe = plain and given.startswith("/") and not given.startswith(("//", "/sign-", "/first"))
    return given if safe else "/"


async def _read(headers: Headers, receive: Receive, limit: int) -> bytes:
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length[:20]) > limit:
        raise TooLargeError(limit)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise GoneError
        body += message.get("body", b"")
        if len(body) > limit:
            raise TooLargeError(limit)
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the application the body that was read; then what the connection says."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
