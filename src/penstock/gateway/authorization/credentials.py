"""What crosses the broker between gateways: named by UUIDs, sealed, with a credential each.

    publication ──▶ names to UUIDs ──▶ seal ──▶ vouch ──▶ broker
    broker ──▶ verify ──▶ open ──▶ UUIDs to names ──▶ decided, delivered

Rules that hold here:
- On the topics of a stream that is `signed`, each message says which domain's gateway published
  it, when, and by which capability, and is signed over all of it. What does not verify is not
  delivered.
- Gateways check themselves what a capability of another domain lets its publisher do: the chain
  once while it is remembered, its times, its revocation and the attributes with each message.
- How many signatures are verified is configured. The first one of a gateway and capability always
  is, and where one was wrong, all of the next ones are: a forger silences nobody, and is not
  believed.
- In a network of domains all other topics are for one domain: its gateways mark what they publish.
  What has no mark of ours was published by nobody whom we know, whatever its stamp says. What
  claims one that is wrong is not delivered.
- A client gets each message once, and none from before it was there (`ReplayGuard`). What the
  broker keeps never gives way to what it kept before.
- Who is gone for a while keeps its guard here, so many clients at most.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.definitions.trust_checks import collect_revocations
from penstock.errors import PenstockError
from penstock.gateway.authorization.request_context import bind
from penstock.gateway.authorization.sealing import Sealing
from penstock.gateway.broker import (
    CLIENT,
    CREDENTIAL,
    EPOCH,
    FOR,
    MESSAGE_AIP,
    MESSAGE_PIP,
    PUBLISHER,
    RESERVED,
)
from penstock.json_text import read_object
from penstock.model.document import Document, Key
from penstock.model.kinds import EventType, RevocationList, Stream
from penstock.mqtt import PropertyLists, Publish, Sender, encode_user_properties
from penstock.mqtt.codes import PACKET_SIZE_LIMIT
from penstock.policy.access.principals import ANONYMOUS
from penstock.policy.access.requests import Message
from penstock.policy.capabilities import CapabilityBook, HeldCapability
from penstock.policy.event_types import EventTypes
from penstock.telemetry import metrics
from penstock.trust import capabilities
from penstock.trust.capabilities import Capability, Revocations
from penstock.trust.credentials import (
    Credential,
    ReplayGuard,
    TypeName,
    Voucher,
    is_signed_by,
    may_publish,
    object_to_publisher,
    read_credential,
    split_token,
)
from penstock.trust.keys import DomainKey, TrustError
from penstock.trust.sealed_events import SealingError

GUARD_LIMIT: Final = 100_000
"""Clients whose messages are remembered."""
SEEN_LIMIT: Final = 500_000
"""Messages that are remembered for all of them."""
_BELIEVED_LIMIT: Final = 4_096
_VERIFIED_LIMIT: Final = 4_096
_TOPIC_LIMIT: Final = 65_536
_STAMP: Final = frozenset({PUBLISHER, EPOCH, CLIENT, FOR, MESSAGE_AIP, MESSAGE_PIP})
_PURPOSES: Final = frozenset({MESSAGE_AIP, MESSAGE_PIP})
_RETAIN: Final = 1
_DUPLICATE: Final = 0x08
_PARTS: Final = 1 << 32
_VERIFIED = metrics.counter(
    "penstock_gateway_credentials",
    "Credentials of messages that came from the broker, by what became of them.",
    outcome=("verified", "known", "skipped", "refused"),
)


class CredentialError(PenstockError):
    """A message that cannot be vouched for, or whose credential is not believed."""


class ReplayError(CredentialError):
    """A message that came before, is from before its reader was there, or from the future."""


class TrustSource(NamedTuple):
    """What a gateway knows of its domain."""

    open_key: Callable[[], DomainKey]
    network: str | None = None
    """The network of domains, where messages of others may come."""
    skew: int = 60_000
    """How far clocks may be apart, in milliseconds."""
    verify_rate: float = 1.0
    """How many signatures are verified: 1: all, 0: those that must be."""


class _Signed(NamedTuple):
    """A signed stream on a topic."""

    type_: TypeName
    ids: Mapping[str, str]
    """The UUIDs of attributes, by friendly name."""
    sealed: str | None


class _Guarded:
    """A client's guard, and the connection that it knows of."""

    __slots__ = ("connection", "guard")

    def __init__(self) -> None:
        self.guard = ReplayGuard()
        self.connection: object = None


