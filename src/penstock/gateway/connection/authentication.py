"""Who a client is: certificates, passwords, the broker's word, or nobody.

    certificate? ──yes──▶ its common name
        │no
    token as password? ──yes──▶ `TokenVerifier` ──▶ the user that it names
        │no
    pass of the console? ──yes──▶ `check_pass` ──▶ the user name
        │no
    user name? ──yes──▶ password file (argon2) or the broker ──▶ the user name
        │no
    anonymous allowed? ──yes──▶ `anonymous`

The file of passwords has one user per line: `name:hash` or `name:hash:id,id*`, where the
last part lists client identifiers (`*` stands for any rest) beside the usual ones.

Rules that hold here:
- Of the file only the owner may read anything; one that others can read is not used.
- A wrong password is told in the same time for users that exist and for those that do not.
- Passwords are checked beside the loop, in few threads of low priority; whose turn it is
  decides `LoginQueue`.
- A password that was right is not hashed again for the same user while the file stays the
  same: what is kept is a keyed digest under a key that this process alone knows.
- A token counts as a token where tokens are accepted and it looks like one; the user name beside
  it is left out, or the one that the token names.
- A client identifier belongs to a user if it is the user's name, begins with the name and
  a colon, or matches one of the patterns of that user. Names never contain a colon, so no
  two users share an identifier unless patterns say so. Who names nobody may use what is
  nobody's; where the broker or certificates know users, only `anonymous:` and what follows.
- Where users may choose any identifier (`client_ids: any`), one that is another user's by the
  file of passwords, or that definitions give something to, still belongs to its owner alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import stat
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from penstock.errors import PenstockError, UnavailableError, quote
from penstock.gateway.connection.login_queue import BusyError, LoginQueue
from penstock.gateway.connection.tokens import TokenVerifier, check_pass, looks_like_pass
from penstock.gateway.session import Session
from penstock.mqtt import Connect, ReasonCode
from penstock.policy.access.principals import ANONYMOUS

NAME_LIMIT = 256
PASSWORD_LIMIT = 4096
FILE_LIMIT = 64 * 1024 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_RELAYED_PER_CHECK = 16
_LOW_PRIORITY = 5
_DOTS = 2

Names = Callable[[], Container[str]]
"""Tells the client identifiers that definitions give something to, as they are now."""


class RefusedError(PenstockError):
    """A client that is not let in, with the reason it is told."""

    def __init__(self, message: str, reason: ReasonCode, why: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.why = why


@dataclass(frozen=True, slots=True)
class User:
    """One line of the file."""

    hash: str
    patterns: tuple[str, ...] = ()


def wrong_password() -> RefusedError:
    """Return the refusal of whoever is not who they say, whatever they said."""
    return RefusedError(
        "wrong user name or password", ReasonCode.BAD_USER_NAME_OR_PASSWORD, "password"
    )


def _looks_like_token(password: bytes | None) -> bool:
    """Say whether a password has the form of a signed token: three parts, the first JSON."""
    return password is not None and password.startswith(b"eyJ") and password.count(b".") == _DOTS


def check_name(name: str) -> str:
    """Return the name if a principal can have it."""
    if (
        not 0 < len(name) <= NAME_LIMIT
        or not name.isprintable()
        or ":" in name
        or name == ANONYMOUS
    ):
        raise RefusedError(
            f"a user name has 1 to {NAME_LIMIT} printable characters, no colon, and is not "
            f"{ANONYMOUS}",
            ReasonCode.BAD_USER_NAME_OR_PASSWORD,
            "name",
        )
    return name


class Identity(NamedTuple):
    """Who a client is, and for how long that holds."""

    name: str
    credential: str | None = None
    """What the user has just logged in by: the hash in the file; None: another way in."""
    valid_until: float = float("inf")
    """In seconds since 1970."""


class PasswordFile:
    """Users and hashes; read again when the file changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.mark: tuple[int, int, int] | None = None
        """Tells one state of the file from others."""
        self._users: dict[str, User] = {}
        self._removed: set[str] = set()
        self._listed: set[str] = set()
        self._beginnings: tuple[str, ...] = ()
        self._hasher = PasswordHasher()
        # What is checked for a user that does not exist; nobody knows its password.
        self._decoy = self._hasher.hash(secrets.token_urlsafe())
        self._key = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}

    def load(self) -> None:
        """Read the file if it has changed; raise where it cannot or must not be used."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                mark = (found.st_mtime_ns, found.st_size, found.st_ino)
                if mark == self.mark:
                    return
                if stat.S_IMODE(found.st_mode) & _OTHERS:
                    raise UnavailableError(
                        f"the file of passwords {quote(self._path)} can be read by others",
                        fix=f"chmod 600 {self._path}",
                    )
                if found.st_size > FILE_LIMIT:
                    raise UnavailableError(
                        f"the file of passwords {quote(self._path)} is over {FILE_LIMIT} bytes",
                        fix="use certificates, or let the broker decide",
                    )
                users = parse_users(file.read(), self._path)
        except OSError as error:
            raise UnavailableError(
                f"cannot read the file of passwords {quote(self._path)}: {error.strerror}",
                fix=f"create {self._path} with mode 0600, or name another in penstock.yaml",
            ) from None
        self.mark = mark
        self._removed |= self._users.keys() - users.keys()
        self._users = users
        self._right.clear()
        patterns = {it for user in self._users.values() for it in user.patterns}
        self._listed = {it for it in patterns if not it.endswith("*")}
        self._beginnings = _shortest(it[:-1] for it in patterns if it.endswith("*"))

    def claims(self, client_id: str) -> bool:
        """Say whether a client identifier belongs to some user of the file as it is now."""
        self.load()
        if client_id in self._listed or client_id.partition(":")[0] in self._users:
            return True
        # As none begins with another, only the last one before it can be its beginning.
        place = bisect_right(self._beginnings, client_id)
        return place > 0 and client_id.startswith(self._beginnings[place - 1])

    def take_removed(self) -> set[str]:
        """Return the users that were in the file and were removed since this was last asked."""
        removed, self._removed = self._removed, set()
        return removed

    def patterns(self, name: str) -> tuple[str, ...]:
        """Return the further client identifiers of a user."""
        user = self._users.get(name)
        return user.patterns if user else ()

    def user(self, name: str) -> User | None:
        """Return a user of the file as it was read last."""
        return self._users.get(name)

    def remembers(self, name: str, password: bytes) -> bool:
        """Say whether this password of this user was found right before."""
        known = self._right.get(name)
        return known is not None and hmac.compare_digest(known, self._digest(name, password))

    def remember(self, name: str, password: bytes) -> None:
        """Remember that a password was found right."""
        self._right[name] = self._digest(name, password)

    def verify(self, user: User | None, password: bytes) -> bool:
        """Check a password; takes tens of milliseconds, also for a user that does not exist."""
        try:
            self._hasher.verify(user.hash if user else self._decoy, password)
        except (VerificationError, InvalidHashError):
            return False
        return user is not None

    def _digest(self, name: str, password: bytes) -> bytes:
        return hmac.digest(self._key, name.encode() + b"\0" + password, sha256)


def _shortest(beginnings: Iterable[str]) -> tuple[str, ...]:
    """Sort, and leave out what begins with another one."""
    kept: list[str] = []
    for it in sorted(beginnings):
        if not kept or not it.startswith(kept[-1]):
            kept.append(it)
    return tuple(kept)


def _matches(pattern: str, client_id: str) -> bool:
    if pattern.endswith("*"):
        return client_id.startswith(pattern[:-1])
    return client_id == pattern


def parse_users(content: bytes, path: Path) -> dict[str, User]:
    """Read the lines of the file; errors name the line, never what stands in it."""
    users: dict[str, User] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        hashed, _, patterns = rest.partition(":")
        if not name or not hashed.startswith("$argon2") or name in users:
            raise UnavailableError(
                f"line {number} of the file of passwords {quote(path)} is not usable",
                fix="write name:hash, each name once; `penstock password` makes the hash",
            )
        users[name] = User(hashed, tuple(it for it in patterns.split(",") if it))
    return users


def write_password(path: Path, user: str, password: str, client_ids: str = "") -> None:
    """Set the password of a user in the file; the file is replaced whole."""
    hashed = PasswordHasher().hash(password)
    line = f"{user}:{hashed}" + (f":{client_ids}" if client_ids else "")
    _replace_lines(path, [*_other_lines(path, user), line])


def remove_password(path: Path, user: str) -> bool:
    """Remove a user from the file; say whether there was one."""
    kept = _other_lines(path, user)
    if not path.exists() or len(kept) == len(path.read_text().splitlines()):
        return False
    _replace_lines(path, kept)
    return True


def _other_lines(path: Path, user: str) -> list[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.partition(":")[0] != user]


def _replace_lines(path: Path, lines: Iterable[str]) -> None:
    """Put new content in place at once, readable by its owner alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w") as new:
        os.fchmod(descriptor, 0o600)
        new.writelines(f"{line}\n" for line in lines)
        new.flush()
        os.fsync(descriptor)
    Path(name).replace(path)


