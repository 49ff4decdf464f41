"""Capabilities: chains of grants as Biscuit tokens, each link narrower and signed by who held it.

    owner's key ──signs──▶ block 0: grants, holder M ──M signs──▶ block 1: grants, holder C ──▶ …

Rules that hold here:
- Block 0 is the authority block, signed by the owner. Each further block is a third-party block,
  signed with the key that the block before names as its holder; blocks that nobody signed, which
  every bearer of a Biscuit can append, are refused.
- A block says exactly what `_write_block` writes, and nothing else: no rule, no other fact. What
  the library prints of a block has to be that text, and what it encodes the very bytes that came.
- No link grants what the link before does not (`grants.narrow`). One that did would be refused as
  a whole: it is no mistake, somebody tried.
- A holder is a key, or a user of the domain whose key signed the link. A user passes nothing on.
- A chain holds while all of its links do: in their times, none revoked, and each that asks for it
  refreshed: a revocation list of its signer that is not older than the link allows.
- Who may revoke a link: its signer, and the signers before it. Nobody else's lists count.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from biscuit_auth import (
    Algorithm,
    Biscuit,
    BiscuitBlockError,
    BiscuitBuilder,
    BiscuitBuildError,
    BiscuitSerializationError,
    BiscuitValidationError,
    BlockBuilder,
    DataLogError,
    PrivateKey,
    PublicKey,
)

from penstock.errors import PenstockError, UsageError, quote
from penstock.model.grants import Grant, narrow, parse_grant
from penstock.trust.keys import KEY, SIGNATURE, DomainKey, TrustError, fingerprint, verify

MARK: Final = "penstock-capability-1"
SIZE_LIMIT: Final = 16_384
LINK_LIMIT: Final = 8
GRANT_LIMIT: Final = 32
REFRESH_LIMIT: Final = 366 * 86_400
_REVOCATION: Final = b"penstock revocation list v1"
_REVOKED_LIMIT: Final = 100_000
_ID: Final = re.compile(r"[0-9a-f]{128}", re.ASCII)
_USER: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@/-]{0,255})", re.ASCII)
_TEXT: Final = re.compile(rf"{MARK}:([0-9a-f]{{64}}):([A-Za-z0-9_-]+)", re.ASCII)
_BLOCK: Final = re.compile(
    r'holder\("(key|user)", "([^"\\]+)"\);\n'
    r"valid\(([0-9TZ:-]+), ([0-9TZ:-]+)\);\n"
    r"refresh\(([0-9]{1,9})\);\n"
    r'((?:grant\("[^"\\]+"\);\n)+)'
    r"check if time\(\$time\), \$time >= ([0-9TZ:-]+), \$time < ([0-9TZ:-]+);\n",
    re.ASCII,
)
_GRANT: Final = re.compile(r'grant\("([^"\\]+)"\);', re.ASCII)
_BROKEN: Final = (
    BiscuitBlockError,
    BiscuitBuildError,
    BiscuitSerializationError,
    BiscuitValidationError,
    DataLogError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Link:
    """One link of a chain: who grants what to whom, from when to when."""

    signer: str
    """The key that signed it."""
    holder: str
    """`key:…` or `user:NAME`."""
    grants: tuple[Grant, ...]
    valid_from: int
    """Seconds since 1970."""
    valid_until: int
    """Seconds since 1970, exclusive."""
    refresh: int
    """How many seconds it holds after its signer's last revocation list; 0: it needs none."""
    id: str = ""
    """What revokes it."""

    @property
    def holder_key(self) -> str | None:
        """The key of the holder, where it is one."""
        return self.holder.removeprefix("key:") if self.holder.startswith("key:") else None


@dataclass(frozen=True, slots=True)
class RevocationList:
    """Which links a key has revoked by a time; all others of its links are refreshed by it."""

    signer: str
    issued: int
    """Seconds since 1970; of two lists of one key the later counts."""
    revoked: frozenset[str]
    signature: str

    def statement(self) -> Mapping[str, Any]:
        """Return what the signature is over."""
        return {"signer": self.signer, "issued": self.issued, "revoked": sorted(self.revoked)}


