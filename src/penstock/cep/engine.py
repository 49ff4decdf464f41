"""The engine: packets and moments in, events, transitions and publications out.

    prepare(packet) ── binding, nothing changes ──→ PreparedStep ── commit ──→ StepResult
                                                           └── dropped: no trace
    advance(at)   ── timers that are due ─────────────────────────────→ StepResult
    set_situation(…) ── by hand ─────────────────────────────────────────→ StepResult

Rules that hold here:
- A packet is bound before it is authorised and takes effect after: a publisher who may
  not publish changes nothing.
- Time never goes back: a step at an earlier time happens at the latest time known. Timers
  up to a step's time come first, each at its own time.
- What happens in a step is ordered by time, then by sequence, then by the plan's priority.
  An event that no longer holds when its turn comes leads nowhere.
- A case that somebody holds by hand moves by hand and by time alone.
- Steps are deterministic: a snapshot and the records of the steps since give the same state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from penstock.cep import steps
from penstock.cep.aggregates import AggregateNode
from penstock.cep.context import (
    DURATIONS,
    HOLDS,
    NEVER,
    EngineContext,
    EngineLimits,
    ErasedPeople,
    Row,
    StateError,
    Values,
    decode_snapshot,
    encode_snapshot,
)
from penstock.cep.event_binding import (
    INCOMPLETE,
    BoundEvent,
    EventBinder,
    Packet,
    PrimitiveType,
    RequestType,
)
from penstock.cep.network import Network
from penstock.cep.operators import NO_ROWS, SourceNode
from penstock.cep.presence import Presence
from penstock.cep.program import PacketEvents, Program, RequestEvents
from penstock.cep.scenario_instances import ScenarioInstances
from penstock.cep.scenario_transitions import ScenarioRunner
from penstock.cep.steps import DetectedEvent, StepResult, Transition, TransitionCause
from penstock.errors import UsageError

VERSION: Final = 2


class PreparedStep:
    """The events that a packet is bound to; nothing has changed yet."""

    __slots__ = ("_engine", "at", "bound", "packet")

    def __init__(self, engine: Engine, packet: Packet, at: int, bound: list[BoundEvent]) -> None:
        self._engine: Engine | None = engine
        self.packet = packet
        self.at = at
        self.bound = bound

    def commit(self) -> StepResult:
        """Let the packet take effect; once."""
        engine = self._engine
        if engine is None:
            raise UsageError("a packet took effect already", fix="prepare it anew")
        self._engine = None
        return engine.apply(self.packet, self.bound, self.at)

    def record(self) -> bytes:
        """Return the record of the step for the journal."""
        return steps.record_packet(self.packet, self.at, self.bound)


class Engine:
    """Detects events and follows scenarios for one program."""

    def __init__(self, program: Program, limits: EngineLimits | None = None) -> None:
        self.program = program
        self._context = EngineContext(limits or EngineLimits())
        self._network = Network(program, self._context)
        self._nodes = self._network.nodes
        self._seq = 0
        self._ids: dict[str, None] = {}
        self._binder = EventBinder(self._context)
        requests: list[RequestType] = []
        for name, index in sorted(program.types.items()):
            spec, node = program.operators[index], self._nodes[index]
            if isinstance(spec, PacketEvents) and isinstance(node, SourceNode):
                made = PrimitiveType(name, spec, node)
                made.reach = self._network.downstream(index)
                self._binder.types[name] = made
                for filter_ in spec.filters:
                    self._binder.add(filter_, made)
            elif isinstance(spec, RequestEvents) and isinstance(node, SourceNode):
                requests.append(RequestType(spec, node))
        self._instances = ScenarioInstances(program, self._context)
        self._driving = frozenset(self._instances.attributes)
        self._context.transition_operators = self._network.find_upstream(self._driving)
        self._visits = self._network.find_visits(self._driving)
        for node in self._nodes:
            if isinstance(node, AggregateNode):
                node.follow(self._instances.attributes)
        for made in self._binder.types.values():
            made.feeders = self._network.feeders(made.node.index)
            made.drives = made.name in self._driving
        self._runner = ScenarioRunner(
            program, self._context, self._network, self._instances, self._visits, requests
        )

    # --- state of scenarios and time ---

    @property
    def now(self) -> int:
        """The latest time known, in milliseconds since 1970."""
        return self._context.now

    @property
    def counts(self) -> dict[str, int]:
        """How often something was ignored or dropped, by reason."""
        return dict(self._context.counts)

    @property
    def presences(self) -> tuple[Presence, ...]:
        """Who was where, as far as visits keep it."""
        return tuple(node.presence for node in self._visits)

    def current(self, scenario: str, subject: str) -> str | None:
        """Return the situation of a subject; None where the scenario is inactive."""
        instance = self._instances.get(scenario)
        return None if instance is None else instance.current.get(subject)

    def situations(self) -> Iterable[tuple[str, str, str, int]]:
        """Yield scenario, subject, situation and since when, of all that are active."""
        for name, instance in self._instances:
            for subject, situation in instance.current.items():
                yield name, subject, situation, instance.since[subject]

    def next_timer(self) -> int | None:
        """Return when time alone may change something."""
        return _moment(self._context.next_timer)

    def next_deadline(self) -> int | None:
        """Return when time alone may change a situation."""
        return _moment(self._context.next_deadline)

    # --- steps ---

    def prepare(self, packet: Packet, at: int) -> PreparedStep:
        """Bind a packet to event types; nothing changes before it is committed."""
        bound: list[BoundEvent] = []
        s, o, e, t = packet.s, packet.o, packet.e, packet.t
        for kind in self._binder.find(packet.topic):
            if not kind.follows_topic and kind.when(s, o, e, t) is not True:
                continue
            values = kind.values_of(s, o, e, t)
            if values is None:
                bound.append((kind, {}, None, INCOMPLETE))
            elif kind.time is None and kind.id is None:
                bound.append((kind, values, None, None))
            else:
                bound.append(self._bind_identified(kind, values, packet))
        return PreparedStep(self, packet, at, bound)

    def _bind_identified(self, kind: PrimitiveType, values: Values, packet: Packet) -> BoundEvent:
        """Bind an event that has a time or an identifier of its own."""
        happened = kind.happened(packet)
        own = None
        if kind.id is not None:
            own = kind.id(packet.s, packet.o, packet.e, packet.t)
        if (kind.time is not None and happened is None) or (kind.id is not None and own is None):
            return kind, {}, None, INCOMPLETE
        return kind, values, happened, own and f"{kind.name}/{own}"

    def apply(self, packet: Packet, bound: list[BoundEvent], at: int) -> StepResult:
        """Let the events of a packet take effect."""
        context = self._context
        if at < context.now or context.next_timer <= at:
            result = self._begin(at, packet.depth)
        else:
            context.now = at
            self._seq = seq = self._seq + 1
            result = StepResult(at, packet.depth, seq)
        if packet.id is not None and not self._remember(packet.id):
            self._context.counts["duplicates"] += 1
            return result
        if len(bound) == 1:
            self._apply_single(bound[0], packet, result)
        elif bound:
            detected: list[DetectedEvent] = []
            for kind, values, happened, own in bound:
                row = self._accept(kind, values, happened, own)
                if row is not None:
                    kind.node.emit(detected, [row], NO_ROWS, NO_ROWS)
            self._network.propagate(detected)
            self._runner.follow(detected, packet, result)
        return result

    def _apply_single(self, bound: BoundEvent, packet: Packet, result: StepResult) -> None:
        """Apply the only event of a packet, on the fast path."""
        kind, values, happened, own = bound
        context = self._context
        if happened is None and own is None:
            context.uid = uid = context.uid + 1
            row = Row(uid, context.now, values)
        else:
            accepted = self._accept(kind, values, happened, own)
            if accepted is None:
                return
            row = accepted
        detected: list[DetectedEvent] = []
        quiet = result.detected
        (detected if kind.drives else quiet).append((kind.name, row))
        pending = False
        if kind.feeders:
            for feed in kind.feeders:
                if feed(row, detected, quiet):
                    pending = True
        else:
            kind.node.emit([], [row], NO_ROWS, NO_ROWS)
            pending = True
        if pending:
            for reached in kind.reach:
                if reached.inbox:
                    reached.run(detected)
        if detected:
            self._runner.follow(detected, packet, result)

    def advance(self, at: int) -> StepResult:
        """Let time pass: fire the timers that are due."""
        return self._begin(at, 0)

    def set_situation(
        self, scenario: str, subject: str, situation: str | None, at: int, hold: int = 0
    ) -> StepResult:
        """Put a subject into a situation by hand, or end it; no action is carried out.

        With `hold`, in milliseconds, no event moves it for that long; then it ends.
        """
        instance = self._instances.require(scenario)
        instance.check(subject, situation, hold)
        result = self._begin(at, 0)
        source = instance.current.get(subject)
        made = Transition(
            scenario, subject, source, situation, result.at, cause=TransitionCause.HAND
        )
        self._runner.move(instance, made, result, hold)
        return result

    def _begin(self, at: int, depth: int) -> StepResult:
        context = self._context
        if at < context.now:
            context.counts["clock_back"] += 1
            at = context.now
        self._seq += 1
        result = StepResult(at, depth, self._seq)
        while context.next_timer <= at:
            self._fire(context.next_timer, result)
        context.now = at
        return result

    def _fire(self, at: int, result: StepResult) -> None:
        """Wake the operators whose timers are due at one moment, in one pass."""
        self._context.now = max(at, self._context.now)
        over: list[tuple[str, str]] = []
        for index, key in self._context.pop_due(at):
            if index == HOLDS:
                scenario, subject = key
                result.add_transition(self._instances.require(scenario).release(subject))
            elif index == DURATIONS:
                over.append(key)
            else:
                self._nodes[index].woken.append(key)
        detected: list[DetectedEvent] = []
        self._network.propagate(detected)
        if detected:
            self._runner.follow(detected, None, result)
        for scenario, subject in over:
            self._runner.expire(self._instances.require(scenario), subject, result)

    def _accept(
        self, kind: PrimitiveType, values: Values, happened: int | None, own: str | None
    ) -> Row | None:
        """Return the row of an event, unless it is incomplete, repeated, late or far ahead."""
        context = self._context
        now = context.now
        if own is not None:
            if own == INCOMPLETE:
                context.counts["incomplete"] += 1
                return None
            if own in self._ids:
                context.counts["duplicates"] += 1
                return None
        if happened is None:
            happened = now
        elif happened > now + kind.ahead:
            context.counts["far_ahead"] += 1
            return None
        elif happened > now:
            context.counts["ahead"] += 1
            happened = now
        elif happened < now - kind.lateness:
            context.counts["late"] += 1
            return None
        if own is not None:
            self._remember(own)
        return context.row(happened, values)

    def _remember(self, identifier: str) -> bool:
        if identifier in self._ids:
            return False
        self._ids[identifier] = None
        if len(self._ids) > self._context.limits.ids:
            del self._ids[next(iter(self._ids))]
        return True

    def forget(self, names: Iterable[str], attributes: Iterable[str]) -> Counter[str]:
        """Forget people's events; return how many groups and rows were about each of them.

        Attributes name people that are called so, and those by which scenarios tell their
        subjects. What follows from what is gone no longer holds, but leads nowhere: no situation
        begins or ends by it. Situations stay.
        """
        own = {instance.attribute for _, instance in self._instances}
        whose = {name for node in self._visits for name in (node.who, "other")}
        people = ErasedPeople(frozenset(names), frozenset((*attributes, *own, *whose)))
        nowhere: list[DetectedEvent] = []
        for node in self._nodes:
            node.forget(people)
            if node.inbox or node.woken:
                node.run(nowhere)
        return people.found

    # --- snapshots and replay ---

    def replay(self, record: bytes) -> StepResult:
        """Replay a step from its record; the result is the one that it had."""
        match steps.read_record(record, self._binder.types):
            case steps.PacketStep(packet, at, bound):
                return self.apply(packet, bound, at)
            case steps.SetStep(scenario, subject, situation, at, hold):
                return self.set_situation(scenario, subject, situation, at, hold)
            case steps.TimeStep(at):
                return self.advance(at)

    def save(self) -> bytes:
        """Return a snapshot of all state."""
        context = self._context
        nodes = {
            text: state
            for text, node in self._network.states()
            if (state := node.save()) is not None
        }
        return encode_snapshot(
            {
                "version": VERSION,
                "now": context.now,
                "uid": context.uid,
                "seq": self._seq,
                "counts": context.counts,
                "ids": list(self._ids),
                "nodes": nodes,
                "scenarios": {name: instance.save() for name, instance in self._instances},
                "held": {
                    name: instance.held for name, instance in self._instances if instance.held
                },
            }
        )

    @classmethod
    def load(cls, program: Program, data: bytes, limits: EngineLimits | None = None) -> Engine:
        """Return an engine with the state of a snapshot.

        The program may have changed since: operators that it still has keep their state,
        new ones begin without, and what others knew is gone.
        """
        state = decode_snapshot(data)
        if not isinstance(state, dict) or state.get("version") != VERSION:
            raise StateError(
                "a snapshot of events has another format", fix="start without it, or go back"
            )
        engine = cls(program, limits)
        context = engine._context
        context.now, context.uid, engine._seq = state["now"], state["uid"], state["seq"]
        context.counts.update(state["counts"])
        engine._ids = dict.fromkeys(state["ids"])
        for text, node in engine._network.states():
            if text in state["nodes"]:
                node.load(state["nodes"][text])
        for name, instance in engine._instances:
            held = state.get("held", {})  # snapshots of earlier versions have none
            instance.load(state["scenarios"].get(name, []), held.get(name, {}))
        return engine


def _moment(at: int) -> int | None:
    return None if at == NEVER else at
