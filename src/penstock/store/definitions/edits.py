"""Edits to the set of definitions, and what the store demands of them.

Rules that hold here:
- An edit puts a document or deletes a key; one change edits a key at most once.
- What is stored is canonical JSON that reads back as the same data on every machine: no
  NaN, no half characters, bounded size and depth. All problems are reported at once.
- Meaning is not checked here: the caller validates the set as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.errors import InvalidError, Problem, quote
from penstock.model.document import Document, Key
from penstock.store.schema import ACTOR_LENGTH, KIND_LENGTH, NAME_LENGTH, REASON_LENGTH


@dataclass(frozen=True, slots=True)
class Put:
    """Store this document, whether its key is new or not."""

    document: Document

    @property
    def key(self) -> Key:
        """What this edit is about."""
        return self.document.key


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the document of this key, if there is one."""

    key: Key


Edit = Put | Delete


@dataclass(frozen=True, slots=True)
class EditLimits:
    """How much the store takes."""

    document_bytes: int = 256 * 1024
    document_depth: int = 64
    edits_per_change: int = 10_000
    documents: int = 100_000


def edits_between(
    now: Mapping[Key, Document], then: Mapping[Key, Document], keys: Iterable[Key] | None = None
) -> list[Edit]:
    """Return the edits that lead from one set to another, for all keys or for some.

    A rollback is a change like any other: these edits, from now to an earlier epoch.
    """
    wanted = now.keys() | then.keys() if keys is None else set(keys)
    edits: list[Edit] = []
    for key in sorted(wanted):
        if key in then:
            edits.append(Put(then[key]))
        elif key in now:
            edits.append(Delete(key))
    return edits


def encode_edits(edits: Sequence[Edit], limits: EditLimits) -> dict[Key, str | None]:
    """Return the canonical JSON of what is put, None for what is deleted; refuse bad edits."""
    if len(edits) > limits.edits_per_change:
        problem = Problem(
            "",
            f"{len(edits)} edits in one change; at most {limits.edits_per_change} are allowed",
            "split the change",
        )
        raise InvalidError("the change", [problem])
    problems: list[Problem] = []
    encoded: dict[Key, str | None] = {}
    for edit in edits:
        if edit.key in encoded:
            message = "appears twice in one change"
            problems.append(Problem(quote(edit.key), message, "keep one of them"))
        encoded[edit.key] = None
        if isinstance(edit, Put):
            try:
                _check_key(edit.key)
                encoded[edit.key] = _encode(edit.document, limits)
            except ValueError as error:
                problems.append(Problem(quote(edit.key), str(error)))
    if problems:
        raise InvalidError("the change", problems)
    return encoded


def check_origin(actor: str, reason: str) -> None:
    """Refuse an actor or a reason that the history could not hold."""
    problems = []
    if not actor or not actor.isprintable() or len(actor) > ACTOR_LENGTH:
        text = f"{quote(actor)} must be 1 to {ACTOR_LENGTH} printable characters"
        problems.append(Problem("actor", text))
    if not "".join(reason.split()).isprintable() or len(reason) > REASON_LENGTH:
        text = f"{quote(reason)} must be at most {REASON_LENGTH} printable characters"
        problems.append(Problem("reason", text))
    if problems:
        raise InvalidError("the change", problems)


def _check_key(key: Key) -> None:
    for field, text, limit in (("kind", key.kind, KIND_LENGTH), ("name", key.name, NAME_LENGTH)):
        if not text or not text.isprintable() or len(text) > limit:
            raise ValueError(f"the {field} must be 1 to {limit} printable characters")


def _encode(document: Document, limits: EditLimits) -> str:
    if _is_deeper(document.body, limits.document_depth):
        raise ValueError(f"nested deeper than {limits.document_depth} levels")
    try:
        text = document.canonical()
        size = len(text.encode())
    except TypeError as error:
        raise ValueError(f"holds what JSON cannot express: {error}") from error
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which is no character") from None
    if size > limits.document_bytes:
        raise ValueError(f"{size} bytes of JSON; at most {limits.document_bytes} are allowed")
    json.loads(text, parse_constant=_refuse)
    return text


def _is_deeper(value: Any, levels: int) -> bool:
    if isinstance(value, Mapping):
        children: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple):
        children = value
    else:
        return False
    return levels == 0 or any(_is_deeper(child, levels - 1) for child in children)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
