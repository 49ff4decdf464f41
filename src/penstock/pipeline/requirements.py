"""Reads requirements files: one stream and its anonymized versions in one JSON document.

    globalConfig      bootstrapServer, topic, dataSchema {name, fields[]}
    streamProperties  [{applicationId, category?, anonymizers [{anonymizer, parameters[]}]}]

Rules that hold here:
- The file becomes definitions, which are checked like any others; a place in a definition
  leads back to the line of the file.
- Parameters are spelt there in camelCase; definitions have them in snake_case.
- Numbers may stand in quotes, as such files have them. The window, which each anonymizer
  repeats there, becomes the view's; two different ones in a view are a problem.
- `category` only reminds its writer: a wrong one is a problem, a missing one is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.definitions.anonymizers import STATEFUL_ANONYMIZERS
from penstock.errors import InvalidError, Problem, quote
from penstock.masks import find_mask, split_anonymizer
from penstock.masks.conditional_substitution import ConditionalSubstitution
from penstock.model.definition import to_snake_case
from penstock.model.document import Document, Key
from penstock.yaml_text import Limits, Source, Steps, read_documents

LIMITS: Final = Limits(size=16 * 1024 * 1024, depth=64, values=1_000_000)
WINDOW: Final = {"window_size": "size", "advance_time": "advance", "grace_period": "grace"}
NUMBERS: Final = frozenset(
    {*WINDOW, "k", "l", "t", "delta", "mu", "beta", "n_fields", "seed", "noise", "bucket_size"}
)


class Requirements:
    """The definitions of a file, and where each value stood."""

    def __init__(self, source: Source) -> None:
        self.documents: list[Document] = []
        self.problems: list[Problem] = list(source.problems.values())
        self._source = source
        self._roots: dict[Key, Steps] = {}

    def add(self, document: Document, root: Steps) -> None:
        """Add a definition that stood at a place of the file."""
        if document.key in self._roots:
            self.complain(root, f"{document.key} is defined twice", "rename one of the two")
            return
        self._roots[document.key] = root
        self.documents.append(document)

    def complain(self, path: Steps, message: str, fix: str | None = None) -> None:
        """Add a problem at a place of the file."""
        self.problems.append(Problem(self._source.place(path), message, fix))

    def locate(self, key: Key, path: Steps) -> str:
        """Say where a value of a definition stood in the file."""
        root = self._roots.get(key)
        if root is None:
            return ".".join([str(key), *map(str, path)])
        if path[:1] == ("window",):
            path = ()
        if path[:1] == ("name",):
            path = ("topic",) if key.kind == "stream" else ("applicationId",)
        if key.kind == "stream" and path[:1] == ("fields",):
            path = ("dataSchema", *path)
        if path[:1] == ("anonymizers",):
            path = (*path[:2], *map(_to_camel_case, path[2:3]), *path[3:])
        return f"{self._source.place((*root, *path))} of {key}"


def read_requirements(content: bytes, name: str) -> Requirements:
    """Read a requirements file; raise InvalidError where it is no such file at all."""
    sources = read_documents(content.replace(b"\t", b" "), name, LIMITS)
    source = sources[0] if len(sources) == 1 else Source(name)
    data = source.data
    if not isinstance(data, dict) or not {"globalConfig", "streamProperties"} <= data.keys():
        fix = "give a file with globalConfig and streamProperties, or use `penstock apply`"
        raise InvalidError(name, [Problem(name, "this is no requirements file", fix)])
    found = Requirements(source)
    topic = _read_stream(data["globalConfig"], found)
    listed = data["streamProperties"]
    if not isinstance(listed, list) or not listed:
        found.complain(("streamProperties",), "there is no view in it", "list at least one")
        return found
    for index, item in enumerate(listed):
        _read_view(item, topic, ("streamProperties", index), found)
    return found


def _read_stream(data: object, found: Requirements) -> str:
    root: Steps = ("globalConfig",)
    config = data if isinstance(data, dict) else {}
    topic = config.get("topic")
    schema = config.get("dataSchema")
    if not isinstance(topic, str) or not topic:
        found.complain((*root, "topic"), "the topic is missing", "write topic: NAME")
        topic = ""
    if not isinstance(schema, dict) or not isinstance(schema.get("fields"), list):
        fix = "write dataSchema: {name, fields: [{name, type}]}"
        found.complain((*root, "dataSchema"), "the schema has no list of fields", fix)
    elif topic:
        body: dict[str, Any] = {"fields": schema["fields"]}
        if isinstance(schema.get("name"), str):
            body["description"] = f"Records of {schema['name']}."
        found.add(Document("stream", topic, body), root)
    return topic


def _read_view(data: object, topic: str, root: Steps, found: Requirements) -> None:
    item = data if isinstance(data, dict) else {}
    name = item.get("applicationId")
    if not isinstance(name, str) or not name:
        found.complain(root, "applicationId is missing", "write applicationId: NAME")
        return
    listed = item.get("anonymizers", [])
    if not isinstance(listed, list):
        found.complain((*root, "anonymizers"), "this is no list of anonymizers")
        return
    windows: list[dict[str, Any]] = []
    anonymizers = []
    for index, given in enumerate(listed):
        place = (*root, "anonymizers", index)
        made = _read_anonymizer(given, place, found)
        if made is None:
            continue
        window = {WINDOW[key]: made.pop(key) for key in WINDOW if key in made}
        if window and window not in windows:
            windows.append(window)
        if len(windows) > 1:
            found.complain(place, "its window differs from the others'", "give all the same")
            windows.pop()
        anonymizers.append(made)
        _check_category(item.get("category"), str(made["anonymizer"]), (*root, "category"), found)
    body: dict[str, Any] = {"stream": topic, "anonymizers": anonymizers}
    if windows and any(it["anonymizer"] in _windowed() for it in anonymizers):
        body["window"] = windows[0]
    if topic:
        found.add(Document("view", name, body), root)


def _read_anonymizer(given: object, place: Steps, found: Requirements) -> dict[str, Any] | None:
    problems: list[Problem] = []
    split = split_anonymizer(given, "", problems)
    if split is None:
        for problem in problems:
            found.complain(place, problem.message, problem.fix)
        return None
    name, given_parameters = split
    parameters: dict[str, Any] = {}
    for key, value in _spell(given_parameters):
        if key in parameters:
            found.complain(place, f"the parameter {quote(key)} is given twice", "leave one out")
        parameters[key] = _read_number(value) if key in NUMBERS else _spell_within(key, value)
    return {"anonymizer": name, **parameters}


def _spell(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((to_snake_case(str(key)), value) for key, value in given.items())


def _spell_within(key: str, value: Any) -> Any:
    """Spell what stands within a parameter; names of fields and values stay as they are."""
    if key in {"quasi_identifiers", "sensitive"} and isinstance(value, list):
        return [dict(_spell(it)) if isinstance(it, Mapping) else it for it in value]
    if key == "condition_map" and isinstance(value, Mapping):
        if not any(isinstance(it, Mapping) for it in value.values()):
            return dict(_spell(value))
        return {k: dict(_spell(it)) if isinstance(it, Mapping) else it for k, it in value.items()}
    return value


def _to_camel_case(step: str | int) -> str | int:
    """Return a step as requirements files spell it."""
    first, *rest = str(step).split("_")
    return first + "".join(map(str.capitalize, rest)) if isinstance(step, str) else step


def _read_number(value: Any) -> Any:
    if isinstance(value, str):
        for read in (int, float):
            try:
                return read(value)
            except ValueError:
                continue
    return value


def _windowed() -> frozenset[str]:
    return frozenset(name for name, kind in STATEFUL_ANONYMIZERS.items() if kind.windowed)


def category_of(name: str) -> str | None:
    """Return the category that requirements files know an anonymizer under."""
    if name in STATEFUL_ANONYMIZERS:
        return "ATTRIBUTE_BASED" if STATEFUL_ANONYMIZERS[name].family == "window" else "TABLE_BASED"
    kind = find_mask(name)
    if kind is None:
        return None
    return "TUPLE_BASED" if kind is ConditionalSubstitution else "VALUE_BASED"


def _check_category(given: object, name: str, place: Steps, found: Requirements) -> None:
    right = category_of(name)
    if given is not None and right is not None and given != right:
        message = f"{name} is {right}, not {quote(given)}"
        found.complain(place, message, f"write {right}, or leave category out")


def check_owners(found: Requirements, owners: Mapping[str, str]) -> None:
    """Complain about views that would take the name of another stream's; `owners` has those."""
    for document in found.documents:
        owner = owners.get(document.name) if document.kind == "view" else None
        if owner is not None and owner != document.body["stream"]:
            place = found.locate(document.key, ("name",))
            message = f"the stream {quote(owner)} has a view of this name"
            found.problems.append(Problem(place, message, "rename one of them"))
