"""Carries messages through detection and decisions, as a gateway does, in one process.

    publish ── offer ──▶ write allowed? ──▶ commit ──▶ situations move ──▶ actions publish
                              └─ no: dropped, no trace

Rules that hold here:
- The clock is the messages' own: a month passes as quickly as it can be worked through.
- What actions publish is the house's own word: it re-enters detection, as deep as `DEPTH`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.cep.steps import Publication, StepResult, Transition
from penstock.definitions import DefinitionSet
from penstock.definitions.access import AccessDefinitions
from penstock.definitions.events.program import compile_program
from penstock.lang.scalars import EPOCH
from penstock.model.document import Document
from penstock.policy.access.emergencies import SituationBoard
from penstock.policy.access.requests import Message
from penstock.policy.decision import Decision

DEPTH: Final = 4


class InProcess:
    """Detection and access for one set of definitions."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self.definitions = DefinitionSet.build(documents)
        self.access = AccessDefinitions(self.definitions).access
        self.engine = Engine(compile_program(self.definitions.definitions))
        self.board = SituationBoard()
        self.on_transition: Callable[[Transition], None] = lambda _: None
        self.on_publication: Callable[[Publication, int], None] = lambda _, __: None
        self._at = -1
        self._e: dict[str, Any] = {}

    def publish(self, at: int, user: str, topic: str, payload: Mapping[str, Any]) -> Decision:
        """Publish a message on behalf of a user, if that is allowed."""
        e = self._environment(at)
        message = Message(topic, payload, user=user)
        principal = self.access.principal(user, None)
        packet = Packet(topic, message.t, principal.attributes, self.access.about(message), e)
        prepared = self.engine.prepare(packet, at)
        decision = self.access.decide("write", principal, message, e, self.board)
        if decision.allowed:
            self._follow(prepared.commit())
        return decision

    def advance(self, at: int) -> None:
        """Let time pass."""
        self._follow(self.engine.advance(at))

    def may_read(
        self, user: str, topic: str, payload: Mapping[str, Any], publisher: str | None = None
    ) -> Decision:
        """Decide whether a user may read a message now."""
        # From bytes, as a delivery would be: nothing that the publisher's side found is kept.
        message = Message(topic, json.dumps(payload).encode(), user=publisher)
        principal = self.access.principal(user, None)
        return self.access.decide("read", principal, message, self._e, self.board)

    def _environment(self, at: int) -> dict[str, Any]:
        if at != self._at:
            self._at = at
            self._e = {"time": EPOCH + timedelta(milliseconds=at)}
        return self._e

    def _follow(self, outcome: StepResult) -> None:
        for it in outcome.transitions:
            self.board.move(it.scenario, it.subject, it.target)
            self.on_transition(it)
        for publication in outcome.publications:
            self.on_publication(publication, outcome.at)
            if publication.depth <= DEPTH:
                self._enter(publication, outcome.at)

    def _enter(self, publication: Publication, at: int) -> None:
        """Let what an action publishes be detected."""
        message = Message(publication.topic, dict(publication.payload))
        packet = Packet(
            publication.topic,
            message.t,
            {},
            self.access.about(message),
            self._environment(at),
            depth=publication.depth,
        )
        self._follow(self.engine.prepare(packet, at).commit())
