"""Documents of definitions as text: read with their places, written, compared; their JSON Schema.

Rules that hold here:
- YAML or JSON, several documents per file; a JSON file holds one document or a list.
- A folder is read in name order, with its subfolders; hidden files and files of other
  endings are passed over.
- The same kind and name twice is a problem, not a silent overwrite.
- What is written can be applied again: YAML for people, JSON for machines.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from penstock.errors import InvalidError, Problem, UsageError, quote
from penstock.model.document import Document, Key
from penstock.model.kinds import KINDS
from penstock.yaml_text import Limits, Source, Steps, read_documents, write_document

ENDINGS = {".yaml", ".yml", ".json"}
LIMITS = Limits(size=64 * 1024 * 1024, depth=64, values=5_000_000)
FILE_LIMIT = 10_000
STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class ReadDocument:
    """A document and where it stood."""

    document: Document
    source: Source
    root: Steps = ()

    def place(self, path: Steps = ()) -> str:
        """Say where the value at `path` stands in the file."""
        # The key helps a reader who sees many documents in one list.
        return f"{self.source.place((*self.root, *path))} of {self.document.key}"


class Reading:
    """What was read: documents by key, where they stood, and what could not be read.

    Problems do not stop the reading: the check of the set reports them together with
    its own, so that all that is wrong is said at once.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._found: dict[Key, ReadDocument] = {}

    @property
    def documents(self) -> list[Document]:
        """The documents, in the order they were read."""
        return [item.document for item in self._found.values()]

    def locate(self, key: Key, path: Steps) -> str:
        """Say where a value stands: in the file, or in a definition that was there before."""
        found = self._found.get(key)
        return found.place(path) if found else ".".join([str(key), *map(str, path)])

    def add(self, content: bytes, name: str) -> None:
        """Read the documents of one text."""
        if name.endswith(".json"):
            # JSON is YAML but for tabs between values; within a text JSON allows none.
            content = content.replace(b"\t", b" ")
        try:
            sources = read_documents(content, name, LIMITS)
        except InvalidError as error:
            self.problems += error.problems
            return
        for source in sources:
            self.problems += source.problems.values()
            # A list of documents is what `penstock get --json` prints.
            listed = isinstance(source.data, list)
            for index, data in enumerate(source.data if listed else [source.data]):
                if data is not None:
                    self._add(data, source, (index,) if listed else ())

    def _add(self, data: Any, source: Source, root: Steps) -> None:
        made = _document(data, source, root, self.problems)
        if made is None:
            return
        first = self._found.setdefault(made.document.key, made)
        if first is not made:
            self.problems.append(
                Problem(made.place(), f"defined before at {first.place()}", "keep one of the two")
            )


def read_paths(paths: Iterable[str]) -> Reading:
    """Read all documents of files and folders; `-` is standard input."""
    reading = Reading()
    for name, content in _contents(paths):
        reading.add(content, name)
    return reading


def read_text(text: str, name: str = "text") -> Reading:
    """Read the documents of one text."""
    reading = Reading()
    reading.add(text.encode(), name)
    return reading


