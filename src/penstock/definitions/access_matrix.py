"""The access matrix: who sees which attribute of which stream, for what, in which situation.

    example ──▶ transformations on publication ──▶ the message, and what it is turned into
                                                           │
    subjects, purposes, situations ──▶ authorizer ──▶ transformations ──▶ attributes
    subjects, views ──▶ roles at Kafka ──▶ the plan of the view ──▶ attributes

Rules that hold here:
- The authorizer decides and transformations are carried out, on an example of each stream: a cell
  says what a gateway does with this very message. The example is told with the answer.
- Messages have the type of a stream by its topics (`from`), or by the transformations that name it.
- An attribute is seen `full`, `changed` (what leaves has another value), `removed` (what leaves has
  it not), `added` (what was published had it not) or `none` (nothing leaves). Each names the rule.
- What a level of the topic tells is seen in full by whoever gets the message on that topic,
  whatever its payload says.
- What is turned into another type on publication has cells of its own, of the type it becomes.
- In a situation it is the people that the example is about who are in it, and nobody else.
- What a view leaves of an attribute follows from its plan, not from an example.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from penstock.definitions.differential_privacy import DifferentialPrivacy
from penstock.definitions.set import DefinitionSet
from penstock.definitions.views import Step, find_plan, hierarchies_of
from penstock.errors import Problem, UsageError, quote
from penstock.json_text import read_object
from penstock.model import kinds
from penstock.model.kinds.fields import named_levels, plain_filter
from penstock.model.kinds.interaction import Conversion
from penstock.model.topics import check_topic, matches, overlaps
from penstock.policy.access.emergencies import SituationBoard
from penstock.policy.access.principals import ANONYMOUS
from penstock.policy.access.requests import AccessRequest, Message
from penstock.policy.authorizer import Authorizer
from penstock.policy.decision import Decision, Reshaped, Seen
from penstock.policy.event_types import EventTypes

Degree = Literal["full", "changed", "removed", "added", "none"]
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
    told: frozenset[str] = frozenset()
    """Attributes that levels of the topic tell."""
    converted: bool = False
    """Whether messages come to this topic by a conversion on publication alone."""

    def message(self, payload: bytes, publisher: str | None) -> Message:
        """Return a message on its topic as decisions see it."""
        rest = {"qos": 1, "retain": False, "size": len(payload), "properties": {}}
        return Message(self.topic, payload, user=publisher, rest=rest)


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the broker, and so everybody else, has of an example; None: nothing."""

    example: Example
    payload: bytes | None
    before: Mapping[str, Any]
    """The attributes as they were published."""
    rule: str = ""
    """What changed or withheld it."""


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
    publisher: str | None = None
    """Who publishes the examples; None: nobody who has logged in."""


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
    wanted = set(question.streams) or set(streams)
    found: dict[tuple[str, str], Example] = {}
    for topic, name, converted in (
        _list_asked(definitions, types, question.topics)
        if question.topics
        else _list_all(definitions, types)
    ):
        if name in wanted and (topic, name) not in found:
            made = _make_example(types, streams[name], topic, question.payload, converted=converted)
            found[topic, name] = made
    return list(found.values())


Place = tuple[str, str, bool]
"""A topic, the stream that is the type there, and whether messages come there by conversion."""


def _list_asked(
    definitions: DefinitionSet, types: EventTypes, topics: Iterable[str]
) -> Iterator[Place]:
    for topic in topics:
        places = [(check_topic(topic), it.name, False) for it in types.of(topic)]
        for rule in definitions.of(kinds.Transformation).values():
            if matches(rule.filter, topic):
                places.append((topic, rule.stream, False))
            if rule.into is not None and matches(_put(rule.into, "+"), topic):
                places.append((topic, rule.into.stream, True))
        if not places:
            raise UsageError(
                f"nothing says which attributes messages of {quote(topic)} have",
                fix="name a topic that feeds a stream (`from`), or that a transformation is about",
            )
        yield from places


