"""Policies, rights and events of the present definitions, compiled for decisions and detection.

Rules that hold here:
- All are taken over in the step in which the definitions are: no decision sees policies of
  one epoch and situations of another.
- Definitions that cannot be compiled close the gateway (`trouble`) until others come: what
  it cannot check, it denies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from penstock.cep.program import Program
from penstock.definitions import DefinitionSet
from penstock.definitions.access import AccessDefinitions, list_claims, make_broker_topics
from penstock.definitions.events.program import compile_program
from penstock.definitions.set import Trust, trust_nothing
from penstock.errors import PenstockError
from penstock.model.document import Document, Key
from penstock.model.kinds import Concern, Scenario, kinds_of
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.rules import BrokerTopics
from penstock.policy.purposes.rights import PurposeClaims
from penstock.telemetry import get_logger

_APART: Final = kinds_of(Concern.PURPOSES)
"""Kinds of which there may be millions; neither policies nor events refer to them."""
_EVENT_KINDS: Final = kinds_of(Concern.EVENTS)
_PEOPLE_KINDS: Final = frozenset({"group", "attributes"})
_CLAIM_KINDS: Final = frozenset({"right", "role", "authorisation-rule"})
"""Kinds that say who may claim and monitor what; who is meant, the engine of roles knows."""

_log = get_logger("gateway")


class Recompiled(NamedTuple):
    """What a change of definitions has changed."""

    access: bool = False
    """What decides: policies or claims."""
    program: bool = False


class CompiledDefinitions:
    """What definitions mean for access and detection."""

    def __init__(self, *, open_mode: bool = False, trusts: Trust = trust_nothing) -> None:
        self._open = open_mode
        self._trusts = trusts
        self.trouble: str | None = None
        """Why nothing can be decided, if so."""
        self.program = Program()
        self._begin()

    def _begin(self) -> None:
        self._definitions = DefinitionSet.empty(self._trusts)
        self._compiled = AccessDefinitions()
        self.claims = PurposeClaims(open_mode=self._open)
        self.broker_topics = BrokerTopics(open_mode=self._open)

    @property
    def access(self) -> AccessEngine:
        """What decides."""
        return self._compiled.access

    def take(self, documents: Mapping[Key, Document], changed: Iterable[Key]) -> Recompiled:
        """Take over definitions of which these may differ from what was known."""
        anew = self.trouble is not None
        if anew:
            # What is held may be incomplete.
            before = self.access.roles
            self._begin()
            self.access.roles.adopt(before)
            changed = documents
        keys = [key for key in changed if key.kind not in _APART]
        if not keys and not anew:
            return Recompiled()
        try:
            return self._take(documents, keys, anew=anew)
        except PenstockError as error:
            self.trouble = "the definitions cannot be compiled"
            _log.exception("policies cannot be compiled: everything is denied", error=error)
            return Recompiled(access=True)

    def _take(
        self, documents: Mapping[Key, Document], keys: list[Key], *, anew: bool
    ) -> Recompiled:
        found = self._definitions.change(
            put=[documents[key] for key in keys if key in documents],
            delete=[key for key in keys if key not in documents],
        )
        kinds = {key.kind for key in keys}
        access = self._compiled.take(found, keys) or anew
        if anew or kinds & _CLAIM_KINDS:
            self.claims = PurposeClaims(list_claims(found), open_mode=self._open)
            self.broker_topics = make_broker_topics(found, open_mode=self._open)
            access = True
        touched = kinds & _EVENT_KINDS
        if not any(it.subject_filter for it in found.of(Scenario).values()):
            touched -= {"attributes"}  # only filters look at them
        program = anew or bool(touched)
        if program:
            made = compile_program(found.definitions)
            # People come and go: only where they are a scenario's subjects it is another.
            apart = touched <= _PEOPLE_KINDS
            program = anew or not apart or made.scenarios != self.program.scenarios
            self.program = made if program else self.program
        self._definitions = found
        self.trouble = None
        return Recompiled(access, program)
