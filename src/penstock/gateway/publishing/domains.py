"""The gateways of other domains before the same broker: who is there, and what they have signed.

    announcement, retained ──▶ all others: believed? ──▶ members ──▶ their types and revocations
                                                                        └──▶ registered here

Rules that hold here:
- This domain's capability to connect is one of its definitions. Without one, and where it is not
  the coordinator, nothing is announced: others would not believe it.
- What a gateway says of itself is a retained message that ends with its connection. It is said
  again each `refresh`, and at once where a gateway is new, but not more often than once a second.
- Keys of sealed streams go the same way (`key_exchange`).
- Members exchange what proves itself: event types of their own, where they may install them, and
  their own list of revocations. Whoever is no member is not heard.
- What is registered here is checked as `apply` checks. Nothing takes the place of another
  definition but a newer list of revocations, and so many types of one domain are taken at most.
- The topics are the same in all domains, whatever prefix their commands have. Whoever can write
  there adds noise and nothing else: what is said proves itself. Clients of a gateway whose commands
  begin as usual neither read nor write there.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from penstock.definitions.trust_checks import collect_revocations
from penstock.gateway.broker import BrokerAddress
from penstock.gateway.publishing.key_exchange import KeyExchange, Outgoing
from penstock.gateway.publishing.own_connection import PING, OwnConnection
from penstock.json_text import read_object
from penstock.model.document import Document, Key
from penstock.model.kinds import Capability, EventType, RevocationList
from penstock.mqtt import (
    V5,
    MqttError,
    Packet,
    Pingresp,
    Puback,
    Publish,
    RequestedSubscription,
    Suback,
    Subscribe,
    Will,
)
from penstock.mqtt.codes import FAILURE
from penstock.store.definitions.documents import Snapshot
from penstock.telemetry import get_logger
from penstock.trust import capabilities
from penstock.trust.capabilities import Revocations
from penstock.trust.keys import DomainKey, TrustError, fingerprint
from penstock.trust.membership import (
    SIZE_LIMIT,
    Members,
    object_to_connection,
    write_document,
)

TOPICS: Final = "!penstock/"
TYPE_LIMIT: Final = 1_000
"""Types of one domain that are taken from the broker."""
WAITING_LIMIT: Final = 1_000
"""Documents of gateways that are no members yet, or not any more."""
DOCUMENT_LIMIT: Final = 1 << 20
SOONEST: Final = 1.0
"""How many seconds lie between two announcements at least."""
SILENCES: Final = 3
"""Who was silent for so many refreshes is no member any more."""
_KINDS: Final = frozenset({EventType.kind, RevocationList.kind})
_log = get_logger("gateway")

Register = Callable[[Sequence[Document], str], None]
"""Registers documents of a domain, in its own time."""


class NetworkSettings(NamedTuple):
    """The network that this domain belongs to."""

    network: str
    coordinator: str
    key: DomainKey
    skew: float
    refresh: float


class DomainLink(OwnConnection):
    """What this gateway and those of other domains tell each other through the broker."""

    purpose = "domain"

    def __init__(
        self,
        broker: BrokerAddress,
        settings: NetworkSettings,
        *,
        definitions: Callable[[], Snapshot | None],
        register: Register,
        keys: KeyExchange | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(broker)
        self.name = secrets.token_hex(8)
        self._settings = settings
        self._key = settings.key
        self._members = Members(
            settings.network,
            settings.coordinator,
            f"{self._key.key}/{self.name}",
            skew=int(settings.skew * 1000),
            patience=int(settings.refresh * SILENCES * 1000),
        )
        self._presence = f"{TOPICS}domain/{settings.network}/"
        self._documents = f"{TOPICS}signed/{settings.network}/"
        self._offers = f"{TOPICS}keys/{settings.network}/"
        self._wants = f"{TOPICS}wants/{settings.network}/"
        self._keys = keys
        self._definitions = definitions
        self._register = register
        self._clock = clock
        self._held: tuple[Snapshot, Revocations] | None = None
        self._told: Snapshot | None = None
        self._waiting: dict[str, tuple[str, Document]] = {}
        self._sent: set[str] = set()
        self._doubted: set[str] = set()
        """The gateways of which it was told that they are not believed: each once."""
        self._joined: frozenset[str] = frozenset()
        self._due = 0.0
        self._pings = 0

    @property
    def members(self) -> frozenset[str]:
        """The keys of the other domains that are members now."""
        own = {self._key.key}
        return self._members.domains(self._now(), self._revocations()) - own

    # --- the connection ---

    def will(self) -> Will:
        """Let the broker clear what this gateway says of itself."""
        return Will(self._own_topic, retain=True)

    @property
    def _own_topic(self) -> str:
        return f"{self._presence}{self._key.key}/{self.name}"

    def begin(self) -> None:
        """Listen to the others."""
        self._pings = 0
        self._subscribe(f"{self._presence}+/+", f"{self._documents}+/+")
        if self._keys is not None:
            self._subscribe(f"{self._offers}+/+", f"{self._wants}{self._key.key}/+")

    def _subscribe(self, *filters: str) -> None:
        wanted = tuple(RequestedSubscription(it, 0) for it in filters)
        self.send(Subscribe(1, wanted).encode(V5))

    def tell(self, messages: Iterable[Outgoing]) -> None:
        """Send what there is for key groups; what is lost on the way is sent again."""
        for it in messages if self.open else ():
            topic = f"{self._offers if it.retain else self._wants}{it.owner}/{it.place}"
            self.send(Publish.of(topic, it.payload, retain=it.retain).encode(V5))

    def lose(self) -> None:
        """Begin anew: what was sent may not have been kept."""
        self._sent.clear()
        if self._keys is not None:
            self._keys.forget_sent()

    def ping(self) -> bool:
        """Send a PINGREQ unless one is under way; say whether one is."""
        if self._pings:
            return True
        self._pings += 1
        self.send(PING)
        return False

    def take(self, packet: Packet) -> None:
        """Deal with a packet of the broker."""
        match packet:
            case Publish():
                self._hear(packet.topic, packet.payload)
            case Suback():
                if max(packet.reasons) >= FAILURE:
                    _log.error("the broker does not let domains tell each other who is there")
                self._announce()
            case Pingresp():
                self._pings -= 1
            case Puback():
                pass
            case _:
                raise MqttError(f"{packet.packet_type.name} is not expected here")

    def tick(self, seconds: int) -> None:
        """Keep the connection alive; announce, and look who is there, when it is time."""
        super().tick(seconds)
        snapshot = self._definitions()
        if snapshot is not self._told:
            # Others are told of revocations at once.
            self._told, self._due = snapshot, 0.0
            if self._keys is not None and self.open:
                # What was sent to groups of types that are known only now.
                self._subscribe(f"{self._offers}+/+")
        if self.open and self.loop.time() >= self._due:
            self._announce()
        self._look()

    def leave(self) -> None:
        """Take the sign of this gateway down, and leave in order."""
        if self.open:
            self.send(Publish.of(self._own_topic, retain=True).encode(V5))
            self.close()

    # --- saying ---

    def _announce(self) -> None:
        self._due = self.loop.time() + self._settings.refresh
        capability = self._find_capability()
        if capability is None:
            return
        said = self._members.announce(
            self._key,
            self.name,
            capability,
            self._now(),
            secrets.token_hex(16),
            self._revocations(),
        )
        self.send(Publish.of(self._own_topic, said, retain=True).encode(V5))
        self._publish_documents()

    def _find_capability(self) -> str | None:
        """Return what lets this domain connect now; None where nothing does."""
        settings, own = self._settings, self._key.key
        if own == settings.coordinator:
            return ""
        for it in self._of_kind(Capability.kind):
            try:
                held = capabilities.read(str(it.body.get("token", "")))
            except TrustError:
                continue
            reason = object_to_connection(held, own, settings.network, settings.coordinator)
            if reason is None and held.object_to(self._clock(), self._revocations()) is None:
                return held.text
        return None

    def _publish_documents(self) -> None:
        own = self._key.key
        for it in (*self._of_kind(RevocationList.kind), *self._of_kind(EventType.kind)):
            if own not in {it.name, it.body.get("issuer")}:
                continue
            payload = write_document(it.kind, it.name, it.body)
            number = sha256(payload).hexdigest()[:32]
            if it.kind == RevocationList.kind:
                number = it.kind  # the newest one takes the place of those before it
            if (mark := f"{number}{sha256(payload).hexdigest()}") not in self._sent:
                self._sent.add(mark)
                topic = f"{self._documents}{own}/{number}"
                self.send(Publish.of(topic, payload, retain=True).encode(V5))

    # --- hearing ---

    def _hear(self, topic: str, payload: bytes) -> None:
        if self._keys is not None and topic.startswith((self._offers, self._wants)):
            self._hear_of_keys(self._keys, topic, payload)
            return
        if topic.startswith(self._documents):
            self._keep(topic.removeprefix(self._documents), payload)
        elif topic != self._own_topic:
            self._meet(topic.removeprefix(self._presence), payload)
        self._look()

    def _hear_of_keys(self, keys: KeyExchange, topic: str, payload: bytes) -> None:
        whose, _, place = topic.rpartition("/")
        if topic.startswith(self._offers):
            keys.hear_offer(whose.removeprefix(self._offers), place, payload)
        elif place in self.members:
            keys.hear_request(place, payload)

    def _meet(self, name: str, payload: bytes) -> None:
        if not payload:
            self._members.leave(name)
            return
        before = self._members.current(self._now(), self._revocations())
        try:
            found = self._members.hear(payload, self._now(), self._revocations())
        except TrustError as error:
            if name not in self._doubted and len(self._doubted) < WAITING_LIMIT:
                self._doubted.add(name)
                _log.warning("a gateway of another domain is not believed", error=error)
            return
        self._doubted.discard(name)
        if found not in before:
            # It waits to hear that it is believed.
            self._due = min(self._due, self.loop.time() + SOONEST)

    def _keep(self, place: str, payload: bytes) -> None:
        key = place.partition("/")[0]
        if key == self._key.key or not payload:
            self._waiting.pop(place, None)
            return
        document = _read_document(payload, key)
        if document is None:
            _log.warning("what another domain offers is not a document of its own")
            return
        if len(self._waiting) >= WAITING_LIMIT:
            # Strangers keep nobody out who is a member.
            members = self.members
            self._waiting = {at: it for at, it in self._waiting.items() if it[0] in members}
        if len(self._waiting) < WAITING_LIMIT:
            self._waiting[place] = (key, document)

    def _look(self) -> None:
        """Note who came and went; register what members offer."""
        joined = self.members
        for key in sorted(joined - self._joined):
            _log.info("a domain has joined the network", key_id=fingerprint(key))
        for key in sorted(self._joined - joined):
            _log.warning("a domain has left the network", key_id=fingerprint(key))
        self._joined = joined
        for key in joined:
            offered = [(place, it) for place, (whose, it) in self._waiting.items() if whose == key]
            for place, _ in offered:
                del self._waiting[place]
            # What others build on comes first.
            offered.sort(key=lambda it: len(it[1].body.get("certificates", ())))
            found = [it for _, it in offered if self._is_welcome(key, it)]
            if found:
                self._register(found, key)

    def _is_welcome(self, key: str, document: Document) -> bool:
        snapshot = self._definitions()
        held: Mapping[Key, Document] = snapshot.documents if snapshot is not None else {}
        before = held.get(document.key)
        if document.kind == RevocationList.kind:
            return before is None or before.body.get("issued", 0) < document.body["issued"]
        if before is not None or not self._members.may_install(key):
            return False
        own = [it for it in self._of_kind(EventType.kind) if it.body.get("issuer") == key]
        names = ("label", "version")
        same = [it for it in own if all(it.body[name] == document.body[name] for name in names)]
        return not same and len(own) < TYPE_LIMIT

    # --- inside ---

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _of_kind(self, kind: str) -> list[Document]:
        snapshot = self._definitions()
        documents = snapshot.documents if snapshot is not None else {}
        return [it for key, it in documents.items() if key.kind == kind]

    def _revocations(self) -> Revocations:
        snapshot = self._definitions()
        if snapshot is None:
            return Revocations()
        if self._held is None or self._held[0] is not snapshot:
            self._held = (snapshot, collect_revocations(snapshot.documents))
        return self._held[1]


def _read_document(payload: bytes, key: str) -> Document | None:
    """Read what a domain offers; None where it is not its own, or not in shape."""
    found: Any = read_object(payload) if len(payload) <= DOCUMENT_LIMIT else None
    match found:
        case {"kind": str(kind), "name": str(name), "body": dict(body), **rest} if not rest:
            made = Document(kind, name, body)
        case _:
            return None
    if made.kind not in _KINDS:
        return None
    model = EventType if made.kind == EventType.kind else RevocationList
    try:
        model.model_validate({"name": made.name, **made.body})
    except ValueError:
        return None
    if made.kind == EventType.kind:
        return made if made.body["issuer"] == key and len(payload) <= SIZE_LIMIT else None
    return made if made.name == key else None
