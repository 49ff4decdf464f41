"""Credentials that travel with messages: by whose say one was published, and when.

    publisher's gateway: key, nonce, time, capability ──signed, with the message──▶ broker
    another domain's:    signature ──▶ chain ──▶ does it let them publish this? ──▶ nothing twice

Rules that hold here:
- A gateway draws 16 random bytes when it starts and counts its messages from zero: both together
  are the nonce, and come once, whatever restarts and however many gateways a domain has.
- The signature is over topic, payload and properties as they cross the broker, over time, nonce,
  capability, and whether the broker is to keep the message: nothing fits another message.
- Within one domain a MAC under a key that follows from the domain's does the same for less.
- Who holds a capability by a key of its own proves to have the key (`Possession`): for gateways of
  one domain, one user and client, at one time. The proof counts for a day, and travels along:
  without it a domain would publish in the name of any key.
- What is read back is written in one way only, so that no character of it can be flipped.
- A connection gets each message once (`ReplayGuard`), and none from before it was there.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.model.grants import PUBLISH
from penstock.trust import keys
from penstock.trust.capabilities import Capability, Revocations
from penstock.trust.keys import DomainKey, TrustError

NONCE_BYTES: Final = 16
SEEN_LIMIT: Final = 4_096
"""Messages of one connection that are remembered; what is older than those is refused."""
POSSESSED: Final = 86_400_000
"""So long a proof of possession counts, in milliseconds."""
SKEW: Final = 300_000
"""How far a gateway's clock may be behind that of its client, as others see it, in milliseconds."""
FRESH: Final = 600_000
"""So long a message may be on its way to a client that is connected, in milliseconds."""
_PURPOSE: Final = b"penstock message credential v1"
_HOME: Final = b"penstock messages of one domain v1"
_CLIENTS: Final = b"penstock client identifiers v1"
_POSSESSION: Final = b"penstock proof of possession v1"
_SIGNED: Final = 128
_NUMBER: Final = r"(0|[1-9][0-9]{0,15})"
_PROOF: Final = re.compile(
    rf"{_NUMBER}\.([0-9a-f]{{32}})\.([0-9a-f]{{128}})\.([A-Za-z0-9_-]{{0,1366}})", re.ASCII
)
_TEXT: Final = re.compile(
    rf"1\.([0-9a-f]{{64}})\.([0-9a-f]{{32}})\.{_NUMBER}\.{_NUMBER}\.([01])"
    r"\.([0-9a-f]{64}|[0-9a-f]{128})\.([A-Za-z0-9_:.~-]{0,18432})",
    re.ASCII,
)


class Credential(NamedTuple):
    """What a gateway says of a message that it publishes."""

    key: str
    """The domain of the gateway."""
    gateway: str
    """Tells the runs of gateways apart: 32 hexadecimal digits, drawn at the start."""
    number: int
    """Counts the messages of the gateway."""
    published: int
    """Milliseconds since 1970."""
    retain: bool
    """Whether the broker is to keep it."""
    token: str
    """The capability that lets its publisher publish, with a proof where its holder is a key; empty
    where the domain owns the type."""
    proof: str = ""
    """The signature, or the MAC."""

    @property
    def is_signed(self) -> bool:
        """Whether other domains can verify it."""
        return len(self.proof) == _SIGNED

    @property
    def nonce(self) -> tuple[str, int]:
        """What comes once."""
        return self.gateway, self.number

    def __str__(self) -> str:
        retain = int(self.retain)
        return (
            f"1.{self.key}.{self.gateway}.{self.number}.{self.published}.{retain}"
            f".{self.proof}.{self.token}"
        )

    def statement(self, topic: str, payload: bytes, bound: bytes) -> Mapping[str, Any]:
        """Return what the proof is over; `bound` are the properties of the message."""
        named = topic.encode()
        sizes = len(named).to_bytes(4, "big") + len(bound).to_bytes(4, "big")
        return {
            "key": self.key,
            "gateway": self.gateway,
            "number": self.number,
            "published": self.published,
            "retain": int(self.retain),
            "capability": sha256(self.token.encode()).hexdigest(),
            "message": sha256(b"".join((sizes, named, bound, payload))).hexdigest(),
        }