class Revocations:
    """The newest revocation list of each key."""

    def __init__(self, lists: Iterable[RevocationList] = ()) -> None:
        self._by_key: dict[str, RevocationList] = {}
        for it in lists:
            self.take(it)

    def take(self, found: RevocationList) -> bool:
        """Take over a list; False where a newer one is known: an old list revives nothing."""
        held = self._by_key.get(found.signer)
        if held is not None and held.issued > found.issued:
            return False
        self._by_key[found.signer] = found
        return True

    def of(self, key: str) -> RevocationList | None:
        """Return the newest list of a key."""
        return self._by_key.get(key)


@dataclass(frozen=True, slots=True)
class Capability:
    """A chain whose signatures are right, and that nowhere grants more than was held."""

    text: str
    links: tuple[Link, ...]

    @property
    def owner(self) -> str:
        """The key whose resources it is about."""
        return self.links[0].signer

    @property
    def holder(self) -> str:
        """Who may use it: `key:…` or `user:NAME`."""
        return self.links[-1].holder

    @property
    def issuer(self) -> str:
        """The key that signed the last link: of whose domain a user is that holds it."""
        return self.links[-1].signer

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What it allows in the end."""
        return self.links[-1].grants

    @property
    def valid_from(self) -> int:
        """From when on all of its links hold, in seconds since 1970."""
        return max(it.valid_from for it in self.links)

    @property
    def valid_until(self) -> int:
        """When the first of its links ends, in seconds since 1970."""
        return min(it.valid_until for it in self.links)

    @property
    def id(self) -> str:
        """What names it in proofs: the SHA-256 of its text."""
        return sha256(self.text.encode()).hexdigest()

    def object_to(self, now: float, revocations: Revocations) -> str | None:
        """Say why it does not hold at a time; None where it does."""
        for at, link in enumerate(self.links):
            where = f"link {at + 1} of {len(self.links)}"
            if now < link.valid_from:
                return f"{where} holds only from {write_time(link.valid_from)}"
            if now >= link.valid_until:
                return f"{where} ended {write_time(link.valid_until)}"
            if link.refresh:
                last = revocations.of(link.signer)
                if last is None or now >= last.issued + link.refresh:
                    return f"{where} was not refreshed for {link.refresh} s"
        return self.revoked(revocations)

    def revoked(self, revocations: Revocations) -> str | None:
        """Say by whom a link of it was revoked, whatever the time; None: by nobody."""
        signers: list[str] = []
        for at, link in enumerate(self.links):
            signers.append(link.signer)
            for key in signers:
                held = revocations.of(key)
                if held is not None and link.id in held.revoked:
                    where = f"link {at + 1} of {len(self.links)}"
                    return f"{where} was revoked by {fingerprint(key)}"
        return None

    def holds_until(self, revocations: Revocations) -> int:
        """Return when it ends at the latest if nothing more is refreshed; 0: it never was."""
        ends = [self.valid_until]
        for link in self.links:
            last = revocations.of(link.signer)
            if link.refresh:
                ends.append(last.issued + link.refresh if last is not None else 0)
        return min(ends)


def write_time(seconds: int) -> str:
    """Return a time as capabilities write it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_time(text: str) -> int:
    """Return the seconds since 1970 of a time as capabilities write it."""
    found = int(datetime.fromisoformat(text).timestamp())
    if write_time(found) != text:
        raise ValueError(text)
    return found


# --- making ---


def issue(owner: DomainKey, link: Link) -> Capability:
    """Sign a capability for what is the owner's own."""
    source = _write_block(link)
    try:
        token = BiscuitBuilder(source).build(_private(owner))
    except _BROKEN as error:
        raise TrustError(f"the capability cannot be made: {error}") from None
    return read(_pack(owner.key, token))


