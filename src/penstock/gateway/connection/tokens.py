"""Tokens as a way in: JSON Web Tokens of an identity provider, and passes of our own console.

    CONNECT: password = token ──▶ key by its `kid` ──▶ signature, issuer, audience, time ──▶ user
                                    │unknown
                                    ▼
                     the JWK Set is fetched anew, at most once in a while

    console: key of the installation, user, end ─▶ pass ─▶ CONNECT ─▶ gateway: the same key ─▶ user

Rules that hold here:
- Only public keys of the JWK Set count, each with the algorithms of its own kind that the settings
  allow: a token cannot choose `none`, nor be signed with a public key as if it were a secret.
- A token has an end (`exp`); who came by it is closed then.
- Keys in a file count as long as the file is there. Keys by URL are fetched beside the loop;
  where the URL does not answer, those that were fetched last go on to count.
- What is wrong with a token is told to nobody but the log, and there by its kind, at most once
  a second each, with a count.
- The key of passes is derived from the key of pseudonyms, under a purpose of its own. Only programs
  of this installation have it; whoever has it could read the store as well.
- A pass names one user and ends by itself; the session that it opened ends with it. With it a user
  has what they have with their password, and nothing more: the gateway decides each message as for
  every client.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import http.client
import json
import ssl
import time
import urllib.request
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final, NamedTuple

import jwt

from penstock.clock import boot_clock
from penstock.config.gateway import TokenSettings
from penstock.errors import UnavailableError, quote
from penstock.telemetry import get_logger

TOKEN_LIMIT: Final = 16_384
_KEYS_LIMIT: Final = 1 << 20
_FETCH_SECONDS: Final = 10.0
_FETCH_PAUSE: Final = 10.0
"""Tokens of unknown keys can be made by anybody: they fetch the keys no more often than this."""
_TELL_PAUSE: Final = 1.0
_ALGORITHMS: Final = {
    "EC": frozenset({"ES256", "ES384", "ES512"}),
    "OKP": frozenset({"EdDSA"}),
    "RSA": frozenset({"PS256", "PS384", "PS512", "RS256", "RS384", "RS512"}),
}
"""The algorithms that a key of a kind can be for."""
_log = get_logger("gateway")


class TokenProof(NamedTuple):
    """Whom a token names, and until when, in seconds since 1970."""

    user: str
    valid_until: float


class TokenVerifier:
    """Checks tokens with the keys that are known now."""

    def __init__(self, settings: TokenSettings) -> None:
        self._settings = settings
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._mark: object = None
        self._fetched = float("-inf")
        self._fetching = asyncio.Lock()
        self._told: dict[str, tuple[float, int]] = {}
        """When a kind of refusal was logged, and how many there were since."""

    async def load(self) -> None:
        """Get the keys, or say why there are none."""
        if self._settings.url is None:
            self._read_file()
        else:
            await self._fetch()

    async def watch(self) -> None:
        """Fetch the keys again and again, where they are fetched at all."""
        while self._settings.url is not None:
            await asyncio.sleep(self._settings.refresh)
            await self._try_fetch()

    async def verify(self, token: bytes) -> TokenProof | None:
        """Return whom a token names; None where it is no token that counts here."""
        if len(token) > TOKEN_LIMIT:
            return None
        try:
            text = token.decode("ascii")
            kid = jwt.get_unverified_header(text).get("kid")
        except (UnicodeDecodeError, jwt.InvalidTokenError):
            return None
        key = await self._find_key(kid)
        return None if key is None else self._check(text, key)

    def _check(self, text: str, key: jwt.PyJWK) -> TokenProof | None:
        settings = self._settings
        fitting = _ALGORITHMS[str(key.key_type)]
        allowed = [it for it in settings.algorithms if it in fitting]
        try:
            claims = jwt.decode(
                text,
                key.key,
                algorithms=allowed,
                issuer=settings.issuer,
                audience=settings.audience,
                leeway=settings.leeway,
                options={"require": ["exp", "iss", "aud", settings.claim]},
            )
            end = float(claims["exp"]) + settings.leeway
        except (jwt.InvalidTokenError, ValueError, TypeError, OverflowError) as error:
            self._tell(type(error).__name__)
            return None
        user = claims[settings.claim]
        return TokenProof(user, end) if isinstance(user, str) else None

    def _tell(self, kind: str) -> None:
        """Log that a token was refused; anybody can send as many as they like."""
        now = boot_clock()
        told, count = self._told.get(kind, (float("-inf"), 0))
        if now < told + _TELL_PAUSE:
            self._told[kind] = (told, count + 1)
            return
        self._told[kind] = (now, 0)
        _log.info("tokens were refused", kind=kind, count=count + 1)

    async def _find_key(self, kid: str | None) -> jwt.PyJWK | None:
        if self._settings.url is None:
            self._read_file()
        elif kid not in self._keys and boot_clock() > self._fetched + _FETCH_PAUSE:
            await self._try_fetch()
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    def _read_file(self) -> None:
        """Read the file if it has changed; nobody is vouched for by one that cannot be used."""
        path = self._settings.keys
        assert path is not None  # noqa: S101 - the settings name a file or a URL
        try:
            found = path.stat()
            mark = (found.st_mtime_ns, found.st_size, found.st_ino)
            if mark == self._mark:
                return
            self._mark, self._keys = mark, {}
            self._keys = _read_keys(path.read_bytes()[: _KEYS_LIMIT + 1], str(path))
        except OSError as error:
            self._mark, self._keys = None, {}
            raise UnavailableError(
                f"the keys of tokens in {quote(path)} cannot be read: {error.strerror}",
                fix="put a JWK Set there, or name another file in penstock.yaml",
            ) from None

    async def _try_fetch(self) -> None:
        try:
            await self._fetch()
        except UnavailableError as error:
            _log.warning("the keys of tokens could not be fetched", error=error)

    async def _fetch(self) -> None:
        async with self._fetching:
            if boot_clock() <= self._fetched + _FETCH_PAUSE:
                return  # another did so while this one waited
            self._fetched = boot_clock()
            loop = asyncio.get_running_loop()
            self._keys = await loop.run_in_executor(None, _download, str(self._settings.url))


def _download(url: str) -> dict[str | None, jwt.PyJWK]:
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310
    # Neither a proxy of the environment nor a redirect is to choose who vouches for users.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        _NoRedirects(),
    )
    try:
        with opener.open(request, timeout=_FETCH_SECONDS) as answer:
            data = answer.read(_KEYS_LIMIT + 1)
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or type(error).__name__
        raise UnavailableError(
            f"the keys of tokens cannot be fetched from {quote(url)}: {why}",
            fix="check gateway.authentication.tokens.url, and that this machine may reach it",
        ) from None
    return _read_keys(data, url)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _read_keys(data: bytes, place: str) -> dict[str | None, jwt.PyJWK]:
    """Return the public keys of a JWK Set by their identifiers; others in it are passed over."""
    fix = "publish a JWK Set with public keys of kind EC, OKP or RSA"
    if len(data) > _KEYS_LIMIT:
        raise UnavailableError(f"the JWK Set of {quote(place)} is over 1 MiB", fix=fix)
    try:
        listed = json.loads(data)["keys"]
        found: dict[str | None, jwt.PyJWK] = {}
        for it in listed:
            if it.get("kty") not in _ALGORITHMS or it.get("use", "sig") != "sig":
                continue
            if "d" in it:
                raise UnavailableError(
                    f"the JWK Set of {quote(place)} holds a private key",
                    fix="publish public keys alone, and replace the key that was shown",
                )
            with contextlib.suppress(jwt.PyJWKError, jwt.InvalidKeyError):
                found[it.get("kid")] = jwt.PyJWK(it)  # or of a curve that is not known here
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, jwt.PyJWTError):
        raise UnavailableError(f"{quote(place)} is not a JWK Set", fix=fix) from None
    if not found:
        raise UnavailableError(f"the JWK Set of {quote(place)} has no key for signatures", fix=fix)
    return found


PASS_SECONDS: Final = 600
_PREFIX: Final = b"penstock-console:"
_PURPOSE: Final = b"penstock console pass v1"
_LONGEST: Final = 200


def derive_pass_key(secret: bytes) -> bytes:
    """Return the key of passes, made from a key that gateways and console share."""
    return hmac.digest(secret, _PURPOSE, sha256)


def make_pass(key: bytes, user: str, clock: Callable[[], float] = time.time) -> bytes:
    """Return what proves to a gateway that the console speaks for a user."""
    end = str(int(clock()) + PASS_SECONDS).encode()
    return _PREFIX + end + b":" + _sign(key, user, end)


def looks_like_pass(password: bytes | None) -> bool:
    """Say whether a password has the form of a pass."""
    return password is not None and password.startswith(_PREFIX)


def check_pass(
    key: bytes, user: str, password: bytes, clock: Callable[[], float] = time.time
) -> float | None:
    """Return until when a pass is good for a user, in seconds since 1970; None where it is not."""
    end, _, signature = password[:_LONGEST].removeprefix(_PREFIX).partition(b":")
    right = hmac.compare_digest(_sign(key, user, end), signature)
    if not right or not end.isdigit():
        return None
    until = float(end)
    return until if clock() < until <= clock() + PASS_SECONDS else None


def _sign(key: bytes, user: str, end: bytes) -> bytes:
    message = end + b"\0" + user.encode("utf-8", "surrogatepass")
    return hmac.digest(key, message, sha256).hex().encode()