def read_credential(text: str) -> Credential:
    """Read a credential; nothing in it is believed yet."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise TrustError("the credential of the message is not in shape")
    key, gateway, number, published, retain, proof, token = found.groups()
    return Credential(key, gateway, int(number), int(published), retain == "1", token, proof)


class Voucher:
    """Gives the messages of one gateway their credentials. Used by one thread."""

    def __init__(self, key: DomainKey, random_bytes: Callable[[int], bytes]) -> None:
        self._key = key
        self._home = HKDF(SHA256(), 32, salt=None, info=_HOME).derive(key.seed())
        self._gateway = random_bytes(NONCE_BYTES).hex()
        self._number = 0

    @property
    def key(self) -> str:
        """The key of the domain."""
        return self._key.key

    def sign(
        self, topic: str, payload: bytes, bound: bytes, *, retain: bool, now: int, token: str
    ) -> Credential:
        """Vouch for a message to other domains."""
        made = self._begin(now, token, retain=retain)
        return made._replace(proof=self._key.sign(_PURPOSE, made.statement(topic, payload, bound)))

    def mark(
        self, topic: str, payload: bytes, bound: bytes, *, retain: bool, now: int
    ) -> Credential:
        """Vouch for a message to the gateways of this domain."""
        made = self._begin(now, "", retain=retain)
        return made._replace(proof=self._mac(made.statement(topic, payload, bound)))

    def is_ours(self, said: Credential, topic: str, payload: bytes, bound: bytes) -> bool:
        """Tell whether a gateway of this domain marked a message."""
        if said.key != self.key or said.is_signed:
            return False
        return hmac.compare_digest(said.proof, self._mac(said.statement(topic, payload, bound)))

    def _begin(self, now: int, token: str, *, retain: bool) -> Credential:
        self._number += 1
        return Credential(self.key, self._gateway, self._number, now, retain, token)

    def _mac(self, statement: Mapping[str, Any]) -> str:
        return hmac.digest(self._home, keys.canonical(statement), "sha256").hex()


def is_signed_by(said: Credential, topic: str, payload: bytes, bound: bytes) -> bool:
    """Tell whether the domain that a credential names signed this message."""
    return said.is_signed and keys.verify(
        said.key, _PURPOSE, said.statement(topic, payload, bound), said.proof
    )


def derive_client_prefix(key: DomainKey) -> str:
    """Return what the client identifiers of a domain begin with at the broker.

    Who knows the identifier of a client can end its connection there. Nobody else can tell these.
    """
    return HKDF(SHA256(), 12, salt=None, info=_CLIENTS).derive(key.seed()).hex() + "/"


class Possession(NamedTuple):
    """Proof that somebody has the key that a capability names: made for one log-in."""

    time: int
    """Milliseconds since 1970."""
    nonce: str
    """32 hexadecimal digits, never used again."""
    client: str
    """The client identifier."""
    signature: str = ""

    def statement(self, domain: str, user: str, capability: str) -> Mapping[str, Any]:
        """Return what the signature is over: for whose gateways, who, and which capability."""
        return {
            "domain": domain,
            "user": user,
            "client": self.client,
            "capability": sha256(capability.encode()).hexdigest(),
            "time": self.time,
            "nonce": self.nonce,
        }

    def __str__(self) -> str:
        client = base64.urlsafe_b64encode(self.client.encode()).decode().rstrip("=")
        return f"{self.time}.{self.nonce}.{self.signature}.{client}"

    def is_proof(self, held: Capability, domain: str, user: str) -> bool:
        """Tell whether the holder of a capability made it, for a user of a domain."""
        key = held.links[-1].holder_key
        return key is not None and keys.verify(
            key, _POSSESSION, self.statement(domain, user, held.text), self.signature
        )


def read_possession(text: str, client: str | None = None) -> Possession:
    """Read a proof as a client gives it, or as it travels; nothing in it is believed yet."""
    found = _PROOF.fullmatch(text)
    if found is not None:
        time, nonce, signature, named = found.groups()
        try:
            named = base64.urlsafe_b64decode(named + "=" * (-len(named) % 4)).decode()
        except ValueError:
            named = None
        if named is not None:
            made = Possession(int(time), nonce, named, signature)
            if str(made) == text and client in {None, named}:
                return made
    raise TrustError(
        "the proof of possession is not in shape, or for another client",
        fix="make one for each connection, for its client identifier",
    )


def split_token(token: str) -> tuple[str, Possession | None]:
    """Return a capability as it travels, and the proof of its holder where there is one."""
    text, mark, proof = token.partition("~")
    return text, read_possession(proof) if mark else None


class TypeName(NamedTuple):
    """What a type is called, whatever its version."""

    issuer: str
    label: str


def object_to_publisher(
    held: Capability, said: Credential, user: str | None, type_: TypeName, now: float,
    revocations: Revocations,
) -> str | None:  # fmt: skip
    """Say why a capability lets nobody publish under a credential; None where it does."""
    if held.owner != type_.issuer:
        return "the capability is not of the owner of the type"
    why = _object_to_holder(held, said, user)
    if why is not None:
        return why
    if not any(it.allows("type", type_.label, PUBLISH) for it in held.grants):
        return "the capability does not let them publish events of this type"
    return held.object_to(now, revocations)


def _object_to_holder(held: Capability, said: Credential, user: str | None) -> str | None:
    """Say why a publisher is not who holds a capability; None where it is."""
    if user is None:
        return "nobody holds a capability who is nobody"
    possession = split_token(said.token)[1]
    if possession is None:
        if held.issuer != said.key:
            return "the capability was not given by the domain that signed the message"
        return None if held.holder == f"user:{user}" else "the capability is held by somebody else"
    if not possession.is_proof(held, said.key, user):
        return "its publisher did not prove to have the key of the capability"
    if not possession.time - SKEW <= said.published < possession.time + POSSESSED:
        return "its publisher proved too long ago to have the key of the capability"
    return None


def may_publish(
    held: Capability, type_: TypeName, given: Mapping[str, Any], *, whole: bool
) -> bool:
    """Tell whether some grant lets a message be published that has these attributes.

    Where it is not known as a `whole`, what is missing may have the fixed value.
    """
    return any(
        it.allows("type", type_.label, PUBLISH)
        and all(map(it.sees, given))
        and it.admits(given if whole else {**dict(it.values), **given})
        for it in held.grants
    )


class ReplayGuard:
    """What one client was given: nothing comes twice, and nothing from before it was there.

    So many messages are remembered. Of those that were forgotten the latest time is kept: what
    is not later is refused, for nobody can tell any more.
    """

    __slots__ = ("_begun", "_connection", "_floor", "_order", "_seen")

    def __init__(self) -> None:
        self._floor = 0
        self._begun = 0
        self._connection = 0
        self._seen: dict[tuple[Any, ...], int] = {}
        self._order: list[tuple[int, tuple[Any, ...]]] = []

    @property
    def floor(self) -> int:
        """What was published before is refused."""
        return self._floor

    def begin(self, begun: int, floor: int) -> None:
        """Take note of a new connection, and from when on messages may be for it."""
        self._connection += 1
        self._begun = begun
        self._floor = max(self._floor, floor)

    def object_to(
        self, nonce: tuple[Any, ...], published: int, now: int, *, again: bool = False
    ) -> str | None:
        """Say why a message is not delivered; `again`: the broker says that it was sent before."""
        seen = self._seen.get(nonce)
        if seen is not None:
            # Sent again is what an earlier connection did not acknowledge (MQTT5 4.4).
            return None if again and seen != self._connection else "it was delivered before"
        if published < self._floor:
            return "it is from before the client was there, or too old to tell"
        if published >= self._begun and now - published > FRESH:
            return "it was too long on its way"
        return None

    def note(self, nonce: tuple[Any, ...], published: int) -> int:
        """Take note that a message is delivered; return how many more are remembered."""
        known = nonce in self._seen
        self._seen[nonce] = self._connection
        if known:
            return 0
        heappush(self._order, (published, nonce))
        if len(self._order) <= SEEN_LIMIT:
            return 1
        oldest, forgotten = heappop(self._order)
        del self._seen[forgotten]
        self._floor = max(self._floor, oldest + 1)
        return 0

    def compact(self) -> int:
        """Remember the latest time alone; return how many messages are forgotten."""
        forgotten = len(self._order)
        if forgotten:
            self._floor = max(self._floor, max(self._order)[0] + 1)
        self._seen.clear()
        self._order.clear()
        return forgotten
