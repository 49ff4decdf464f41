"""How people prove who they are: a password of the gateway's file, or their identity provider.

    password ──▶ in turn, with back-off ──▶ user
    provider ──▶ state, PKCE, nonce, signed ID token ──▶ user
    one-time link ──▶ a name and a password ──▶ the first who administers

Rules that hold here:
- A session stands on what it was opened with: when that password changes, or the provider is
  another, it has ended.
- Whatever is wrong with a log-in, the answer is the same, after the same time.
- Back-offs belong to network and user together (`LoginQueue`): who guesses keeps out nobody
  else, not even by one proxy. What failed is in the audit log, so often for each network at most.
- A link makes an account only while nobody administers, and never changes anybody's password.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Final

from penstock.config import Config
from penstock.console.desk import Desk
from penstock.errors import DeniedError, UnavailableError, UsageError, quote
from penstock.gateway.connection.authentication import (
    Authenticator,
    PasswordFile,
    RefusedError,
    check_name,
    write_password,
)
from penstock.model import kinds
from penstock.model.document import Document
from penstock.server.callers import RateLimit, TooManyError
from penstock.store.audit.entry import Outcome

SHORTEST: Final = 12
_PER_SECOND: Final = 0.5
_AT_ONCE: Final = 20.0
FIRST_RIGHT: Final = "console-administrators"


class WrongLoginError(DeniedError):
    """Somebody is not who they say, or nobody knows them."""

    def __init__(self) -> None:
        super().__init__(
            "wrong user name or password",
            fix="try again; whoever administers sets one with `penstock password`",
        )


class Credentials:
    """Checks who people are."""

    def __init__(self, config: Config, desk: Desk) -> None:
        self._desk = desk
        self._path = config.gateway.authentication.passwords
        self._issuer = config.console.openid.issuer
        self._file: PasswordFile | None = None
        self._authenticator: Authenticator | None = None
        self._failures = RateLimit(_PER_SECOND, _AT_ONCE)
        self._checks = config.gateway.authentication.checks
        self._limits = config.console.limits

    def close(self) -> None:
        """End the threads that check passwords."""
        if self._authenticator is not None:
            self._authenticator.close()

    @property
    def has_passwords(self) -> bool:
        """Whether there is a file that passwords are checked with."""
        return self._path is not None and self._path.exists()

    def holds(self, user: str, proof: str) -> bool:
        """Say whether what a session was opened with is still good."""
        if self._issuer is not None and proof == self.provider_proof():
            return True
        file = self._open_file()
        if file is None:
            return False
        file.load()
        known = file.user(user)
        return known is not None and proof == _proof("password", known.hash)

    async def check(self, user: str, password: str, network: str) -> str:
        """Return the proof of a right password; raise where it is not."""
        await asyncio.to_thread(self._open_file)
        authenticator, file = self._authenticator, self._file
        try:
            check_name(user)
            right = authenticator is not None and await authenticator.check_password(
                user, password.encode(), network
            )
        except RefusedError as error:
            if error.why == "busy":
                raise TooManyError("too many people sign in at the moment", 5.0) from None
            right = False
        known = file.user(user) if file is not None else None
        if not right or known is None:
            raise WrongLoginError
        return _proof("password", known.hash)

    def provider_proof(self) -> str:
        """Return the proof of whoever comes from the identity provider."""
        return _proof("openid", self._issuer or "")

    def make_first(self, link: str, user: str, password: str) -> str:
        """Make the first account that administers; return the proof for its session."""
        desk = self._desk
        if self._path is None:
            raise UnavailableError(
                "no file of passwords is named, so that nobody can sign in with one",
                fix="set gateway.authentication.passwords in penstock.yaml, and restart",
            )
        check_name(user)
        if len(password) < SHORTEST:
            raise UsageError(
                f"the password has fewer than {SHORTEST} characters", fix="choose a longer one"
            )
        if desk.has_administrator():
            raise DeniedError("there is an administrator already", fix="sign in, or ask them")
        file = self._open_file()
        if file is not None:
            file.load()
            if file.user(user) is not None:
                raise UsageError(
                    f"{quote(user)} has a password already",
                    fix="choose another name; a link changes nobody's password",
                )
        if not desk.sessions.use_link(link):
            raise DeniedError(
                "this link is used, or too old", fix="`penstock console link` makes another"
            )
        write_password(self._path, user, password)
        documents = [
            Document("right", FIRST_RIGHT, {"subjects": [f"user:{user}"], "administer": True})
        ]
        _, definitions = desk.current()
        if definitions.get(kinds.User, user) is None:
            documents.append(Document("user", user, {}))
        change = desk.definitions.apply(documents, actor=user, reason="the first account")
        desk.follow(change)
        desk.record("first-account", user)
        made = self._open_file()
        if made is None:
            raise UnavailableError("the file of passwords is gone", fix="sign in again")
        made.load()
        known = made.user(user)
        return _proof("password", known.hash if known is not None else "")

    def deny(self, user: str | None, network: str) -> None:
        """Put a failed log-in into the audit log, unless too many came from its network."""
        if not self._failures.wait_for(network):
            self._desk.record("sign-in", user, Outcome.DENIED)

    def _open_file(self) -> PasswordFile | None:
        """Return the file of passwords; it may come to be while the console runs."""
        if self._file is None and self.has_passwords and self._path is not None:
            file = PasswordFile(self._path)
            file.load()
            self._authenticator = Authenticator(
                passwords=file,
                relay=False,
                anonymous=False,
                checks=self._checks,
                waiting=self._limits.unauthenticated,
                waiting_per_address=self._limits.unauthenticated_per_address,
            )
            self._file = file
        return self._file


def _proof(way: str, what: str) -> str:
    return sha256(f"{way}\0{what}".encode()).hexdigest()
