"""OpenID Connect: people sign in at their provider (authorization code flow with PKCE).

    /openid/begin ─▶ provider ─▶ /openid/back?code&state ─▶ token endpoint ─▶ ID token ─▶ user

Rules that hold here:
- `state` and `nonce` bind the answer to the browser that began: they stand in a cookie that is
  sealed for ten minutes, together with the verifier of PKCE.
- The ID token is checked with the keys that the provider publishes: signature, issuer, audience,
  end, nonce. A name that a user cannot have is nobody's.
- Strangers may begin and come back: the provider is asked by two threads of its own, a few wait for
  them, and a provider that does not answer is left alone for a while. An answer is taken once.
- Endpoints come from the provider's own description, and have to be of the scheme of the issuer:
  https, or http at this machine.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import http.client
import json
import os
import secrets
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

import jwt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.config import Config
from penstock.config.gateway import TokenSettings
from penstock.config.settings import is_loopback
from penstock.errors import DeniedError, UnavailableError, quote
from penstock.gateway.connection.authentication import RefusedError, check_name
from penstock.gateway.connection.tokens import TokenVerifier
from penstock.json_text import read_object
from penstock.telemetry import get_logger

FLOW_COOKIE: Final = "penstock-openid"
FLOW_SECONDS: Final = 600
_TIMEOUT: Final = 10.0
_SIZE_LIMIT: Final = 1 << 20
_NONCE: Final = 12
_DESCRIBED: Final = 3600.0
_THREADS: Final = 2
_PLACES: Final = 8
_REST: Final = 5.0
"""How long a provider that did not answer is not asked again, in seconds."""
_USED: Final = 10_000
"""Answers that are remembered as taken; they are over in ten minutes."""
_log = get_logger("console")
_Answer = TypeVar("_Answer")


class OpenId:
    """One identity provider."""

    def __init__(self, config: Config) -> None:
        settings = config.console.openid
        self._settings = settings
        self._back = f"{config.console.address}/openid/back"
        self._key = AESGCM(os.urandom(32))
        self._threads = ThreadPoolExecutor(_THREADS, "penstock-openid")
        self._asking = 0
        self._failed = -_REST
        self._used: dict[str, float] = {}
        self._known: tuple[float, Mapping[str, str]] | None = None
        self._verifier: TokenVerifier | None = None

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, ask: Callable[..., _Answer], *given: Any) -> _Answer:
        """Ask the provider in a thread, unless too many do."""
        if self._asking >= _PLACES:
            raise UnavailableError("too many people sign in at the moment", fix="try again")
        self._asking += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, ask, *given)
        finally:
            self._asking -= 1

    async def begin(self, after: str) -> tuple[str, str]:
        """Return where to send the browser, and what to give it for the way back."""
        endpoints = await self._call(self._describe)
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=")
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self._settings.client_id,
                "redirect_uri": self._back,
                "scope": " ".join(self._settings.scopes),
                "state": state,
                "nonce": nonce,
                "code_challenge": challenge.decode(),
                "code_challenge_method": "S256",
            }
        )
        flow = {
            "state": state, "nonce": nonce, "verifier": verifier, "after": after,
            "until": time.time() + FLOW_SECONDS,
        }  # fmt: skip
        place = endpoints["authorization_endpoint"]
        return f"{place}{'&' if '?' in place else '?'}{query}", self._seal(flow)

    async def finish(self, code: str, state: str, flow: str) -> tuple[str, str]:
        """Return who signed in, and where they wanted to be."""
        held = self._open(flow)
        awaited = str(held["state"]).encode() if held is not None else b""
        if held is None or not code or not hmac.compare_digest(awaited, state.encode()):
            raise DeniedError("this answer of the provider is not awaited", fix="sign in again")
        now = time.time()
        self._used = {it: until for it, until in self._used.items() if until > now}
        if state in self._used or len(self._used) >= _USED:
            raise DeniedError("this answer of the provider was taken before", fix="sign in again")
        self._used[state] = float(held["until"])
        endpoints = await self._call(self._describe)
        token = await self._call(self._redeem, endpoints, code, str(held["verifier"]))
        user = await self._verify(endpoints, token, str(held["nonce"]))
        return user, str(held["after"])

    def _redeem(self, endpoints: Mapping[str, str], code: str, verifier: str) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._back,
            "client_id": self._settings.client_id or "",
            "code_verifier": verifier,
        }
        if self._settings.client_secret is not None:
            form["client_secret"] = self._settings.client_secret.read_text()
        answer = _ask(endpoints["token_endpoint"], urlencode(form).encode())
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise DeniedError("the provider names nobody", fix="sign in again")
        return token

    async def _verify(self, endpoints: Mapping[str, str], token: str, nonce: str) -> str:
        if self._verifier is None:
            verifier = TokenVerifier(
                TokenSettings(
                    url=endpoints["jwks_uri"],
                    issuer=self._settings.issuer,
                    audience=self._settings.client_id,
                    claim=self._settings.claim or "",
                )
            )
            await verifier.load()
            self._verifier = verifier
        proof = await self._verifier.verify(token.encode())
        if proof is None:
            raise DeniedError("the provider's word is not believed", fix="see the console's log")
        # The signature was just checked: what stands in the token is the provider's word.
        claims = jwt.decode(token, options={"verify_signature": False})
        if self._settings.claim == "email" and claims.get("email_verified") is not True:
            raise DeniedError("the provider has not verified this address", fix="verify it there")
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise DeniedError("this answer of the provider is not awaited", fix="sign in again")
        try:
            return check_name(proof.user)
        except RefusedError as error:
            raise DeniedError(
                "the provider names somebody with a name that no user can have",
                fix=f"choose another claim (console.openid.claim): {error.message}",
            ) from None

    def _describe(self) -> Mapping[str, str]:
        now = time.monotonic()
        if self._known is not None and now - self._known[0] < _DESCRIBED:
            return self._known[1]
        if now - self._failed < _REST:
            raise UnavailableError("the identity provider did not answer", fix="try again soon")
        issuer = self._settings.issuer or ""
        try:
            found = _ask(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        except UnavailableError:
            self._failed = time.monotonic()
            raise
        if found.get("issuer") != issuer:
            raise UnavailableError(
                f"the provider at {quote(issuer)} says that it is another",
                fix="set console.openid.issuer to what it says",
            )
        endpoints = {}
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            endpoints[name] = str(found.get(name, ""))
            _check_scheme(endpoints[name])
        self._known = (now, endpoints)
        return endpoints

    def _seal(self, flow: Mapping[str, Any]) -> str:
        nonce = os.urandom(_NONCE)
        sealed = self._key.encrypt(nonce, json.dumps(flow).encode(), b"openid")
        return base64.urlsafe_b64encode(nonce + sealed).decode()

    def _open(self, flow: str) -> Mapping[str, Any] | None:
        try:
            data = base64.urlsafe_b64decode(flow)
            found = read_object(self._key.decrypt(data[:_NONCE], data[_NONCE:], b"openid"))
        except (ValueError, InvalidTag):
            return None
        return found if found is not None and found["until"] > time.time() else None


def _check_scheme(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (
        parts.scheme == "http" and is_loopback(parts.hostname or "")
    ):
        raise UnavailableError(
            f"the provider names {quote(url)}, where secrets would go in clear",
            fix="use a provider with https",
        )


def _ask(url: str, form: bytes | None = None) -> dict[str, Any]:
    """Return the JSON object that a provider answers with."""
    _check_scheme(url)
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked
        url, data=form, headers={"Accept": "application/json"}
    )
    # Neither a proxy of the environment nor a redirect is to choose who vouches for people.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        _NoRedirects(),
    )
    try:
        with opener.open(request, timeout=_TIMEOUT) as answer:
            found = read_object(answer.read(_SIZE_LIMIT))
    except (OSError, http.client.HTTPException) as error:
        _log.warning("the identity provider did not answer", error=error)
        raise UnavailableError(
            "the identity provider does not answer as it should",
            fix="try again; console.openid.issuer names it, and the log says more",
        ) from None
    if found is None:
        raise UnavailableError("the identity provider answers no JSON", fix="see its log")
    return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