def _contents(paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    count = 0
    for given in paths:
        if given == STANDARD_INPUT:
            yield "standard input", sys.stdin.buffer.read(LIMITS.size + 1)
            continue
        for path in _files(Path(given)):
            count += 1
            if count > FILE_LIMIT:
                raise UsageError(
                    f"more than {FILE_LIMIT} files", fix="apply smaller folders one by one"
                )
            try:
                with path.open("rb") as file:
                    yield str(path), file.read(LIMITS.size + 1)
            except OSError as error:
                raise UsageError(
                    f"{quote(path)} cannot be read: {error.strerror}", fix="name a readable file"
                ) from None


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(f"there is no file or folder {quote(path)}", fix="check the path")
    if not path.is_dir():
        return [path]
    files = sorted(
        item
        for item in path.rglob("*")
        if item.suffix in ENDINGS
        and item.is_file()
        and not any(part.startswith(".") for part in item.relative_to(path).parts)
    )
    if not files:
        raise UsageError(
            f"the folder {quote(path)} holds no definitions",
            fix="files of definitions end in .yaml, .yml or .json",
        )
    return files


def _document(
    data: Any, source: Source, root: Steps, problems: list[Problem]
) -> ReadDocument | None:
    place = source.place(root)
    if not isinstance(data, dict):
        problems.append(
            Problem(place, "this is not a document", "write fields, beginning with kind: and name:")
        )
        return None
    body = dict(data)
    values = {}
    for field, example in (("kind", "reservation"), ("name", "home/#")):
        value = body.pop(field, None)
        if not isinstance(value, str) or not value:
            shown = f"is {quote(value)}, which is not text" if value is not None else "is missing"
            problems.append(
                Problem(place, f"the field {field!r} {shown}", f"write {field}: {example}")
            )
            return None
        values[field] = value
    return ReadDocument(Document(values["kind"], values["name"], body), source, root)


def write_yaml(documents: Iterable[Document]) -> str:
    """Return the documents as one YAML text."""
    return "---\n".join(write_document(document.fields()) for document in documents)


def write_json(documents: Iterable[Document]) -> str:
    """Return the documents as one JSON list."""
    return json.dumps([document.fields() for document in documents], ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Difference:
    """How one definition differs between two sets."""

    key: Key
    before: Document | None
    after: Document | None

    @property
    def action(self) -> Literal["create", "update", "delete"]:
        """What leads from before to after."""
        if self.before is None:
            return "create"
        return "update" if self.after is not None else "delete"

    @property
    def means_the_same(self) -> bool:
        """Whether both are written differently, and define the same."""
        if self.before is None or self.after is None:
            return False
        model = KINDS[self.key.kind]
        try:
            old, new = (
                model.model_validate({"name": it.name, **it.body})
                for it in (self.before, self.after)
            )
        except ValidationError:
            return False  # what an earlier version stored
        return old == new

    def lines(self) -> list[str]:
        """Return the difference as lines that begin with `+`, `-` or a blank.

        Fields stand in the order of what is new: the order itself means nothing.
        """
        old = self.before
        if old is not None and self.after is not None:
            old = replace(old, body=_order_like(old.body, self.after.body))
        before = write_yaml([old]).splitlines() if old else []
        after = write_yaml([self.after]).splitlines() if self.after else []
        shown = difflib.unified_diff(before, after, lineterm="", n=2)
        return [line for line in shown if not line.startswith(("---", "+++", "@@"))]


def _order_like(value: Any, model: Any) -> Any:
    """Return a value with the fields of objects in the order that a similar value has."""
    if isinstance(value, Mapping) and isinstance(model, Mapping):
        names = [*(it for it in model if it in value), *(it for it in value if it not in model)]
        return {name: _order_like(value[name], model.get(name)) for name in names}
    if isinstance(value, list) and isinstance(model, list):
        models = [*model, *[None] * len(value)]
        return [_order_like(item, models[index]) for index, item in enumerate(value)]
    return value


def differences(before: Mapping[Key, Document], after: Mapping[Key, Document]) -> list[Difference]:
    """Return what differs between two sets, in the order of their keys."""
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old is None or new is None or old.canonical() != new.canonical():
            found.append(Difference(key, old, new))
    return found


def after_applying(
    before: Mapping[Key, Document], put: Iterable[Document], *, prune: Iterable[str] = ()
) -> dict[Key, Document]:
    """Return the set after applying documents; of the kinds in `prune` only these stay."""
    gone = set(prune)
    after = {key: document for key, document in before.items() if key.kind not in gone}
    after.update({document.key: document for document in put})
    return after


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(kind: str) -> dict[str, Any]:
    """Return the schema of a document of this kind."""
    model = KINDS[kind]
    schema = model.model_json_schema(by_alias=True)
    fields = {
        "kind": {"const": kind, "description": "What this document defines."},
        **schema.pop("properties", {}),
    }
    required = ["kind", *schema.pop("required", [])]
    if "name" not in required:
        required.insert(1, "name")
    return {
        "$schema": DIALECT,
        "title": kind,
        **{name: value for name, value in schema.items() if name != "title"},
        "properties": fields,
        "required": required,
    }


def schema_of_all() -> dict[str, Any]:
    """Return one schema that accepts a document of any kind."""
    return {
        "$schema": DIALECT,
        "title": "definition",
        "oneOf": [schema_of(k) for k in sorted(KINDS)],
    }
