"""The access matrix: who sees which attribute of which stream, for what, in which situation.

    subjects, topics, purposes, situations ──▶ authorizer ──▶ transformations ──▶ attributes
    subjects, views ──▶ roles at Kafka ──▶ the plan of the view ──▶ attributes

Rules that hold here:
- The authorizer decides and transformations are carried out, on an example of each stream: a cell
  says what a gateway does with this very message. The example is told with the answer.
- An attribute is seen `full`, `changed` (what leaves has another value), `removed` (what leaves has
  it not) or `none` (nothing leaves). Each names the rule.
- In a situation it is the people that the example is about who are in it, and nobody else.
- What a view leaves of an attribute follows from its plan, not from an example.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from penstock.definitions.anonymizers.differential_privacy import DifferentialPrivacy
from penstock.definitions.set import DefinitionSet
from penstock.definitions.views import Step, find_plan, hierarchies_of
from penstock.errors import Problem, UsageError, quote
from penstock.json_text import read_object
from penstock.model import kinds
from penstock.model.kinds.fields import named_levels
from penstock.model.topics import check_topic
from penstock.policy.access.emergencies import SituationBoard
from penstock.policy.access.objects import Message
from penstock.policy.access.principals import ANONYMOUS
from penstock.policy.authorizer import Authorizer
from penstock.policy.decision import Decision, Reshaped, Seen
from penstock.policy.events.types import EventTypes
from penstock.policy.request import AccessRequest

Degree = Literal["full", "changed", "removed", "none"]
ORDINARY: Final = "ordinary"
CELLS: Final = 1_000_000
"""The most cells of a matrix: more would tell nobody anything."""
_SAMPLES: Final[Mapping[str, Any]] = {
    "string": "example",
    "int": 1,
    "long": 1,
    "float": 1.5,
    "double": 1.5,
    "boolean": True,
    "date": "2026-01-01",
    "timestamp": "2026-01-01T00:00:00Z",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """What one subject sees of one attribute."""

    subject: str
    stream: str
    source: str
    """The topic, or `view NAME`."""
    purpose: str | None
    situation: str
    attribute: str
    degree: Degree
    rule: str
    """What denies, changes or removes it; where it is seen in full, what grants it."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Example:
    """The message that a topic's cells are about."""

    stream: str
    topic: str
    payload: bytes
    attributes: tuple[str, ...]
    people: tuple[str, ...]
    """Whom situations are about: what levels of the topic and the stream's subject name."""

    def message(self) -> Message:
        """Return it as decisions see it: published by nobody who has logged in."""
        rest = {"qos": 1, "retain": False, "size": len(self.payload), "properties": {}}
        return Message(self.topic, self.payload, rest=rest)