def delegate(held: Capability, holder: DomainKey, link: Link) -> Capability:
    """Pass a part of a capability on, signed by who holds it."""
    last = held.links[-1]
    if last.holder_key != holder.key:
        raise TrustError(
            f"the capability is held by {_show_holder(last.holder)}, not by the key "
            f"{fingerprint(holder.key)}",
            fix="use the key of the holder; a user passes nothing on",
        )
    beyond = narrow(last.grants, link.grants)
    if beyond is not None:
        raise TrustError(
            f"{quote(str(beyond))} is more than the capability grants",
            fix="`penstock cert inspect` shows what it grants",
        )
    if len(held.links) >= LINK_LIMIT:
        raise TrustError(
            f"a chain has at most {LINK_LIMIT} links", fix="ask for one nearer the owner"
        )
    try:
        token = Biscuit.from_bytes(_unpack(held.text)[1], _public(held.owner))
        block = token.third_party_request().create_block(
            _private(holder), BlockBuilder(_write_block(link))
        )
        made = token.append_third_party(_public(holder.key), block)
    except _BROKEN as error:
        raise TrustError(f"the capability cannot be passed on: {error}") from None
    return read(_pack(held.owner, made))


def revoke(signer: DomainKey, ids: Iterable[str], issued: int) -> RevocationList:
    """Sign which links are revoked; all others are refreshed."""
    revoked = frozenset(ids)
    made = RevocationList(signer.key, issued, revoked, "")
    return read_revocations(
        {**made.statement(), "signature": signer.sign(_REVOCATION, made.statement())}
    )


def _write_block(link: Link) -> str:
    kind, _, name = link.holder.partition(":")
    known = KEY.fullmatch(name) if kind == "key" else _USER.fullmatch(name)
    if kind not in {"key", "user"} or not known:
        raise UsageError(
            f"{quote(link.holder)} cannot hold a capability", fix="write key:HEX or user:NAME"
        )
    if not 0 < len(link.grants) <= GRANT_LIMIT:
        raise UsageError(f"a link has 1 to {GRANT_LIMIT} grants, not {len(link.grants)}")
    if not 0 <= link.refresh <= REFRESH_LIMIT:
        raise UsageError(f"{link.refresh} s is not a time to refresh in", fix="at most 366 days")
    if link.valid_from >= link.valid_until:
        raise UsageError("the capability ends before it begins", fix="swap its times")
    start, end = write_time(link.valid_from), write_time(link.valid_until)
    grants = "".join(f'grant("{it}");\n' for it in link.grants)
    return (
        f'holder("{kind}", "{name}");\n'
        f"valid({start}, {end});\n"
        f"refresh({link.refresh});\n"
        f"{grants}"
        f"check if time($time), $time >= {start}, $time < {end};\n"
    )


# --- reading ---


def read(text: str) -> Capability:
    """Verify the signatures and the shape of a capability; its times are asked of `object_to`."""
    owner, raw = _unpack(text)
    try:
        token = Biscuit.from_bytes(raw, _public(owner))
        sources = [token.block_source(at) for at in range(token.block_count())]
        signers = [token.block_external_key(at) for at in range(token.block_count())]
        again = bytes(token.to_bytes())
    except _BROKEN:
        raise TrustError("the capability is not signed as it should be, or was changed") from None
    if again != raw or _pack_bytes(owner, raw) != text:
        raise TrustError("the capability is not encoded as it should be")
    if len(sources) > LINK_LIMIT:
        raise TrustError(f"the capability has {len(sources)} links; at most {LINK_LIMIT} are taken")
    links: list[Link] = []
    for at, (source, name) in enumerate(zip(sources, token.revocation_ids, strict=True)):
        expected = owner if at == 0 else links[-1].holder_key
        signer = owner if at == 0 and signers[0] is None else _key_of(signers[at])
        if expected is None or signer != expected:
            raise TrustError(f"link {at + 1} of the capability is not signed by who held it")
        link = _read_block(source, signer, name)
        beyond = narrow(links[-1].grants, link.grants) if links else None
        if beyond is not None:
            raise TrustError(f"link {at + 1} of the capability grants more than was held")
        links.append(link)
    return Capability(text, tuple(links))


