"""The pages before one is signed in: sign-in, the provider's way back, the first account, sign-out.

Rules that hold here:
- A cookie of a session is for this host alone, is not shown to scripts, and is not sent along by
  other sites (`HttpOnly`, `SameSite=Lax`, `Secure` where there is TLS).
- Signing in makes a new session: one that somebody planted before is of no use.
- A link is used by POST: what looks links up beforehand does not use it up.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from fastapi import FastAPI, Request
from starlette.responses import RedirectResponse, Response

from penstock.config import Config
from penstock.console.access import NobodyError
from penstock.console.credentials import SHORTEST, Credentials, WrongLoginError
from penstock.console.desk import Desk, Visitor
from penstock.console.gate import ADDRESS, cookie_name, local_path
from penstock.console.openid import FLOW_COOKIE, FLOW_SECONDS, OpenId
from penstock.console.rendering import Renderer
from penstock.console.rooms import Form
from penstock.errors import PenstockError, UsageError
from penstock.gateway.limits import network_of
from penstock.server.callers import TooManyError


class SignIn:
    """Opens and closes sessions."""

    def __init__(
        self,
        config: Config,
        desk: Desk,
        credentials: Credentials,
        renderer: Renderer,
        openid: OpenId | None,
    ) -> None:
        self._desk = desk
        self._credentials = credentials
        self._renderer = renderer
        self._openid = openid
        self._cookie = cookie_name(config)
        self._secure = self._cookie.startswith("__Host-")
        self._longest = int(config.console.session)

    def add_routes(self, app: FastAPI) -> None:
        """Add the pages."""
        app.get("/sign-in", include_in_schema=False)(self.show)
        app.post("/sign-in", include_in_schema=False)(self.sign_in)
        app.post("/sign-out", include_in_schema=False)(self.sign_out)
        app.post("/sign-out/others", include_in_schema=False)(self.sign_out_others)
        app.get("/first", include_in_schema=False)(self.show_first)
        app.post("/first", include_in_schema=False)(self.make_first)
        if self._openid is not None:
            app.get("/openid/begin", include_in_schema=False)(self.begin)
            app.get("/openid/back", include_in_schema=False)(self.come_back)

    def show(self, request: Request, next: str = "/") -> Response:  # noqa: A002 - the query's word
        """Show the form."""
        return self._form(request, local_path(next))

    async def sign_in(self, request: Request, form: Form) -> Response:
        """Check a password, and open a session."""
        user, after = form.get("user", "").strip(), local_path(form.get("next", "/"))
        network = network_of(request.scope["state"][ADDRESS])
        try:
            proof = await self._credentials.check(user, form.get("password", ""), network)
        except (WrongLoginError, TooManyError) as error:
            if isinstance(error, WrongLoginError):
                await asyncio.to_thread(self._credentials.deny, user or None, network)
            status = 429 if isinstance(error, TooManyError) else 403
            return await asyncio.to_thread(
                self._form, request, after, user=user, error=error, status=status
            )
        return await asyncio.to_thread(self._enter, user, proof, after)

    def sign_out(self, visit: Visitor) -> Response:
        """Close the session."""
        if visit.session is not None:
            self._desk.sessions.close(visit.session)
            self._desk.record("sign-out", visit.user)
        made = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
        made.delete_cookie(self._cookie, path="/", secure=self._secure, httponly=True)
        return made

    def sign_out_others(self, visit: Visitor) -> Response:
        """Close all other sessions of the same user."""
        if visit.session is not None:
            count = self._desk.sessions.close_others(visit.session)
            self._desk.record("sign-out", visit.user, count=count)
            self._desk.tell(visit, f"signed out at {count} other browsers")
        return RedirectResponse("/account", HTTPStatus.SEE_OTHER)

    def show_first(self, request: Request, link: str = "") -> Response:
        """Show the form of the first account."""
        error = None
        if not self._desk.sessions.has_link(link):
            error = NobodyError(
                "this link is used, or too old", fix="`penstock console link` makes another"
            )
        return self._first(request, link, error=error, status=403 if error else 200)

    def make_first(self, request: Request, form: Form) -> Response:
        """Make the first account that administers, and sign it in."""
        link, user = form.get("link", ""), form.get("user", "").strip()
        password = form.get("password", "")
        if password != form.get("again", ""):
            differ = UsageError("the two passwords differ", fix="type them again")
            return self._first(request, link, user=user, error=differ, status=422)
        try:
            proof = self._credentials.make_first(link, user, password)
        except PenstockError as error:
            return self._first(request, link, user=user, error=error, status=422)
        return self._enter(user, proof, "/")

    async def begin(self, request: Request, next: str = "/") -> Response:  # noqa: A002
        """Lead to the identity provider."""
        assert self._openid is not None  # noqa: S101 - only then is there a route
        try:
            away, flow = await self._openid.begin(local_path(next))
        except PenstockError as error:
            return await asyncio.to_thread(
                self._form, request, local_path(next), error=error, status=503
            )
        made = RedirectResponse(away, HTTPStatus.SEE_OTHER)
        made.set_cookie(
            FLOW_COOKIE,
            flow,
            max_age=FLOW_SECONDS,
            path="/openid/",
            secure=self._secure,
            httponly=True,
            samesite="lax",
        )
        return made

    async def come_back(self, request: Request, code: str = "", state: str = "") -> Response:
        """Take what the provider says, and open a session."""
        assert self._openid is not None  # noqa: S101 - only then is there a route
        flow = request.cookies.get(FLOW_COOKIE, "")
        try:
            user, after = await self._openid.finish(code, state, flow)
        except PenstockError as error:
            network = network_of(request.scope["state"][ADDRESS])
            await asyncio.to_thread(self._credentials.deny, None, network)
            return await asyncio.to_thread(self._form, request, "/", error=error, status=403)
        proof = self._credentials.provider_proof()
        made = await asyncio.to_thread(self._enter, user, proof, local_path(after))
        made.delete_cookie(FLOW_COOKIE, path="/openid/")
        return made

    def _enter(self, user: str, proof: str, after: str) -> Response:
        shown = self._desk.sessions.open(user, proof)
        self._desk.record("sign-in", user)
        made = RedirectResponse(after, HTTPStatus.SEE_OTHER)
        made.set_cookie(
            self._cookie,
            shown,
            max_age=self._longest,
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="lax",
        )
        return made

    def _form(
        self,
        request: Request,
        after: str,
        *,
        user: str = "",
        error: PenstockError | None = None,
        status: int = 200,
    ) -> Response:
        return self._renderer.plain(
            request,
            "sign_in.html",
            "Sign in",
            status,
            after=after,
            user=user,
            error=error,
            passwords=self._credentials.has_passwords,
        )

    def _first(
        self,
        request: Request,
        link: str,
        *,
        user: str = "",
        error: PenstockError | None = None,
        status: int = 200,
    ) -> Response:
        return self._renderer.plain(
            request,
            "first.html",
            "The first account",
            status,
            link=link,
            user=user,
            error=error,
            shortest=SHORTEST,
        )