@dataclass(frozen=True, slots=True)
class Question:
    """What a matrix is about; what is left out means all."""

    subjects: Sequence[str] = ()
    streams: Sequence[str] = ()
    topics: Sequence[str] = ()
    purposes: Sequence[str | None] = ()
    payload: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the example that are not made up."""
    environment: Mapping[str, Any] = field(default_factory=dict)


def list_subjects(definitions: DefinitionSet) -> list[str]:
    """Return the users whom definitions name, and the one who has not logged in."""
    found = set(definitions.of(kinds.User))
    named = [it for group in definitions.of(kinds.Group).values() for it in group.members]
    named += [it.holder for it in definitions.of(kinds.Appointment).values()]
    named += [*definitions.of(kinds.Attributes)]
    named += [it for right in definitions.of(kinds.Right).values() for it in right.subjects]
    named += [it.subject for it in definitions.of(kinds.Policy).values()]
    named += [it.subject for it in definitions.of(kinds.EmergencyPolicy).values()]
    found |= {it.removeprefix("user:") for it in named if it.startswith("user:")}
    return [*sorted(found), ANONYMOUS]


def list_situations(definitions: DefinitionSet) -> list[tuple[str, str, str]]:
    """Return the situations there can be: name, scenario and situation; the ordinary one first."""
    found = [(ORDINARY, "", "")]
    plans = definitions.of(kinds.Plan)
    for name, scenario in sorted(definitions.of(kinds.Scenario).items()):
        found += [(f"{name}={it.id}", name, it.id) for it in plans[scenario.plan].situations]
    return found


def make_examples(definitions: DefinitionSet, question: Question) -> list[Example]:
    """Return an example of each topic: of those asked for, else of every pattern of a stream."""
    streams = definitions.of(kinds.Stream)
    unknown = [it for it in question.streams if it not in streams]
    if unknown:
        known = ", ".join(sorted(streams)) or "not defined"
        raise UsageError(f"there is no stream {quote(unknown[0])}", fix=f"streams are {known}")
    types = EventTypes()
    types.put(streams.values())
    asked = [(check_topic(topic), it.name) for topic in question.topics for it in types.of(topic)]
    untyped = [it for it in question.topics if not types.of(it)]
    if untyped:
        raise UsageError(
            f"no stream says which attributes messages of {quote(untyped[0])} have",
            fix="name a topic that feeds a stream (`from`)",
        )
    if not question.topics:
        asked = [
            (_fill(stream, pattern), name)
            for name, stream in sorted(streams.items())
            for pattern in stream.patterns
        ]
    wanted = set(question.streams)
    return [
        _make_example(types, streams[name], topic, question.payload)
        for topic, name in asked
        if not wanted or name in wanted
    ]


def _fill(stream: kinds.Stream, pattern: str) -> str:
    types = {it.name: it.type for it in stream.fields}
    parts = []
    for level in pattern.split("/"):
        kind = types.get(level[1:], "string") if level.startswith("+") else ""
        parts.append(str(_SAMPLES[kind]) if kind else "example" if level == "#" else level)
    return "/".join(parts)


def _make_example(
    types: EventTypes, stream: kinds.Stream, topic: str, given: Mapping[str, Any]
) -> Example:
    event_type = next(it for it in types.of(topic) if it.name == stream.name)
    said = {it.name: _SAMPLES[it.type] for it in stream.fields}
    said |= {it.name: it.fixed for it in event_type.attributes if isinstance(it.fixed, str | int)}
    attributes = tuple(it.name for it in event_type.attributes)
    said = {name: given.get(name, value) for name, value in said.items() if name in attributes}
    shown: Any = {"payload": said} if stream.format == "connect" else said
    people = [str(said[stream.subject])] if stream.subject in said else []
    for pattern in stream.patterns:
        levels = named_levels(pattern)
        parts = topic.split("/")
        people += [parts[place] for place in levels if place < len(parts)]
    payload = json.dumps(shown, ensure_ascii=False).encode()
    return Example(stream.name, topic, payload, attributes, tuple(dict.fromkeys(people)))


def make_matrix(
    authorizer: Authorizer,
    definitions: DefinitionSet,
    question: Question,
    examples: Iterable[Example],
) -> Iterator[Cell]:
    """Yield the cells of topics: what a gateway delivers of the examples."""
    examples = list(examples)
    subjects = question.subjects or list_subjects(definitions)
    purposes = question.purposes or [None, *sorted(definitions.of(kinds.Purpose))]
    situations = list_situations(definitions)
    attributes = sum(len(it.attributes) for it in examples)
    count = len(subjects) * len(purposes) * len(situations) * attributes
    if count > CELLS:
        raise UsageError(
            f"the matrix has {count:,} cells; at most {CELLS:,} are worked out",
            fix="name some subjects, streams, topics or purposes",
        )
    for example in examples:
        for situation, scenario, word in situations:
            rows = [(scenario, person, word) for person in example.people] if scenario else []
            board = SituationBoard(rows)
            for subject in subjects:
                for purpose in purposes:
                    user = None if subject == ANONYMOUS else subject
                    seen = look(authorizer, example, user, purpose, question.environment, board)
                    for attribute, degree, rule in seen:
                        yield Cell(
                            subject,
                            example.stream,
                            example.topic,
                            purpose,
                            situation,
                            attribute,
                            degree,
                            rule,
                        )


def look(
    authorizer: Authorizer,
    example: Example,
    user: str | None,
    purpose: str | None,
    environment: Mapping[str, Any],
    situations: SituationBoard,
) -> list[tuple[str, Degree, str]]:
    """Return what somebody sees of each attribute of an example, and by which rule."""
    message = example.message()
    request = AccessRequest(
        "read",
        example.topic,
        user,
        None,
        purpose,
        message=message,
        environment=environment,
        situations=situations,
    )
    decision = authorizer.authorize(request)
    rule = decision.rule or authorizer.explain(request).rule
    if not decision.allowed:
        return [(it, "none", rule) for it in example.attributes]
    if decision.reshaping is None:
        return [(it, "full", rule) for it in example.attributes]
    return _compare(example, decision, _reshape(authorizer, request, message, decision))


def _reshape(
    authorizer: Authorizer, request: AccessRequest, message: Message, decision: Decision
) -> Reshaped | None:
    access = authorizer.access

    def see() -> Seen:
        s = access.principal(request.user, None).attributes
        return s, access.about(message), request.e, message.t

    try:
        made = decision.reshaping.apply(message, see) if decision.reshaping is not None else None
    except Exception:  # noqa: BLE001 - as at a gateway: whatever goes wrong, nothing leaves
        return None
    return made if isinstance(made, Reshaped) else None


def _compare(
    example: Example, decision: Decision, made: Reshaped | None
) -> list[tuple[str, Degree, str]]:
    """Say what is left of each attribute in what leaves."""
    rule = decision.reshaping.name if decision.reshaping is not None else ""
    if made is None or made.payload is None:
        return [(it, "none", rule) for it in example.attributes]
    before = _attributes_of(example.payload)
    after = _attributes_of(made.payload)
    told: list[tuple[str, Degree, str]] = []
    for name in example.attributes:
        if name not in after:
            told.append((name, "removed", rule))
        elif type(after[name]) is type(before.get(name)) and after[name] == before.get(name):
            told.append((name, "full", decision.rule))
        else:
            told.append((name, "changed", rule))
    return told


def _attributes_of(payload: bytes) -> Mapping[str, Any]:
    found = read_object(payload) or {}
    inner = found.get("payload")
    return inner if isinstance(inner, dict) else found


def look_at_view(definitions: DefinitionSet, view: kinds.View) -> list[tuple[str, Degree, str]]:
    """Return what a view leaves of each field of its stream, and what changes or removes it."""
    stream = definitions.of(kinds.Stream)[view.stream]
    problems: list[Problem] = []
    plan = find_plan(view, stream, hierarchies_of(definitions.definitions), problems)
    if plan is None:
        return [(it.name, "none", f"view {view.name}") for it in stream.fields]
    steps: list[Step] = [*plan.before, *plan.stateful, *plan.after]
    told: list[tuple[str, Degree, str]] = []
    for name, before in plan.schema.items():
        after = plan.output.get(name)
        touching = [it.name for it in steps if name in _touched(it, plan.schema)]
        by = ", ".join(dict.fromkeys(touching)) or f"view {view.name}"
        if after is None:
            told.append((name, "removed", by))
        elif touching or after != before:
            told.append((name, "changed", by))
        else:
            told.append((name, "full", f"view {view.name}"))
    return told


def _touched(step: Step, schema: Iterable[str]) -> set[str]:
    """Return the fields whose values a step of a view may change."""
    if isinstance(step, DifferentialPrivacy):
        return set(schema)  # its rows are figures, not records
    found = set(getattr(step, "keys", ()))
    return found | {it.key for it in getattr(step, "quasi_identifiers", ())}
