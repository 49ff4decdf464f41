"""Requirements files of others: one stream and its anonymized versions in one JSON document.

    globalConfig      bootstrapServer?, topic, dataSchema {schemaType, name, fields[]}
    streamProperties  [{applicationId, category?, anonymizers [{anonymizer, parameters[]}]}]

    {"anonymizer": "univariate_micro_aggregation", "parameters": [{"windowSize": 25, "k": 20}]}
    {"key": "age", "bucketing": {"bucketSize": 3, "range": [0, 100]}}

Rules that hold here:
- The file becomes definitions, which are checked like any others; a place in a definition
  leads back to the line of the file. Whatever is missing, the rest is checked too.
- With a bootstrapServer, the stream is read from Kafka, and each view goes to the topic
  TOPIC-APPLICATIONID there. Which cluster that is, the settings say: credentials go nowhere
  else because a file says so.
- The window, which each anonymizer repeats there, becomes the view's; two different ones in
  a view are a problem.
- `category` only reminds its writer: what is there decides nothing.
- Such files have no word for the person a record is about: k counts records. Views that
  make groups acknowledge it, and a note says so.
- Parameters are spelt there in camelCase; definitions have them in snake_case. Names of fields
  and values stay as they are. Numbers may stand in quotes, and in a hierarchy without them.
- What a mask puts in place of a value is text there. Where the field is a number and the text
  is none, the field becomes text: `as: text` declares it.
- What is no parameter stays as it is: the check of the definition tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from penstock.definitions.k_anonymity import KAnonymization
from penstock.definitions.views import STATEFUL_ANONYMIZERS
from penstock.errors import InvalidError, Problem, quote
from penstock.masks import split_anonymizer
from penstock.masks.fields import DATES, FieldType, read_constant
from penstock.model.definition import to_snake_case
from penstock.model.document import Document, Key
from penstock.model.kinds.streams import StreamField
from penstock.yaml_text import Limits, Source, Steps, read_documents

LIMITS: Final = Limits(size=16 * 1024 * 1024, depth=64, values=1_000_000)
NAMELESS: Final = "nameless"
"""Stands for a name that is missing, so that the rest of the file is checked."""
NO_SUBJECT: Final = "no-subject"
AVRO: Final = "AVRO"


class Requirements:
    """The definitions of a file, and where each value stood."""

    def __init__(self, source: Source) -> None:
        self.documents: list[Document] = []
        self.problems: list[Problem] = list(source.problems.values())
        self.notes: list[str] = []
        """What the writer of the file should know, and is no problem."""
        self.brokers: str | None = None
        """The cluster that the file names."""
        self.at_kafka = False
        """Whether the stream and its views are at Kafka."""
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
            path = (*path[:2], *_spell_steps(path[2:]))
        return f"{self._source.place((*root, *path))} of {key}"


def read_requirements(
    content: bytes, name: str, *, subject: str | None = None, log: str | None = None
) -> Requirements:
    """Read a requirements file; raise InvalidError where it is no such file at all.

    `subject` is the field that tells persons apart. `log` is where the stream and its views
    are, `files` or `kafka`; None leaves it to the file.
    """
    sources = read_documents(content.replace(b"\t", b" "), name, LIMITS)
    source = sources[0] if len(sources) == 1 else Source(name)
    data = source.data
    if not isinstance(data, dict) or not {"globalConfig", "streamProperties"} <= data.keys():
        fix = "give a file with globalConfig and streamProperties, or use `penstock apply`"
        raise InvalidError(name, [Problem(name, "this is not a requirements file", fix)])
    found = Requirements(source)
    given = data["globalConfig"]
    reader = _Reader(found, given if isinstance(given, dict) else {}, subject, log)
    reader.read_stream()
    listed = data["streamProperties"]
    if not isinstance(listed, list) or not listed:
        found.complain(("streamProperties",), "there is no view in it", "list at least one")
        return found
    for index, item in enumerate(listed):
        reader.read_view(item if isinstance(item, dict) else {}, index)
    return found


class _Reader:
    """Reads the parts of a file, one after the other."""

    def __init__(
        self, found: Requirements, config: dict[str, Any], subject: str | None, log: str | None
    ) -> None:
        self._found = found
        self._config = config
        self._subject = subject
        found.at_kafka = log == "kafka" or (log is None and "bootstrapServer" in config)
        self._topic = NAMELESS
        self._types: Types = {}

    def read_stream(self) -> None:
        """Read where records come from, and what they are."""
        root: Steps = ("globalConfig",)
        brokers, topic = self._config.get("bootstrapServer"), self._config.get("topic")
        if isinstance(brokers, str):
            self._found.brokers = brokers
        elif brokers is not None:
            fix = "write HOST:PORT, several with commas between"
            self._found.complain((*root, "bootstrapServer"), "this names no broker", fix)
        if isinstance(topic, str) and topic:
            self._topic = topic
        else:
            self._found.complain((*root, "topic"), "the topic is missing", "write topic: NAME")
        schema = self._config.get("dataSchema")
        fields = schema.get("fields") if isinstance(schema, dict) else None
        if not isinstance(schema, dict) or not isinstance(fields, list):
            fix = "write dataSchema: {name, fields: [{name, type}]}"
            self._found.complain((*root, "dataSchema"), "the schema has no list of fields", fix)
            return
        self._types = _read_types(fields)
        body: dict[str, Any] = {"fields": fields}
        if isinstance(schema.get("name"), str):
            body["description"] = f"Records of {schema['name']}."
        if self._subject is not None:
            body["subject"] = self._subject
        if self._found.at_kafka:
            body["source"] = "kafka"
            # Structs of Kafka Connect are written as plain JSON objects there.
            if AVRO in {schema.get("schemaType"), schema.get("type")}:
                body["format"] = "avro"
        self._found.add(Document("stream", self._topic, body), root)

    def read_view(self, item: dict[str, Any], index: int) -> None:
        """Read one anonymized version of the stream."""
        root: Steps = ("streamProperties", index)
        name = item.get("applicationId")
        if not isinstance(name, str) or not name:
            self._found.complain(root, "applicationId is missing", "write applicationId: NAME")
            name = f"{NAMELESS}-{index}"
        listed = item.get("anonymizers", [])
        if not isinstance(listed, list):
            self._found.complain((*root, "anonymizers"), "this is not a list of anonymizers")
            listed = []
        windows: list[dict[str, Any]] = []
        anonymizers: list[dict[str, Any]] = []
        for number, given in enumerate(listed):
            place = (*root, "anonymizers", number)
            made = self._read_anonymizer(given, place)
            if made is None:
                continue
            window = {WINDOW[key]: made.pop(key) for key in WINDOW if key in made}
            if window and window not in windows:
                windows.append(window)
            if len(windows) > 1:
                fix = "give all the same"
                self._found.complain(place, "its window differs from the others'", fix)
                windows.pop()
            anonymizers.append(made)
        body: dict[str, Any] = {"stream": self._topic, "anonymizers": anonymizers}
        kinds = [STATEFUL_ANONYMIZERS.get(it["anonymizer"]) for it in anonymizers]
        if windows and any(kind is not None and kind.windowed for kind in kinds):
            body["window"] = windows[0]
        if self._found.at_kafka:
            body["format"] = "topic"
        groups = any(kind is not None and issubclass(kind, KAnonymization) for kind in kinds)
        if groups and self._subject is None:
            body["accept_risk"] = [NO_SUBJECT]
            self._found.notes.append(
                f"the view {quote(name)} counts records, not persons: {NO_SUBJECT} is "
                "acknowledged for it → name the field that tells persons apart with --subject"
            )
        self._found.add(Document("view", name, body), root)

    def _read_anonymizer(self, given: object, place: Steps) -> dict[str, Any] | None:
        problems: list[Problem] = []
        split = split_anonymizer(given, "", problems)
        for problem in problems:
            self._found.complain(place, problem.message, problem.fix)
        if split is None:
            return None
        name, parameters = split
        spelt: dict[str, Any] = {}
        for key, value in spell(parameters):
            if key in spelt:
                message = f"the parameter {quote(key)} is given twice"
                self._found.complain(place, message, "leave one out")
            spelt[key] = value
        return translate(name, spelt, self._types, lambda *said: self._found.complain(place, *said))


def _read_types(fields: list[Any]) -> dict[str, FieldType]:
    """Return the types of the fields; those that are none are told with the stream."""
    types = {}
    for item in fields:
        try:
            field = StreamField.model_validate(item)
        except ValidationError:
            continue
        types[field.name] = FieldType(field.type)
    return types


_OWN_STEPS: Final[Mapping[str, Steps]] = {
    "min": ("bucketing", "range"),
    "max": ("bucketing", "range"),
    "bucket_size": ("bucketing", "bucketSize"),
}


def _spell_steps(steps: Steps) -> Steps:
    """Return the way to a value as requirements files spell it."""
    name, rest = tuple(map(_to_camel_case, steps[:1])), steps[1:]
    if steps[:1] == ("quasi_identifiers",) and rest[1:2]:
        rest = (*rest[:1], *_OWN_STEPS.get(str(rest[1]), rest[1:]))
    return (*name, *rest)


def _to_camel_case(step: str | int) -> str | int:
    """Return a step as requirements files spell it."""
    head, *rest = str(step).split("_")
    return head + "".join(map(str.capitalize, rest)) if isinstance(step, str) else step


def check_owners(found: Requirements, owners: Mapping[str, str]) -> None:
    """Complain about views that would take the name of another stream's; `owners` has those."""
    for document in found.documents:
        owner = owners.get(document.name) if document.kind == "view" else None
        if owner is not None and owner != document.body["stream"]:
            place = found.locate(document.key, ("name",))
            message = f"the stream {quote(owner)} has a view of this name"
            found.problems.append(Problem(place, message, "rename one of them"))


