"""A set of definitions that is valid as a whole.

Rules that hold here:
- A set exists only if every document has a known kind and the right shape, every
  reference leads somewhere, no acyclic reference leads back to its start, every
  expression has the right type, and the checks of each kind hold.
- A changed set checks what the change can break and reuses the rest, so that one change
  in a large set stays cheap. The outcome is the one a fresh check would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from penstock.definitions.checks import Locate, locate_by_key
from penstock.definitions.checks.references import ReferenceIndex
from penstock.definitions.checks.validation import validate_document
from penstock.definitions.checks.vocabularies import check_expressions, scope_of
from penstock.definitions.kind_checks import check_kinds, check_misshapen
from penstock.errors import InvalidError, Problem
from penstock.lang.types import Scope
from penstock.model.definition import Definition
from penstock.model.document import Document, Key
from penstock.model.kinds import Vocabulary

Kind = TypeVar("Kind", bound=Definition)


class DefinitionSet:
    """All definitions of one moment, checked."""

    def __init__(
        self, definitions: Mapping[Key, Definition], references: ReferenceIndex, scope: Scope
    ) -> None:
        self.definitions = MappingProxyType(definitions)
        self.scope = scope
        self._references = references

    @classmethod
    def empty(cls) -> DefinitionSet:
        """Return the set without definitions."""
        return cls({}, ReferenceIndex(), scope_of([]))

    @classmethod
    def build(cls, documents: Iterable[Document], locate: Locate = locate_by_key) -> DefinitionSet:
        """Check documents as a whole; raise `InvalidError` with all their problems."""
        return cls.empty().change(documents, locate=locate)

    def change(
        self,
        put: Iterable[Document] = (),
        delete: Iterable[Key] = (),
        *,
        locate: Locate = locate_by_key,
        problems: Iterable[Problem] = (),
    ) -> DefinitionSet:
        """Return the set with these documents put and these keys deleted, if it is valid.

        `problems` that were found before, such as in reading, are reported with the others.
        """
        found = list(problems)
        changed: dict[Key, Definition | None] = dict.fromkeys(delete)
        misshapen: dict[Key, Document] = {}
        for document in put:
            made = validate_document(document, locate, found)
            if made is None:
                misshapen[document.key] = document
            else:
                changed[document.key] = made
        definitions = dict(self.definitions)
        for key, definition in changed.items():
            if definition is None:
                definitions.pop(key, None)
            else:
                definitions[key] = definition
        references = self._references.change(changed)
        # A reference to a misshapen definition is not dangling: one complaint is enough.
        found += references.problems(definitions.keys() | misshapen.keys(), changed, locate)
        scope = self.scope
        if not any(key.kind == Vocabulary.kind for key in misshapen):
            if any(key.kind == Vocabulary.kind for key in changed):
                vocabularies = [it for it in definitions.values() if isinstance(it, Vocabulary)]
                scope = scope_of(vocabularies, locate, found)
            to_check = changed if scope is self.scope else definitions
            found += check_expressions(to_check, scope, locate)
        found += check_kinds(definitions, changed, locate)
        if misshapen:
            found += check_misshapen(misshapen.values(), definitions, locate)
        if found:
            raise InvalidError("definitions", found)
        return DefinitionSet(definitions, references, scope)

    def of(self, kind: type[Kind]) -> dict[str, Kind]:
        """Return the definitions of one kind, by name, in name order."""
        return {
            key.name: definition
            for key, definition in sorted(self.definitions.items())
            if isinstance(definition, kind)
        }

    def get(self, kind: type[Kind], name: str) -> Kind | None:
        """Return one definition, if there is such a one."""
        found = self.definitions.get(Key(kind.kind, name))
        return found if isinstance(found, kind) else None
