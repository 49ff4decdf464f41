"""Whether schema registries go along with a change of streams and views.

    stream in Avro ──▶ has the newest schema of its topic the fields that are declared?
    view in Avro   ──▶ may its new schema follow the newest of its topic?

Rules that hold here:
- Only what a change touches is asked for, before anything is stored. A registry that does not
  answer refuses the change: afterwards readers would be the first to notice.
- What a view's topic may become is for the registry to say. A stream's topic is written by
  others, by schemas with names of their own: fields and types are compared here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.config.brokers import KafkaSettings
from penstock.definitions import DefinitionSet
from penstock.errors import Problem, quote
from penstock.eventlog.registry import SchemaRegistry, subject_of, topic_schema
from penstock.model.kinds import Stream, View

_TIMES: Final = frozenset({"number", "text"})
_OURS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("int", "long", "float", "double"), frozenset({"number"})),
    **dict.fromkeys(("date", "timestamp"), _TIMES),
    "string": frozenset({"text"}),
    "boolean": frozenset({"boolean"}),
}
_THEIRS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("int", "long", "float", "double"), "number"),
    **dict.fromkeys(("string", "enum"), "text"),
    "boolean": "boolean",
}


def find_schema_conflicts(
    before: DefinitionSet, after: DefinitionSet, settings: KafkaSettings
) -> Iterator[Problem]:
    """Yield why registries do not go along with a change; raise where they do not answer."""
    for name, stream in after.of(Stream).items():
        url = stream.source.kafka.registry if stream.source and stream.source.kafka else None
        if url is not None and before.get(Stream, name) != stream:
            newest = SchemaRegistry(url).newest(subject_of(stream.topic))
            for place, what in _find_unreadable(stream, newest):
                fix = "declare what producers write, or let them write it first"
                yield Problem(f"{stream.key}: fields.{place}", what, fix)
    written = [it for it in after.of(View).values() if it.encoding == "avro"]
    if not written:
        return
    registry = SchemaRegistry.of(settings.registry)
    for view in written:
        schema = _schema_of(after, view)
        old = before.get(View, view.name)
        if old is not None and old.encoding == "avro" and _schema_of(before, old) == schema:
            continue
        conflict = registry.find_conflict(subject_of(view.topic), schema)
        if conflict is not None:
            fix = "add fields or leave some out, or give the view another name"
            yield Problem(
                str(view.key), f"the schema cannot follow the newest of its topic: {conflict}", fix
            )


def _schema_of(definitions: DefinitionSet, view: View) -> dict[str, Any]:
    """Return the schema that the records of a view have in its topic."""
    from penstock.definitions.views import hierarchies_of, plan_view  # noqa: PLC0415 - masks
    from penstock.masks.fields import avro_schema  # noqa: PLC0415

    stream = definitions.of(Stream)[view.stream]
    plan = plan_view(view, stream, hierarchies_of(definitions.definitions))
    return topic_schema(avro_schema(plan.output))


def _find_unreadable(stream: Stream, newest: Any) -> Iterator[tuple[str, str]]:
    """Yield the declared fields that records of the newest schema do not have."""
    if not isinstance(newest, dict) or not isinstance(newest.get("fields"), list):
        return  # nothing was written yet
    there = {it.get("name"): it.get("type") for it in newest["fields"] if isinstance(it, dict)}
    for field in stream.fields:
        if field.name not in there:
            if not field.optional:
                yield field.name, f"the topic's newest schema has no field {quote(field.name)}"
            continue
        written = there[field.name]
        kinds = [_name_of(it) for it in (written if isinstance(written, list) else [written])]
        if "null" in kinds and not field.optional:
            yield field.name, f"{quote(field.name)} may be null in the topic's newest schema"
        families = {_THEIRS.get(it, it) for it in kinds if it != "null"}
        if not families <= _OURS[field.type]:
            told = " or ".join(sorted(it for it in kinds if it != "null"))
            yield field.name, f"{quote(field.name)} is {told} in the topic's newest schema"


def _name_of(kind: Any) -> str:
    return str(kind.get("type")) if isinstance(kind, dict) else str(kind)