def _list_all(definitions: DefinitionSet, types: EventTypes) -> Iterator[Place]:
    streams = definitions.of(kinds.Stream)
    for name, stream in streams.items():
        for pattern in stream.patterns:
            yield _fill(stream, pattern), name, False
    rules = definitions.of(kinds.Transformation).values()
    for rule in rules:
        topic = _fill(streams[rule.stream], rule.filter)
        if not any(it.name == rule.stream for it in types.of(topic)) and not any(
            overlaps(plain_filter(it), rule.filter) for it in streams[rule.stream].patterns
        ):
            yield topic, rule.stream, False
    for rule in rules:
        if rule.into is not None and rule.at == "publication":
            samples = {it.name: str(_SAMPLES[it.type]) for it in streams[rule.into.stream].fields}
            yield _put(rule.into, samples), rule.into.stream, True


def _put(into: Conversion, values: Mapping[str, str] | str) -> str:
    """Return the topic of a conversion with these values of fields in it."""
    topic = into.topic
    for name in into.places:
        topic = topic.replace(f"{{{name}}}", values if isinstance(values, str) else values[name])
    return topic


def _fill(stream: kinds.Stream, pattern: str) -> str:
    types = {it.name: it.type for it in stream.fields}
    parts = []
    for level in pattern.split("/"):
        kind = types.get(level[1:], "string") if level.startswith("+") else ""
        parts.append(str(_SAMPLES[kind]) if kind else "example" if level == "#" else level)
    return "/".join(parts)


def _make_example(
    types: EventTypes,
    stream: kinds.Stream,
    topic: str,
    given: Mapping[str, Any],
    *,
    converted: bool,
) -> Example:
    laid_out = next((it.attributes for it in types.of(topic) if it.name == stream.name), ())
    told = {it.name: it.fixed for it in laid_out if isinstance(it.fixed, str | int)}
    attributes = tuple(it.name for it in laid_out or stream.fields)
    said = {it.name: _SAMPLES[it.type] for it in stream.fields} | told
    said = {name: given.get(name, value) for name, value in said.items() if name in attributes}
    shown: Any = {"payload": said} if stream.format == "connect" else said
    people = [str(said[stream.subject])] if stream.subject in said else []
    for pattern in stream.patterns:
        levels = named_levels(pattern)
        parts = topic.split("/")
        people += [parts[place] for place in levels if place < len(parts)]
    payload = json.dumps(shown, ensure_ascii=False).encode()
    return Example(
        stream.name,
        topic,
        payload,
        attributes,
        tuple(dict.fromkeys(people)),
        frozenset(told) - {stream.adds.topic if stream.adds is not None else None},
        converted,
    )


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
    examples = [
        replace(it, people=tuple(_find_people(authorizer, it, question))) for it in examples
    ]
    held: dict[tuple[str, str], dict[str, Arrival]] = {(it.topic, it.stream): {} for it in examples}
    for situation, scenario, word in situations:
        arrivals: list[Arrival] = []
        for example in examples:
            board = SituationBoard([(scenario, it, word) for it in example.people if scenario])
            if example.converted:
                arrivals.append(Arrival(example, example.payload, _attributes_of(example.payload)))
            else:
                arrivals += publish(authorizer, definitions, example, question, board)
        # What a conversion makes of an example goes before what was made up for its topic.
        arrivals.sort(key=lambda it: (not it.example.converted, it.example not in examples))
        for arrival in arrivals:
            key = (arrival.example.topic, arrival.example.stream)
            held.setdefault(key, {})[situation] = arrival
    for found in held.values():
        for situation, scenario, word in situations:
            if situation in found:
                example = found[situation].example
                board = SituationBoard([(scenario, it, word) for it in example.people if scenario])
                for subject in subjects:
                    for purpose in purposes:
                        user = None if subject == ANONYMOUS else subject
                        seen = look(authorizer, found[situation], user, purpose, question, board)
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


def _find_people(authorizer: Authorizer, example: Example, question: Question) -> dict[str, None]:
    """Return whom situations are about: also whom rules know by the attributes of the message."""
    about = authorizer.access.about(example.message(example.payload, question.publisher))
    named = (it for it in about.values() if isinstance(it, str))
    return dict.fromkeys((*example.people, *named))