WINDOW: Final = {"window_size": "size", "advance_time": "advance", "grace_period": "grace"}
NUMBERS: Final = frozenset(
    {*WINDOW, "k", "l", "t", "delta", "mu", "beta", "n_fields", "seed", "noise", "bucket_size"}
)
NAMES: Final[Mapping[str, str]] = {
    "bucketing": "bucketizing",
    "noise_methods": "noise",
    "univariate_micro_aggregation": "univariate_microaggregation",
    "univariant_micro_aggregation": "univariate_microaggregation",
    "multivariate_micro_aggregation": "multivariate_microaggregation",
    "multivariant_micro_aggregation": "multivariate_microaggregation",
}
"""What anonymizers are called there, where it differs."""
SUBSTITUTING: Final = frozenset({"substitution", "conditional_substitution"})
POSTCODE: Final = "zip"
"""The field whose general value is looked up there by its first character alone."""
ENDS: Final = 2

Types = Mapping[str, FieldType]
Complain = Callable[[str, str], None]
"""Takes what is wrong, and the fix."""


def spell(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield parameters as definitions spell them."""
    return ((to_snake_case(str(key)), value) for key, value in given.items())


def translate(
    name: str, parameters: Mapping[str, Any], types: Types, complain: Complain
) -> dict[str, Any]:
    """Return an anonymizer of a definition; `parameters` are in snake_case already."""
    made = {
        key: read_number(value) if key in NUMBERS else _spell_within(key, value, complain)
        for key, value in parameters.items()
    }
    name = NAMES.get(name, name)
    keys = made.get("keys")
    if name == "bucketizing":
        _place_buckets(made)
    if name == "generalization" and keys == [POSTCODE]:
        _match_beginnings(made)
    if name in SUBSTITUTING and isinstance(keys, list):
        _declare_text(made, [types[key] for key in keys if key in types])
    return {"anonymizer": name, **made}


def _spell_within(key: str, value: Any, complain: Complain) -> Any:
    if key in {"quasi_identifiers", "sensitive"} and isinstance(value, list):
        return [
            _read_ranged(dict(spell(it)), complain) if isinstance(it, Mapping) else it
            for it in value
        ]
    if key == "hierarchy":
        return _write_tree(value)
    if key == "condition_map" and isinstance(value, Mapping):
        if not any(isinstance(it, Mapping) for it in value.values()):
            return dict(spell(value))
        return {k: dict(spell(it)) if isinstance(it, Mapping) else it for k, it in value.items()}
    return value


def _read_ranged(field: dict[str, Any], complain: Complain) -> dict[str, Any]:
    """Return a field with its bounds; buckets stand in a part of their own there."""
    if "hierarchy" in field:
        field["hierarchy"] = _write_tree(field["hierarchy"])
    if "bucketing" not in field:
        return field
    buckets = field.pop("bucketing")
    inside = dict(spell(buckets)) if isinstance(buckets, Mapping) else {}
    if not _is_range(inside.get("range")) or not inside.keys() <= {"range", "bucket_size"}:
        about = quote(field.get("key"))
        complain(f"bucketing of {about} has no range", 'write {"bucketSize": 5, "range": [0, 100]}')
        # Any bounds do: nothing of the file is applied, and the rest of it is checked.
        inside = {"range": [0, 1]}
    low, high = map(read_number, inside.pop("range"))
    numbers = {key: read_number(value) for key, value in inside.items()}
    return {**field, "min": low, "max": high, **numbers}


def _is_range(value: object) -> bool:
    return isinstance(value, list) and len(value) == ENDS


def _write_tree(node: Any) -> Any:
    """Return a tree whose values are texts."""
    if not isinstance(node, Mapping):
        return node
    made = dict(node)
    value, children = node.get("value"), node.get("children")
    if isinstance(value, int) and not isinstance(value, bool):
        made["value"] = str(value)
    if isinstance(children, list):
        made["children"] = [_write_tree(child) for child in children]
    return made


def _place_buckets(made: dict[str, Any]) -> None:
    """Let buckets begin where the range does."""
    if _is_range(made.get("range")):
        low = read_number(made.pop("range")[0])
        if low != 0:
            made.setdefault("origin", low)


def _match_beginnings(made: dict[str, Any]) -> None:
    table = made.get("generalization_map")
    if isinstance(table, Mapping) and all(len(str(key)) == 1 for key in table):
        made.setdefault("beginning", 1)


def _declare_text(made: dict[str, Any], types: Sequence[FieldType]) -> None:
    """Bring substitutes to the fields' type, or declare that the fields become text."""
    given = made.get("substitution_list")
    if not isinstance(given, list) or not set(types) - {FieldType.STRING}:
        return
    read = [[read_constant(kind, it) for it in given] for kind in types]
    if all(it is not None for line in read for it in line) and len(set(types)) == 1:
        # Dates are written as text in definitions.
        made["substitution_list"] = given if types[0] in DATES else read[0]
    else:
        made.setdefault("as", "text")
        made["substitution_list"] = [str(it) if type(it) in {int, float} else it for it in given]


def read_number(value: Any) -> Any:
    """Return the number that a text is; everything else as it is."""
    if isinstance(value, str):
        for read in (int, float):
            try:
                return read(value)
            except ValueError:
                continue
    return value