class Authenticator:
    """Finds out who clients are, and which client identifiers are theirs."""

    def __init__(
        self,
        *,
        passwords: PasswordFile | None,
        relay: bool,
        anonymous: bool,
        checks: int,
        tokens: TokenVerifier | None = None,
        certificates: bool = False,
        any_client_id: bool = False,
        waiting: int = 1000,
        waiting_per_address: int = 500,
        pass_key: bytes | None = None,
    ) -> None:
        self.relay = relay
        self._pass_key = pass_key
        self._named_elsewhere = relay or certificates or tokens is not None
        self._passwords = passwords
        self.tokens = tokens
        self._anonymous = anonymous
        self.any_client_id = any_client_id
        self._threads = (
            ThreadPoolExecutor(checks, "penstock-passwords", _lower_priority) if passwords else None
        )
        # A broker that checks passwords does so beside us, so more of them can be under way.
        slots = checks * _RELAYED_PER_CHECK if relay else checks
        self.logins = LoginQueue(slots, waiting, waiting_per_address)

    async def identify(
        self, connect: Connect, certificate: dict[str, Any] | None, address: str
    ) -> Identity:
        """Return who a client is, or raise `RefusedError`."""
        if connect.properties.authentication_method is not None:
            raise RefusedError(
                "authentication methods are not supported",
                ReasonCode.BAD_AUTHENTICATION_METHOD,
                "method",
            )
        if certificate:
            return Identity(check_name(common_name(certificate)))
        if self.tokens is not None and _looks_like_token(connect.password):
            return await self._identify_by_token(self.tokens, connect)
        if self._pass_key is not None and looks_like_pass(connect.password):
            return self._identify_by_pass(self._pass_key, connect)
        if connect.username is None:
            if not self._anonymous:
                raise RefusedError("no user name", ReasonCode.NOT_AUTHORIZED, "anonymous")
            return Identity(ANONYMOUS)
        name = check_name(connect.username)
        if self.relay:
            return Identity(name)
        if not await self.check_password(name, connect.password or b"", address):
            raise wrong_password()
        user = self._passwords.user(name) if self._passwords is not None else None
        return Identity(name, user.hash if user is not None else "")

    def _identify_by_pass(self, key: bytes, connect: Connect) -> Identity:
        name = check_name(connect.username or "")
        until = check_pass(key, name, connect.password or b"")
        if until is None:
            raise wrong_password()
        return Identity(name, valid_until=until)

    async def _identify_by_token(self, tokens: TokenVerifier, connect: Connect) -> Identity:
        proof = await tokens.verify(connect.password or b"")
        if proof is None or connect.username not in {None, "", proof.user}:
            raise wrong_password()
        return Identity(check_name(proof.user), valid_until=proof.valid_until)

    def owns(self, principal: str, client_id: str, named: Names = frozenset) -> bool:
        """Say whether a principal may use a client identifier; `named` are in definitions."""
        if self.is_own(principal, client_id):
            return True
        if principal == ANONYMOUS:
            # Where users are known elsewhere, any identifier could be one of theirs.
            claimed = self._passwords is not None and self._passwords.claims(client_id)
            return not self._named_elsewhere and not claimed
        patterns = self._passwords.patterns(principal) if self._passwords else ()
        if any(_matches(pattern, client_id) for pattern in patterns):
            return True
        claimed = self._passwords is not None and self._passwords.claims(client_id)
        return self.any_client_id and not claimed and client_id not in named()

    # --- who is here already ---

    def refresh(self) -> object:
        """Read the file of passwords if it has changed; return what tells its states apart."""
        if self._passwords is None:
            return None
        self._passwords.load()
        return self._passwords.mark

    def take_removed(self) -> set[str]:
        """Return the users that were removed from the file since this was last asked."""
        return self._passwords.take_removed() if self._passwords is not None else set()

    def lacks(self, name: str) -> bool:
        """Say whether a user is not in the file of passwords as it was read last."""
        return self._passwords is not None and self._passwords.user(name) is None

    def vouches(self, session: Session, named: Names = frozenset) -> bool:
        """Say whether a client could log in now as it did, under its client identifier."""
        given = session.credential
        user = self._passwords.user(session.principal) if self._passwords else None
        if given is not None and (user is None or user.hash != given):
            return False
        return self.owns(session.principal, session.client_id, named)

    def knows(self, session: Session) -> bool:
        """Say whether the user of a client still exists, as far as anybody here can say."""
        if session.credential is None or self._passwords is None:
            return True
        return self._passwords.user(session.principal) is not None

    @staticmethod
    def is_own(principal: str, client_id: str) -> bool:
        """Say whether a client identifier can be nobody else's, whatever the patterns."""
        return client_id == principal or client_id.startswith(principal + ":")

    def close(self) -> None:
        """End the threads."""
        self.logins.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def check_password(self, name: str, password: bytes, address: str) -> bool:
        """Say whether a password is right, in its turn; `RefusedError` where there is no turn."""
        file, threads = self._passwords, self._threads
        if file is None or threads is None:
            return False
        file.load()
        if file.remembers(name, password):
            self.logins.forgive(address, name)
            return True
        user = file.user(name) if len(password) <= PASSWORD_LIMIT else None
        try:
            async with self.logins.turn(address, name, real=user is not None) as turn:
                if not turn.slot:
                    return False
                loop = asyncio.get_running_loop()
                right = file.remembers(name, password) or await loop.run_in_executor(
                    threads, file.verify, user, password
                )
                # The file may have changed meanwhile: what holds now is what counts.
                file.load()
                turn.right = right and file.user(name) == user
        except BusyError:
            raise too_busy() from None
        if turn.right:
            file.remember(name, password)
        return bool(turn.right)


def too_busy() -> RefusedError:
    """Make the refusal for a log-in that has to wait too long."""
    return RefusedError("too many log-ins at the moment", ReasonCode.SERVER_BUSY, "busy")


def _lower_priority() -> None:
    """Let the loop go before this thread, and before those that argon2 starts from it."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)


def common_name(certificate: dict[str, Any]) -> str:
    """Return the common name of a certificate that TLS has verified."""
    for group in certificate.get("subject", ()):
        for name, value in group:
            if name == "commonName":
                return str(value)
    raise RefusedError(
        "the client certificate has no common name", ReasonCode.NOT_AUTHORIZED, "certificate"
    )
