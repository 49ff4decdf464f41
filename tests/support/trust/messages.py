"""Gateways of several domains without sockets: what one publishes, and what another believes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.definitions.trust_checks import compile_capabilities
from penstock.errors import PenstockError
from penstock.gateway.authorization.credentials import (
    Arrived,
    MessageCredentials,
    TrustSource,
)
from penstock.gateway.authorization.sealing import Sealing
from penstock.gateway.broker import CREDENTIAL, RESERVED, stamp
from penstock.model.document import Document
from penstock.model.kinds import Capability as CapabilityDocument
from penstock.model.kinds import Stream
from penstock.mqtt import PropertyLists, Publish, Sender
from penstock.trust.capabilities import Capability, RevocationList
from penstock.trust.event_types import sign_type
from tests.support.trust.domains import NOW, attribute, domain

VERSION = "6e2b7f7a-0c0f-4b6e-9a55-6f1f8f0c3f10"
TYPE = sign_type(
    domain("pito"), "sighting/1", "sighting", VERSION,
    (attribute("numberplate"), attribute("location", optional=True)),
)  # fmt: skip
IDS = {it.name: it.id for it in TYPE.attributes}
TOPIC = "cameras/7/sighting"
CLIENT = ("reader", "reader")
LISTS = PropertyLists(Sender.SERVER, reserved=RESERVED)


class Crossing:
    """One gateway of a domain, with a clock of its own."""

    def __init__(self, name: str, *held: Capability, now: float = NOW, **options: Any) -> None:
        self.now = int(1000 * now)
        self.name = name
        self._options = options
        self._held = held
        self.restart()

    def restart(self) -> None:
        """Begin anew, as a process does."""
        options = dict(self._options)
        signed, sealed = options.pop("signed", True), options.pop("sealed", None)
        lists: tuple[RevocationList, ...] = options.pop("lists", ())
        fields = [it.model_dump(include={"name", "type", "optional"}) for it in TYPE.attributes]
        stream = {"name": "sightings", "event_type": TYPE.name, "from": ["cameras/+/sighting"]}
        body = {**stream, "fields": fields, "signed": signed, "sealed": sealed}
        definitions = [
            TYPE,
            Stream.model_validate(body),
            *(CapabilityDocument(name=f"c{at}", token=it.text) for at, it in enumerate(self._held)),
        ]
        key = domain(self.name)
        book = self.book = compile_capabilities({it.key: it for it in definitions}, key.key)
        self.sealing = Sealing(lambda: self.now)
        source = TrustSource(lambda: key, **options)
        self.credentials = MessageCredentials(source, self.sealing, lambda: self.now, lambda: book)
        self.documents = {
            it.key: Document(it.kind, it.name, it.model_dump(exclude={"name"}, by_alias=True))
            for it in (TYPE, Stream.model_validate(body))
        }
        for it in lists:
            self.add_list(it)
        self.sealing.take(self.documents, self.documents)
        self.credentials.take(self.documents, self.documents)
        self.connection = self.arrive()

    def add_list(self, found: RevocationList) -> None:
        body = {**found.statement(), "signature": found.signature}
        body.pop("signer")
        made = Document("revocation-list", found.signer, body)
        self.documents[made.key] = made
        self.credentials.take(self.documents, [made.key])

    def arrive(self, since: int | None = None) -> Arrived:
        """Return a new connection of a client."""
        made = Arrived(self.now)
        made.since = since
        return made

    def publish(
        self, payload: bytes, *, topic: str = TOPIC, user: str = "camera", retain: bool = False
    ) -> Publish:
        """Return a message as it crosses the broker."""
        made = Publish.of(topic, payload, qos=1, packet_id=1, retain=retain)
        packet, listed = self.credentials.prepare_packet(made, stamp(user, 1))
        return replace(packet, properties=LISTS.parse(listed))

    def read(
        self, packet: Publish, client: tuple[str, str] = CLIENT, connection: Arrived | None = None
    ) -> Publish:
        """Return a message as it is decided on, and take note that it was delivered."""
        found = self.credentials.check(packet, client, connection or self.connection)
        self.credentials.deliver(packet, client)
        return found

    def refuses(self, packet: Publish, *args: Any) -> str:
        """Return why a message is not delivered; empty: it is."""
        try:
            self.read(packet, *args)
        except PenstockError as error:
            return error.message
        return ""


def live(packet: Publish) -> Publish:
    """Return a message as the broker delivers it to who is subscribed already."""
    return replace(packet, first=packet.first & ~1)


def said_in(packet: Publish) -> str:
    (found,) = (value for name, value in packet.properties.reserved if name == CREDENTIAL)
    return found


def with_credential(packet: Publish, text: str) -> Publish:
    """Return a message with another credential."""
    pairs = tuple(
        (name, text if name == CREDENTIAL else value) for name, value in packet.properties.reserved
    )
    return replace(packet, properties=replace(packet.properties, reserved=pairs))