def _read_block(source: str, signer: str, name: str) -> Link:
    found = _BLOCK.fullmatch(source)
    if found is None or not _ID.fullmatch(name):
        raise TrustError("a link of the capability says what is not understood")
    try:
        grants = tuple(parse_grant(it) for it in _GRANT.findall(found[6]))
        link = Link(
            signer,
            f"{found[1]}:{found[2]}",
            grants,
            read_time(found[3]),
            read_time(found[4]),
            int(found[5]),
            name,
        )
        written = _write_block(link)
    except (PenstockError, ValueError, OverflowError):
        written = None
    if written != source:
        raise TrustError("a link of the capability is not written as it should be")
    return link


def read_revocations(document: Any) -> RevocationList:
    """Read a revocation list, and verify its signature."""
    match document:
        case {
            "signer": str(signer),
            "issued": int(issued),
            "revoked": list(revoked),
            "signature": str(signature),
            **rest,
        } if not rest and not isinstance(issued, bool):
            known = all(isinstance(it, str) and _ID.fullmatch(it) for it in revoked)
            made = RevocationList(
                signer, issued, frozenset(revoked) if known else frozenset(), signature
            )
            if (
                known
                and len(revoked) <= _REVOKED_LIMIT
                and sorted(made.revoked) == revoked
                and SIGNATURE.fullmatch(signature)
                and verify(signer, _REVOCATION, made.statement(), signature)
            ):
                return made
    raise TrustError("the revocation list is not signed as it should be, or was changed")


def write_revocations(found: RevocationList) -> dict[str, Any]:
    """Return a revocation list as JSON data."""
    return {**found.statement(), "signature": found.signature}


def _show_holder(holder: str) -> str:
    return f"the key {fingerprint(holder[4:])}" if holder.startswith("key:") else quote(holder)


def describe(capability: Capability) -> Sequence[Mapping[str, Any]]:
    """Return the links as data, the owner's first."""
    return [
        {
            "signer": it.signer,
            "holder": it.holder,
            "grants": [str(grant) for grant in it.grants],
            "valid_from": write_time(it.valid_from),
            "valid_until": write_time(it.valid_until),
            "refresh": it.refresh,
            "id": it.id,
        }
        for it in capability.links
    ]


# --- the library ---


def _private(key: DomainKey) -> PrivateKey:
    # The stubs of the library are behind it.
    return PrivateKey.from_bytes(key.seed(), Algorithm.Ed25519)  # type: ignore[call-arg, attr-defined]


def _public(key: str) -> PublicKey:
    return PublicKey.from_bytes(bytes.fromhex(key), Algorithm.Ed25519)  # type: ignore[call-arg, attr-defined]


def _key_of(shown: Any) -> str:
    return "" if shown is None else str(shown).removeprefix("ed25519/")


def _pack(owner: str, token: Biscuit) -> str:
    return _pack_bytes(owner, bytes(token.to_bytes()))


def _pack_bytes(owner: str, raw: bytes) -> str:
    return f"{MARK}:{owner}:{base64.urlsafe_b64encode(raw).decode().rstrip('=')}"


def _unpack(text: str) -> tuple[str, bytes]:
    found = _TEXT.fullmatch(text) if len(text) <= SIZE_LIMIT else None
    if found is None:
        raise TrustError(
            f"{quote(text, 40)} is not a capability", fix="give the text that `penstock cert` wrote"
        )
    try:
        padded = found[2] + "=" * (-len(found[2]) % 4)
        return found[1], base64.urlsafe_b64decode(padded)
    except (binascii.Error, ValueError):
        raise TrustError("the capability is not encoded as it should be") from None
