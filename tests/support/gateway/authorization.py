"""The authorization of a gateway without its sockets: rules, checks, packets of a broker."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from unittest.mock import Mock

from penstock.definitions import read_text
from penstock.gateway.authorization.delivery_check import DeliveryCheck
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.publication_check import PublicationCheck
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.clock import Clock
from penstock.gateway.detection.engine_host import EngineHost
from penstock.gateway.session import Session
from penstock.model.document import Document
from penstock.mqtt import Properties, Publish
from penstock.policy.purposes.settings import PurposeSettings
from penstock.store.definitions.documents import Snapshot

Pairs = tuple[tuple[str, str], ...]


class Checks:
    """Real rules, checks and detection; only the store behind detection is none."""

    def __init__(
        self, documents: Iterable[Document] = (), settings: PurposeSettings | None = None
    ) -> None:
        self.rules = Rules(settings or PurposeSettings(auto_persist=True))
        self.denials = Denials(None, None)
        self.clock = Clock()
        self.detection = EngineHost(
            Mock(address=""),
            self.clock,
            lease=10,
            snapshot_bytes=1_000_000,
            replication=None,
            decider=Mock(),
            listener=Mock(),
            run_in_thread=Mock(),
        )
        known = (self.rules, self.detection, self.clock, self.denials, None)
        self.delivery = DeliveryCheck(*known)
        self.publication = PublicationCheck(*known)
        self._epoch = 0
        self.take(documents)

    @classmethod
    def of(cls, text: str, settings: PurposeSettings | None = None) -> Checks:
        """Make those of definitions as YAML."""
        return cls(read_text(text).documents, settings)

    def take(self, documents: Iterable[Document]) -> None:
        """Put these definitions in place of those that were there."""
        self._epoch += 1
        held = self.rules.snapshot.documents if self.rules.snapshot else {}
        now = {it.key: it for it in documents}
        snapshot = Snapshot(self._epoch, f"mark-{self._epoch}", MappingProxyType(now))
        changes = self.rules.take(snapshot, {*held, *now})
        if changes.program is not None:
            self.detection.follow(changes.program)
            # As the leader would tell: nobody is in a situation.
            self.detection.board.fill([])

    def subscribe(self, session: Session, text: str, ap: str | None, identifier: int = 0) -> int:
        """Let a session hold a subscription; return its number."""
        admission = self.rules.engine.subscribe(
            session.client_id, text, ap, 1, identifier=identifier, owner=session.principal
        )
        assert admission.subscription is not None
        return session.hold(admission.subscription).number


def delivered(topic: str, *numbers: int, stamp: Pairs = (), payload: bytes = b"") -> Publish:
    """Return a packet as the gateway's reader hands it over: reserved names told apart."""
    packet = Publish.of(
        topic, payload, properties=Properties(subscription_identifiers=numbers, user=stamp)
    )
    packet.properties.reserved = stamp
    packet.properties.kept = b""
    return packet