def publish(
    authorizer: Authorizer,
    definitions: DefinitionSet,
    example: Example,
    question: Question,
    situations: SituationBoard,
) -> list[Arrival]:
    """Return what an example is when it was published, and what it is turned into beside."""
    before = _attributes_of(example.payload)
    interaction, access = authorizer.interaction, authorizer.access
    if not interaction.concerns("write", example.topic):
        return [Arrival(example, example.payload, before)]
    message = example.message(example.payload, question.publisher)
    principal = access.principal(question.publisher, None)
    seen = (principal.attributes, access.about(message), question.environment, message.t)
    decision = interaction.decide("write", principal, message, seen, situations)
    if decision is None or (decision.allowed and decision.reshaping is None):
        return [Arrival(example, example.payload, before)]
    made: Reshaped | str | None = None
    if decision.reshaping is not None:
        try:
            made = decision.reshaping.apply(message, lambda: seen)
        except Exception:  # noqa: BLE001 - as at a gateway: whatever goes wrong, nothing leaves
            made = None
    if not isinstance(made, Reshaped):
        return [Arrival(example, None, before, decision.rule)]
    transformations = definitions.of(kinds.Transformation)
    rules = [transformations[it.partition(" ")[2]] for it in decision.rule.split(", ")]
    converted = [(it.key, it.into) for it in rules if it.into is not None]
    arrivals = [Arrival(example, made.payload, before, decision.rule)]
    for (key, into), (topic, payload) in zip(converted, made.copies, strict=True):
        said = _attributes_of(payload)
        copy = Example(into.stream, topic, payload, tuple(said), example.people, converted=True)
        # An attribute of both is the one that was published.
        own = {name: before.get(name, it) for name, it in said.items()}
        arrivals.append(Arrival(copy, payload, own, f"{key.kind} {key.name}"))
    return arrivals


def look(
    authorizer: Authorizer,
    arrival: Arrival,
    user: str | None,
    purpose: str | None,
    question: Question,
    situations: SituationBoard,
) -> list[tuple[str, Degree, str]]:
    """Return what somebody sees of each attribute of a message, and by which rule."""
    example = arrival.example
    if arrival.payload is None:
        return [(it, "none", arrival.rule) for it in example.attributes]
    message = example.message(arrival.payload, question.publisher)
    request = AccessRequest(
        "read",
        example.topic,
        user,
        None,
        purpose,
        message=message,
        environment=question.environment,
        situations=situations,
    )
    decision = authorizer.authorize(request)
    rule = decision.rule or authorizer.explain(request).rule
    if not decision.allowed:
        return [(it, "none", rule) for it in example.attributes]
    left, by = arrival.payload, ""
    told = example.told
    if decision.reshaping is not None:
        by = decision.reshaping.name
        made = _reshape(authorizer, request, message, decision)
        if made is None or made.payload is None:
            return [(it, "none", by) for it in example.attributes]
        left = made.payload
        if made.topic is not None:
            told = frozenset()
    return _compare(arrival, left, told, (rule, by))


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
    arrival: Arrival, payload: bytes, told: frozenset[str], rules: tuple[str, str]
) -> list[tuple[str, Degree, str]]:
    """Say what is left of each attribute in what leaves, by what grants and what changes it."""
    granting, changing = rules
    before, sent = arrival.before, _attributes_of(arrival.payload or b"")
    left = _attributes_of(payload)
    found: list[tuple[str, Degree, str]] = []
    attributes = arrival.example.attributes
    for name in dict.fromkeys((*attributes, *left)):
        by = [arrival.rule] if not _is_same(name, before, sent) else []
        by += [changing] if not _is_same(name, sent, left) else []
        degree: Degree = "changed"
        if name in told or not by:
            degree = "full"
        elif name not in left:
            degree = "removed"
        elif name not in before:
            degree = "added"
        found.append((name, degree, granting if degree == "full" else ", ".join(by)))
    return found


def _is_same(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    held = [it.get(name) for it in (one, other)]
    return (
        (name in one) is (name in other) and type(held[0]) is type(held[1]) and held[0] == held[1]
    )


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
