"""Events, actions, plans and scenarios, checked against each other and compiled.

Rules that hold here:
- A program exists only for a set that is valid; all that is wrong is told with its place.
- What an action turns into messages must be able to come about: the event of its
  evolution, or one that follows from a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from penstock.cep import program as cep
from penstock.cep.program import Assignment, PacketEvents, RequestEvents
from penstock.cep.scenario_transitions import PLACE
from penstock.definitions.events.operators import InvalidOperatorError, OperatorTable
from penstock.definitions.events.patterns import IT, PatternCompiler
from penstock.definitions.events.subjects import (
    FilterCompiler,
    asks_zone,
    find_subjects,
    find_zones,
)
from penstock.definitions.vocabularies import scope_of
from penstock.errors import InvalidError, Problem, quote
from penstock.lang import (
    BOOL,
    INT,
    STRING,
    TIMESTAMP,
    RecordType,
    Scope,
    compile_expression,
    parse_record,
)
from penstock.lang.scalars import UNIVERSAL
from penstock.model import kinds
from penstock.model.definition import Definition, Reference, marked
from penstock.model.document import Key
from penstock.model.kinds.events import PacketSource, RequestSource

Definitions = Mapping[Key, Definition]
Finding = tuple[Key, Problem]

REQUEST: Final = RecordType(
    (
        ("subject", STRING),
        ("scenario", STRING),
        ("situation", STRING),
        ("event", STRING),
        ("at", INT),
        ("time", TIMESTAMP),
    )
)
"""What expressions of requests see as `r`."""


class _Compiler:
    """Compiles the events of a set, each after those that it is made of."""

    def __init__(self, definitions: Definitions) -> None:
        vocabularies = [it for it in definitions.values() if isinstance(it, kinds.Vocabulary)]
        self.scope = scope_of(vocabularies)
        self.table = OperatorTable()
        self.types: dict[str, int | None] = {}
        self.records: dict[str, RecordType] = {}
        self.problems: dict[str, list[Problem]] = {}
        self._zones = find_zones(definitions)
        self._events = {
            key.name: it for key, it in definitions.items() if isinstance(it, kinds.Event)
        }
        for name in self._in_order():
            event = self._events[name]
            self.table.problems = []
            try:
                self._check_zone(event)
                self.types[name] = self._event(event)
            except InvalidOperatorError:
                self.types[name] = None
            self.problems[name] = self.table.problems

    def _in_order(self) -> Iterator[str]:
        """Yield the events, inputs first; what is part of a cycle is told elsewhere."""
        needed = {name: self._needed(event) for name, event in sorted(self._events.items())}
        done: set[str] = set()
        while True:
            ready = [name for name, of in needed.items() if name not in done and of <= done]
            if not ready:
                return
            yield from ready
            done.update(ready)

    def _needed(self, event: kinds.Event) -> set[str]:
        return {
            name
            for marker, _, name in marked(event)
            if isinstance(marker, Reference) and name in self._events
        }

    def _zone(self, event: kinds.Event) -> str:
        return next(iter(self._zones.get(event.name, ())), UNIVERSAL)

    def _check_zone(self, event: kinds.Event) -> None:
        zones = self._zones.get(event.name, {})
        if len(zones) > 1 and asks_zone(event):
            named = ", ".join(f"{zone} (plan {plan})" for zone, plan in zones.items())
            raise self.table.fault(
                "", f"it counts days, of several time zones: {named}", "let the plans name one zone"
            )

    def _event(self, event: kinds.Event) -> int:
        try:
            record = parse_record(dict(event.attributes))  # type: ignore[arg-type]
        except InvalidError as error:
            message = "; ".join(f"{it.place}: {it.message}" for it in error.problems)
            raise self.table.fault("attributes", message) from None
        self.records[event.name] = record
        if event.packet is not None:
            return self._packet(event, event.packet, record)
        if event.request is not None:
            return self._request(event, event.request, record)
        assert event.pattern is not None  # noqa: S101 - an event has one source
        patterns = PatternCompiler(self.table, self.types, self._zone(event))
        return patterns.compile(event.pattern, record)

    def _packet(self, event: kinds.Event, source: PacketSource, record: RecordType) -> int:
        table, scope = self.table, replace(self.scope, zone=self._zone(event))
        assignments = self._assignments(source.set, scope, "packet.set", record)
        self._check_optional(source.optional, record, "packet.optional")
        try:
            when = compile_expression(source.when, scope, BOOL)
        except InvalidError:
            raise InvalidOperatorError from None  # told by the check of all expressions
        time = source.time and table.compile(source.time, scope, "packet.time")
        if time and time.type not in {TIMESTAMP, INT}:
            raise table.fault(
                "packet.time", f"it is {time.type}", "use a timestamp, or milliseconds as an int"
            )
        own = source.id and table.compile(source.id, scope, "packet.id", STRING)
        # The text names saved state, on which `ahead` has no influence: it came later.
        said = source.model_dump_json(exclude={"ahead"})
        zone = (scope.zone,) if scope.zone != UNIVERSAL and asks_zone(event) else ()
        text = table.text("packet", (), event.name, said, record, *zone)
        return table.add(
            PacketEvents(
                text,
                record,
                source.filters,
                when,
                assignments,
                frozenset(source.optional),
                time or None,
                source.lateness,
                source.ahead,
                own or None,
            )
        )

    def _request(self, event: kinds.Event, source: RequestSource, record: RecordType) -> int:
        roots = [(name, fields) for name, fields in self.scope.roots if name != "t"]
        zone = self._zone(event)
        scope = Scope((*roots, ("r", REQUEST)), zone)
        assignments = self._assignments(source.set, scope, "request.set", record)
        self._check_optional(source.optional, record, "request.optional")
        more = (zone,) if zone != UNIVERSAL and asks_zone(event) else ()
        text = self.table.text("request", (), event.name, source.model_dump_json(), record, *more)
        return self.table.add(RequestEvents(text, record, assignments, frozenset(source.optional)))

    def _check_optional(self, names: tuple[str, ...], record: RecordType, place: str) -> None:
        for name in names:
            if record.field(name) is None:
                raise self.table.fault(
                    place, f"there is no attribute {quote(name)}", "leave it out"
                )

    def _assignments(
        self, texts: Mapping[str, str], scope: Scope, place: str, record: RecordType
    ) -> tuple[Assignment, ...]:
        made = []
        declared = dict(record.fields)
        for name in texts:
            if name not in declared:
                self.table.fault(
                    f"{place}.{name}", f"there is no attribute {quote(name)}", "declare it"
                )
        for name, kind in declared.items():
            if name not in texts:
                self.table.fault(f"attributes.{name}", "nothing sets it", f"add it to {place}")
                continue
            try:
                value = self.table.compile(texts[name], scope, f"{place}.{name}", kind)
            except InvalidOperatorError:
                continue
            made.append(Assignment(name, value))
        if self.table.problems:
            raise InvalidOperatorError
        return tuple(made)

    def action(self, action: kinds.Action) -> cep.CompiledAction | None:
        """Compile an action, or note what is wrong with it."""
        record = self.records.get(action.event)
        if record is None:
            return None
        scope = Scope(((IT, record),))
        self.table.problems = []
        for name in PLACE.findall(action.topic):
            if record.field(name) != STRING:
                message = f"{quote(name)} is no string of {action.event}"
                self.table.fault("topic", message, "name an attribute that is a string")
        assignments = []
        for name, text in action.payload.items():
            try:
                assignments.append(
                    Assignment(name, self.table.compile(text, scope, f"payload.{name}"))
                )
            except InvalidOperatorError:
                continue
        return cep.CompiledAction(action.name, action.event, action.topic, tuple(assignments))

    def follows_request(self, name: str) -> bool:
        """Tell whether events of a type can follow from a request."""
        index = self.types.get(name)
        waiting = [] if index is None else [index]
        while waiting:
            operator = self.table.operators[waiting.pop()]
            if isinstance(operator, RequestEvents):
                return True
            waiting.extend(operator.inputs)
        return False


def check_events(events: Iterable[kinds.Event], definitions: Definitions) -> Iterator[Finding]:
    """Yield what is wrong with events."""
    compiler = _Compiler(definitions)
    for event in events:
        for problem in compiler.problems.get(event.name, ()):
            yield event.key, problem


def check_actions(actions: Iterable[kinds.Action], definitions: Definitions) -> Iterator[Finding]:
    """Yield what is wrong with actions."""
    compiler = _Compiler(definitions)
    for action in actions:
        compiler.action(action)
        for problem in compiler.table.problems:
            yield action.key, problem


def check_plans(plans: Iterable[kinds.Plan], definitions: Definitions) -> Iterator[Finding]:
    """Yield actions of plans that would never publish anything."""
    compiler = _Compiler(definitions)
    for plan in plans:
        for number, evolution in enumerate(plan.evolutions):
            for place, name in enumerate(evolution.actions):
                action = definitions.get(Key("action", name))
                if not isinstance(action, kinds.Action) or compiler.types.get(action.event) is None:
                    continue
                if action.event != evolution.event and not compiler.follows_request(action.event):
                    message = (
                        f"{quote(name)} would never publish: {quote(action.event)} does not "
                        "follow from a request"
                    )
                    own = f"{evolution.event}, or " if evolution.event else ""
                    fix = f"let the action use {own}a type over requests"
                    way = f"evolutions[{number}].actions[{place}]"
                    yield plan.key, Problem(way, message, fix)


def check_scenarios(
    scenarios: Iterable[kinds.Scenario], definitions: Definitions
) -> Iterator[Finding]:
    """Yield events that do not tell whom they are about."""
    compiler = _Compiler(definitions)
    for scenario in scenarios:
        plan = definitions.get(Key("plan", scenario.plan))
        if not isinstance(plan, kinds.Plan):
            continue
        for name in sorted({it.event for it in plan.evolutions if it.event is not None}):
            record = compiler.records.get(name)
            if record is not None and record.field(scenario.attribute) != STRING:
                message = f"the event {quote(name)} has no string {quote(scenario.attribute)}"
                yield scenario.key, Problem("attribute", message, "name one that all have")


def compile_program(definitions: Definitions) -> cep.Program:
    """Return what an engine carries out; raise InvalidError where events are faulty."""
    compiler = _Compiler(definitions)
    problems = [
        Problem(f"event/{name}.{it.place}", it.message, it.fix)
        for name, found in compiler.problems.items()
        for it in found
    ]
    if problems:
        raise InvalidError("events", problems)
    actions, plans, scenarios = {}, {}, {}
    filters = FilterCompiler(definitions, compiler.scope)
    for definition in definitions.values():
        if isinstance(definition, kinds.Action):
            made = compiler.action(definition)
            if made is not None:
                actions[definition.name] = made
        elif isinstance(definition, kinds.Plan):
            plans[definition.name] = _plan(definition)
        elif isinstance(definition, kinds.Scenario):
            scenarios[definition.name] = cep.CompiledScenario(
                definition.name,
                definition.plan,
                definition.attribute,
                find_subjects(definition, definitions),
                filters.find(definition),
            )
    return cep.Program(
        operators=tuple(compiler.table.operators),
        types={name: index for name, index in compiler.types.items() if index is not None},
        actions=actions,
        plans=plans,
        scenarios=scenarios,
    )


def _plan(plan: kinds.Plan) -> cep.CompiledPlan:
    return cep.CompiledPlan(
        plan.name,
        {situation.id: situation.level for situation in plan.situations},
        tuple(
            cep.CompiledEvolution(it.event, it.source, it.target, it.actions, it.priority, it.after)
            for it in plan.evolutions
        ),
    )
