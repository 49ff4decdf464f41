"""What a detection is made of: the definitions of events, compiled once in each process.

Rules that hold here:
- Workers get the definitions as text and compile them for themselves: what is compiled holds
  generated functions, which do not travel.
- The text has one form, however definitions were ordered when somebody wrote them, and all
  compile that: state is kept under what operators do, as they are written.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from penstock.cep.algebra import RequestEvents
from penstock.cep.program import Program
from penstock.cep.spark import PartitionedProgram, list_packets, partition_program
from penstock.definitions import DefinitionSet
from penstock.definitions.events.program import compile_program
from penstock.errors import UsageError, quote
from penstock.model.document import Document
from penstock.model.kinds import Concern, Stream, kinds_of

KINDS: Final = kinds_of(Concern.EVENTS)


@dataclass(frozen=True)
class DetectionPlan:
    """The definitions of events, and the stream whose records are looked at."""

    definitions: DefinitionSet
    stream: Stream

    @classmethod
    def find(cls, definitions: DefinitionSet, stream: str) -> DetectionPlan:
        """Take a stream and all events out of a set."""
        found = definitions.get(Stream, stream)
        if found is None:
            known = ", ".join(definitions.of(Stream)) or "none yet"
            raise UsageError(f"there is no stream {quote(stream)}", fix=f"streams are {known}")
        plan = cls(definitions, found)
        if not list_packets(plan.program):
            raise UsageError(
                "no event is bound to packets, so that nothing can be detected",
                fix="define events, see `penstock schema event`",
            )
        _check_requests(plan.program)
        return plan

    @cached_property
    def text(self) -> str:
        """The definitions that workers need."""
        chosen = [it for key, it in self.definitions.definitions.items() if key.kind in KINDS]
        documents = sorted((it.document() for it in chosen), key=lambda it: it.key)
        return json.dumps(
            [{"kind": it.kind, "name": it.name, "body": it.body} for it in documents],
            ensure_ascii=False,
            sort_keys=True,
        )

    @cached_property
    def signature(self) -> str:
        """A short name of these definitions."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @cached_property
    def program(self) -> Program:
        """All that is detected."""
        return _compile(self.text)

    @cached_property
    def separation(self) -> PartitionedProgram:
        """What can be followed in parts, and what cannot."""
        return partition_program(self.program)


@lru_cache(maxsize=4)
def load_separation(text: str) -> PartitionedProgram:
    """Compile the definitions that `text` wrote down."""
    return partition_program(_compile(text))


def _compile(text: str) -> Program:
    documents = [Document(it["kind"], it["name"], it["body"]) for it in json.loads(text)]
    return compile_program(DefinitionSet.build(documents).definitions)


def _check_requests(program: Program) -> None:
    """Refuse requests that need what nobody knows here: the packet that led to them."""
    for name, index in sorted(program.types.items()):
        spec = program.operators[index]
        if not isinstance(spec, RequestEvents):
            continue
        for assignment in spec.assignments:
            strange = sorted(it for it in assignment.value.references if not it.startswith("r."))
            if strange and assignment.name not in spec.optional:
                raise UsageError(
                    f"the request {quote(name)} looks at {strange[0]}, which records do not tell",
                    fix=f"make {assignment.name} optional, or detect it at the gateway",
                )