class MessageCredentials:
    """Prepares what goes to the broker, and checks what comes from it. Lives on the loop."""

    kinds = frozenset({Stream.kind, EventType.kind, RevocationList.kind})
    """What they follow."""

    def __init__(
        self,
        source: TrustSource | None,
        sealing: Sealing,
        clock: Callable[[], int],
        book: Callable[[], CapabilityBook],
        is_home: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Take the capabilities of users here, and which topics are for this domain alone."""
        self._is_home = is_home
        self._source = source
        self._sealing = sealing
        self._clock = clock
        self._book = book
        self._network = source is not None and source.network is not None
        self._skew = source.skew if source is not None else 0
        self._parts = int(_PARTS * (source.verify_rate if source is not None else 1.0))
        self._voucher: Voucher | None = None
        self._documents: dict[Key, Document] = {}
        self._types = EventTypes()
        self._by_stream: dict[str, _Signed] = {}
        self._revocations = Revocations()
        self._lists = PropertyLists(Sender.SERVER, reserved=RESERVED)
        self._guards: dict[tuple[str, str], _Guarded] = {}
        """By user and client identifier; who was delivered to last is last."""
        self._seen = 0
        self._forgotten = 0
        """The latest message of guards that are forgotten."""
        self._retained: dict[str, Credential] = {}
        """The newest of what the broker was to keep on a topic, as far as it was seen."""
        self.presented: dict[str, dict[str, HeldCapability]] = {}
        """What connected clients have shown, by user and client identifier."""
        self._shown_by: dict[str, str] = {}
        self._believed: dict[tuple[str, str, str], bool] = {}
        """Whether gateways were right with a capability when they were verified last."""
        self._verified: dict[bytes, None] = {}

    @property
    def in_use(self) -> bool:
        """Whether anything is sealed, signed or marked."""
        return self._network or bool(self._by_stream) or self._sealing.in_use

    def take(self, documents: Mapping[Key, Document], changed: Iterable[Key]) -> None:
        """Take over definitions of which these may differ from what was known."""
        keys = [key for key in changed if key.kind in self.kinds]
        if not keys:
            return
        for key in keys:
            self._documents.pop(key, None)
            if key in documents:
                self._documents[key] = documents[key]
        held = self._documents.items()
        types = {
            key.name: EventType.model_validate({"name": key.name, **it.body})
            for key, it in held
            if key.kind == EventType.kind
        }
        streams = [
            Stream.model_validate({"name": key.name, **it.body})
            for key, it in held
            if key.kind == Stream.kind and it.body.get("signed")
        ]
        self._types = EventTypes()
        self._types.put(streams)
        self._by_stream = {}
        for it in streams:
            type_ = types[it.event_type or ""]
            ids = {attribute.name: attribute.id for attribute in type_.attributes}
            self._by_stream[it.name] = _Signed(TypeName(type_.issuer, type_.label), ids, it.sealed)
        self._revocations = collect_revocations(self._documents)
        for user, shown in self.presented.items():
            for client, known in shown.items():
                shown[client] = self._hold(user, known.token)
        self._believed.clear()
        self._verified.clear()

    @property
    def domain(self) -> str:
        """The key of this domain."""
        return self._vouch().key

    def present(self, user: str | None, client: str, token: str) -> None:
        """Let a capability count that a client has shown, and no other of its; empty: none."""
        before = self._shown_by.pop(client, None)
        if before is not None:
            del self.presented[before][client]
            if not self.presented[before]:
                del self.presented[before]
        if token and user is not None:
            self._shown_by[client] = user
            self.presented.setdefault(user, {})[client] = self._hold(user, token)

    def object_to(self, held: Capability) -> str | None:
        """Say why a capability does not hold now, as far as is known here."""
        return held.object_to(self._clock() / 1000, self._revocations)

    def _hold(self, user: str, token: str) -> HeldCapability:
        found = _read_known(split_token(token)[0])
        return HeldCapability(
            "shown at log-in",
            user,
            found.owner,
            found.grants,
            found.valid_from,
            found.holds_until(self._revocations),
            found.revoked(self._revocations),
            token,
        )

    def concerns(self, topic: str) -> bool:
        """Say whether messages of a topic cross the broker otherwise than they were published."""
        return (
            self._network
            or self._sealing.concerns(topic)
            or (bool(self._by_stream) and bool(self._types.of(topic)))
        )

    # --- to the broker ---

    def prepare(
        self, topic: str, payload: bytes, listed: bytes, *, retain: bool = False
    ) -> tuple[bytes, bytes]:
        """Return payload and properties of a message as they go to the broker."""
        if not self.concerns(topic):
            return payload, listed
        signed = self._find(topic)
        made = payload if signed is None else _name_by_id(payload, signed, retain=retain)
        properties = self._lists[listed]
        bound = bind(properties)
        made = self._sealing.seal(topic, made, retain=retain, bound=bound)
        if signed is None and not self._network:
            return made, listed
        voucher, now = self._vouch(), self._clock()
        if signed is None:
            said = voucher.mark(topic, made, bound, retain=retain, now=now)
        else:
            token = self._choose(signed, topic, payload, dict(properties.reserved), voucher.key)
            said = voucher.sign(topic, made, bound, retain=retain, now=now, token=token)
        return made, listed + encode_user_properties(((CREDENTIAL, str(said)),))

    def prepare_packet(self, packet: Publish, listed: bytes) -> tuple[Publish, bytes]:
        """Return a message as it goes to the broker, and the properties it has there."""
        retain = bool(packet.first & _RETAIN)
        payload, told = self.prepare(packet.topic, packet.payload, listed, retain=retain)
        if len(payload) > PACKET_SIZE_LIMIT - len(packet.topic_field) - len(told):
            raise SealingError("it is too long when it is sealed")
        made = packet if payload is packet.payload else replace(packet, payload=payload)
        return made, told

    def _choose(
        self, signed: _Signed, topic: str, payload: bytes, stamp: Mapping[str, str], own: str
    ) -> str:
        """Return the capability that lets the publisher publish this; empty: it is our type."""
        type_ = signed.type_
        if type_.issuer == own:
            return ""
        user = stamp.get(PUBLISHER)
        given = self._read(topic, payload)
        now = self._clock() / 1000
        for held in self._book().of(None if user == ANONYMOUS else user):
            if held.owner == type_.issuer and held.object_to(now) is None:
                found = _read_known(split_token(held.token)[0])
                if may_publish(found, type_, given, whole=True):
                    return held.token
        raise CredentialError("no capability of its publisher is for what it says")

    # --- from the broker ---

    def check(self, packet: Publish, client: tuple[str, str], connection: Arrived) -> Publish:
        """Return a message as it was published; `PenstockError` says why it is not delivered."""
        topic, properties = packet.topic, packet.properties
        if not self.concerns(topic):
            return packet
        signed = self._find(topic)
        bound = bind(properties)
        said, held, kept = self._believe(packet, signed, bound)
        if said is not None:
            self._refuse_again(packet, said, client, connection)
        payload = self._sealing.open(topic, packet.payload, bound)
        if signed is not None:
            payload = _name_by_label(payload, signed)
        if signed is not None and held is not None:
            given = self._read(topic, payload)
            whole = signed.sealed != "attributes"
            if not may_publish(held, signed.type_, given, whole=whole):
                raise CredentialError("its publisher may not publish what it says")
        reserved = tuple(it for it in properties.reserved if it[0] in kept)
        if len(reserved) < len(properties.reserved):
            packet = replace(packet, properties=replace(properties, reserved=reserved))
        return packet if payload is packet.payload else replace(packet, payload=payload)

    def _believe(
        self, packet: Publish, signed: _Signed | None, bound: bytes
    ) -> tuple[Credential | None, Capability | None, frozenset[str]]:
        """Return the credential that is believed, its capability, and what counts of the stamp."""
        if signed is None and not self._network:
            return None, None, _STAMP
        said = self._read_credential(packet.properties.reserved)
        if signed is not None:
            if said is None:
                raise CredentialError("it has no credential, and its stream is signed")
            return said, self._verify(signed, said, packet, bound), _STAMP
        voucher = self._vouch()
        if said is not None and said.key == voucher.key:
            if not voucher.is_ours(said, packet.topic, packet.payload, bound):
                _VERIFIED["refused"].inc()
                raise CredentialError("it is marked as ours, and is not")
            return said, None, _STAMP
        if self._is_home(packet.topic):
            raise CredentialError("only gateways of this domain publish there")
        # Nobody here knows who published it, or for whom.
        return None, None, _PURPOSES

    def deliver(self, packet: Publish, client: tuple[str, str]) -> None:
        """Take note that a message was decided on, and is not to come again."""
        if not (self._network or self._by_stream):
            return
        found = self._guards.get(client)
        try:
            said = self._read_credential(packet.properties.reserved)
        except TrustError:
            return
        if found is None or said is None:
            return
        if packet.first & _RETAIN:
            return
        nonce = (*said.nonce, packet.properties.subscription_identifiers)
        self._seen += found.guard.note(nonce, said.published)
        for it in self._guards.values() if self._seen > SEEN_LIMIT else ():
            self._seen -= it.guard.compact()
            if self._seen <= SEEN_LIMIT:
                break

    def _verify(
        self, signed: _Signed, said: Credential, packet: Publish, bound: bytes
    ) -> Capability | None:
        """Return the capability of a message that is believed; None: its owner published it."""
        place = (said.key, said.gateway, sha256(said.token.encode()).hexdigest())
        try:
            held = self._read_chain(signed, said, packet)
            self._verify_signature(said, packet, bound, place)
        except TrustError:
            self._note(place, believed=False)
            _VERIFIED["refused"].inc()
            raise
        return held

    def _verify_signature(
        self, said: Credential, packet: Publish, bound: bytes, place: tuple[str, str, str]
    ) -> None:
        if self._believed.get(place) and secrets.randbelow(_PARTS) >= self._parts:
            _VERIFIED["skipped"].inc()
            return
        # The same message comes once for each reader.
        told = (str(said), packet.topic, bound)
        mark = sha256(repr(told).encode() + packet.payload).digest()
        if mark in self._verified:
            _VERIFIED["known"].inc()
            return
        if not is_signed_by(said, packet.topic, packet.payload, bound):
            raise TrustError("its domain did not sign it as it is")
        _make_room(self._verified, _VERIFIED_LIMIT)
        self._verified[mark] = None
        if self._believed.get(place) is None:
            self._note(place, believed=True)
        _VERIFIED["verified"].inc()

    def _note(self, place: tuple[str, str, str], *, believed: bool) -> None:
        """Remember whether a gateway was right; who is forgotten is verified first."""
        _make_room(self._believed, _BELIEVED_LIMIT)
        self._believed[place] = believed

    def _read_chain(self, signed: _Signed, said: Credential, packet: Publish) -> Capability | None:
        type_ = signed.type_
        if said.key == type_.issuer:
            return None
        if not said.token.startswith(f"{capabilities.MARK}:{type_.issuer}:"):
            raise TrustError("the capability is not of the owner of the type")
        held = _read_known(split_token(said.token)[0])
        user = dict(packet.properties.reserved).get(PUBLISHER)
        named = None if user == ANONYMOUS else user
        now = self._clock() / 1000
        why = object_to_publisher(held, said, named, type_, now, self._revocations)
        if why is not None:
            raise TrustError(why)
        return held

    def _read_credential(self, reserved: Iterable[tuple[str, str]]) -> Credential | None:
        found = [value for name, value in reserved if name == CREDENTIAL]
        if not found:
            return None
        if len(found) > 1:
            raise TrustError("it has several credentials")
        return read_credential(found[0])

    def _refuse_again(
        self, packet: Publish, said: Credential, client: tuple[str, str], connection: Arrived
    ) -> None:
        """Refuse what came before, is too old, or is from the future."""
        now = self._clock()
        if said.published > now + self._skew:
            raise ReplayError("it is from the future: clocks are too far apart")
        newest = not said.retain or self._is_newest(packet.topic, said)
        if packet.first & _RETAIN:
            if not said.retain:
                raise ReplayError("it was not published to be kept")
            if not newest:
                raise ReplayError("the broker kept something newer before")
            return
        guard = self._guard(client, connection)
        nonce = (*said.nonce, packet.properties.subscription_identifiers)
        again = bool(packet.first & _DUPLICATE)
        why = guard.object_to(nonce, said.published, now, again=again)
        if why is not None:
            _VERIFIED["refused"].inc()
            raise ReplayError(why)

    def _is_newest(self, topic: str, said: Credential) -> bool:
        """Say whether nothing newer is known to be kept; of one time, the gateway's count tells."""
        before = self._retained.pop(topic, None)
        _make_room(self._retained, _TOPIC_LIMIT)
        newest = before is None or said.published > before.published
        if before is not None and said.published == before.published:
            newest = said.gateway != before.gateway or said.number >= before.number
        self._retained[topic] = said._replace(token="") if newest or before is None else before
        return newest

    def _guard(self, client: tuple[str, str], connection: Arrived) -> ReplayGuard:
        found = self._guards.pop(client, None)
        if found is None:
            if len(self._guards) >= GUARD_LIMIT:
                oldest = self._guards.pop(next(iter(self._guards))).guard
                self._seen -= oldest.compact()
                self._forgotten = max(self._forgotten, oldest.floor)
            found = _Guarded()
        self._guards[client] = found
        if found.connection is not connection:
            found.connection = connection
            floor = connection.since if connection.since is not None else connection.begun
            found.guard.begin(connection.begun, max(floor - self._skew, self._forgotten))
        return found.guard

    # --- inside ---

    def _find(self, topic: str) -> _Signed | None:
        """Return how messages of a topic are signed; streams that differ sign nothing there."""
        if not self._by_stream:
            return None
        found = [self._by_stream[it.name] for it in self._types.of(topic)]
        if not found:
            return None
        if any(it != found[0] for it in found):
            raise CredentialError("two signed streams differ on its topic")
        return found[0]

    def _read(self, topic: str, payload: bytes) -> dict[str, Any]:
        """Return the attributes of a message that were given."""
        message = Message(topic, payload)
        content = message.content or {}
        given: dict[str, Any] = {}
        for it in self._types.of(topic):
            for attribute in it.attributes:
                name = attribute.name
                plain = attribute.path == (name,)  # as it was written, such as a time
                value = content.get(name) if plain else attribute.find(message)
                if value is not None:
                    given[name] = value
        return given

    def _vouch(self) -> Voucher:
        if self._voucher is None:
            if self._source is None:
                raise CredentialError("this gateway has no key of a domain")
            self._voucher = Voucher(self._source.open_key(), os.urandom)
        return self._voucher


class Arrived:
    """One connection of a client, as the guard tells it from others."""

    __slots__ = ("begun", "since")

    def __init__(self, begun: int) -> None:
        self.begun = begun
        self.since: int | None = None
        """From when on the broker may have kept messages for it; None: it keeps none."""


_read_known = lru_cache(maxsize=1024)(capabilities.read)


def _make_room(held: dict[Any, Any], most: int) -> None:
    while len(held) >= most:
        del held[next(iter(held))]


def _name_by_id(payload: bytes, signed: _Signed, *, retain: bool) -> bytes:
    """Return a payload with UUIDs in the place of names."""
    if signed.sealed == "attributes" or (retain and not payload):
        return payload
    content = read_object(payload)
    if content is None:
        raise CredentialError("the payload is not a JSON object")
    strange = [name for name in content if name not in signed.ids]
    if strange:
        raise CredentialError("it has an attribute that its event type does not have")
    return _write({signed.ids[name]: value for name, value in content.items()})


def _name_by_label(payload: bytes, signed: _Signed) -> bytes:
    """Return a payload with names in the place of UUIDs; what our version has not is left out."""
    if signed.sealed == "attributes" or not payload:
        return payload
    content = read_object(payload)
    if content is None or not all(map(_is_uuid, content)):
        raise CredentialError("its attributes are not named as gateways name them")
    names = {id_: name for name, id_ in signed.ids.items()}
    return _write({names[it]: value for it, value in content.items() if it in names})


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _write(content: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise CredentialError("it has a number that JSON cannot tell") from None
    return text.encode()
