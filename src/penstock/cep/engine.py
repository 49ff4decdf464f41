"""The engine: packets and moments in, events, transitions and publications out.

    offer(packet) ── binding, nothing changes ──→ Tentative ── commit ──→ Outcome
                                                           └── dropped: no trace
    advance(at)   ── timers that are due ─────────────────────────────→ Outcome
    set(…)        ── by hand ─────────────────────────────────────────→ Outcome

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

from collections.abc import Iterable
from typing import Final

from penstock.cep import state_codec, step_log
from penstock.cep.algebra import Packet as PacketType
from penstock.cep.algebra import Request
from penstock.cep.contact_tracing.presence import Presence
from penstock.cep.event_binding import INCOMPLETE, Binder, Bound, BoundType, Packet, RequestType
from penstock.cep.network import Network
from penstock.cep.operators.aggregates import AggregateNode
from penstock.cep.operators.nodes import NONE, SourceNode
from penstock.cep.program import Program
from penstock.cep.rows import HOLDS, NEVER, Limits, Row, Shared, Values
from penstock.cep.scenarios.instance_index import Courses
from penstock.cep.scenarios.transitions import Evolving
from penstock.cep.step_result import By, Detection, Outcome, Transition
from penstock.errors import UsageError

VERSION: Final = 2


class Tentative:
    """What a packet would be taken for; nothing has changed yet."""

    __slots__ = ("_engine", "at", "bound", "packet")

    def __init__(self, engine: Engine, packet: Packet, at: int, bound: list[Bound]) -> None:
        self._engine: Engine | None = engine
        self.packet = packet
        self.at = at
        self.bound = bound

    def commit(self) -> Outcome:
        """Let the packet take effect; once."""
        engine = self._engine
        if engine is None:
            raise UsageError("a packet took effect already", fix="offer it anew")
        self._engine = None
        return engine.take(self.packet, self.bound, self.at)

    def record(self) -> bytes:
        """Return what the log keeps of the step, so that it can be repeated."""
        return step_log.write_packet(self.packet, self.at, self.bound)


class Engine:
    """Detects events and follows scenarios for one program."""

    def __init__(self, program: Program, limits: Limits | None = None) -> None:
        self.program = program
        self._shared = Shared(limits or Limits())
        self._network = Network(program, self._shared)
        self._nodes = self._network.nodes
        self._seq = 0
        self._ids: dict[str, None] = {}
        self._binder = Binder(self._shared)
        requests: list[RequestType] = []
        for name, index in sorted(program.types.items()):
            spec, node = program.operators[index], self._nodes[index]
            if isinstance(spec, PacketType) and isinstance(node, SourceNode):
                made = BoundType(name, spec, node)
                made.reach = self._network.reach(index)
                self._binder.types[name] = made
                for filter_ in spec.filters:
                    self._binder.add(filter_, made)
            elif isinstance(spec, Request) and isinstance(node, SourceNode):
                requests.append(RequestType(spec, node))
        self._courses = Courses(program, self._shared)
        self._driving = frozenset(self._courses.attributes)
        self._shared.moving = self._network.find_leading(self._driving)
        self._visits = self._network.find_visits(self._driving)
        for node in self._nodes:
            if isinstance(node, AggregateNode):
                node.follow(self._courses.attributes)
        for made in self._binder.types.values():
            made.feeders = self._network.feeders(made.node.index)
            made.drives = made.name in self._driving
        self._evolving = Evolving(
            program, self._shared, self._network, self._courses, self._visits, requests
        )

    # Asking

    @property
    def now(self) -> int:
        """The latest time known, in milliseconds since 1970."""
        return self._shared.now

    @property
    def counts(self) -> dict[str, int]:
        """How often something was ignored or dropped, by reason."""
        return dict(self._shared.counts)

    @property
    def presences(self) -> tuple[Presence, ...]:
        """Who was where, as far as visits keep it."""
        return tuple(node.presence for node in self._visits)

    def current(self, scenario: str, subject: str) -> str | None:
        """Return the situation of a subject; None where the scenario is inactive."""
        course = self._courses.get(scenario)
        return None if course is None else course.current.get(subject)

    def situations(self) -> Iterable[tuple[str, str, str, int]]:
        """Yield scenario, subject, situation and since when, of all that are active."""
        for name, course in self._courses:
            for subject, situation in course.current.items():
                yield name, subject, situation, course.since[subject]

    def held_until(self, scenario: str, subject: str) -> int | None:
        """Return until when a subject is held in its situation by hand, if so."""
        course = self._courses.get(scenario)
        return None if course is None else course.held.get(subject)

    def next_timer(self) -> int | None:
        """Return when time alone may change something."""
        return _moment(self._shared.due)

    def next_move(self) -> int | None:
        """Return when time alone may change a situation."""
        return _moment(self._shared.moves)

    # Steps

    def offer(self, packet: Packet, at: int) -> Tentative:
        """Bind a packet to event types; nothing changes before it is committed."""
        bound: list[Bound] = []
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
                bound.append(self._bind_closely(kind, values, packet))
        return Tentative(self, packet, at, bound)

    def _bind_closely(self, kind: BoundType, values: Values, packet: Packet) -> Bound:
        """Bind an event that tells its own time or identifier."""
        happened = kind.happened(packet)
        own = None
        if kind.id is not None:
            own = kind.id(packet.s, packet.o, packet.e, packet.t)
        if (kind.time is not None and happened is None) or (kind.id is not None and own is None):
            return kind, {}, None, INCOMPLETE
        return kind, values, happened, own and f"{kind.name}/{own}"

    def take(self, packet: Packet, bound: list[Bound], at: int) -> Outcome:
        """Let the events of a packet take effect."""
        shared = self._shared
        if at < shared.now or shared.due <= at:
            outcome = self._begin(at, packet.depth)
        else:
            shared.now = at
            self._seq = seq = self._seq + 1
            outcome = Outcome(at, packet.depth, seq)
        if packet.id is not None and not self._remember(packet.id):
            self._shared.counts["duplicates"] += 1
            outcome.duplicate = True
            return outcome
        if len(bound) == 1:
            self._take_one(bound[0], packet, outcome)
        elif bound:
            detected: list[Detection] = []
            for kind, values, happened, own in bound:
                row = self._accept(kind, values, happened, own)
                if row is not None:
                    kind.node.emit(detected, [row], NONE, NONE)
            self._network.wave(detected)
            self._evolving.follow(detected, packet, outcome)
        return outcome

    def _take_one(self, bound: Bound, packet: Packet, outcome: Outcome) -> None:
        """Let a packet's only event take effect, with no more ado than it needs."""
        kind, values, happened, own = bound
        shared = self._shared
        if happened is None and own is None:
            shared.uid = uid = shared.uid + 1
            row = Row(uid, shared.now, values)
        else:
            accepted = self._accept(kind, values, happened, own)
            if accepted is None:
                return
            row = accepted
        detected: list[Detection] = []
        quiet = outcome.detected
        (detected if kind.drives else quiet).append((kind.name, row))
        pending = False
        if kind.feeders:
            for feed in kind.feeders:
                if feed(row, detected, quiet):
                    pending = True
        else:
            kind.node.emit([], [row], NONE, NONE)
            pending = True
        if pending:
            for reached in kind.reach:
                if reached.inbox:
                    reached.run(detected)
        if detected:
            self._evolving.follow(detected, packet, outcome)

    def advance(self, at: int) -> Outcome:
        """Let time pass: fire the timers that are due."""
        return self._begin(at, 0)

    def set(
        self, scenario: str, subject: str, situation: str | None, at: int, hold: int = 0
    ) -> Outcome:
        """Put a subject into a situation by hand, or end it; no action is carried out.

        With `hold`, in milliseconds, no event moves it for that long; then it ends.
        """
        course = self._courses.take(scenario)
        course.check(subject, situation, hold)
        outcome = self._begin(at, 0)
        source = course.current.get(subject)
        made = Transition(scenario, subject, source, situation, outcome.at, by=By.HAND)
        self._evolving.move(course, made, outcome, hold)
        return outcome

    def _begin(self, at: int, depth: int) -> Outcome:
        shared = self._shared
        if at < shared.now:
            shared.counts["clock_back"] += 1
            at = shared.now
        self._seq += 1
        outcome = Outcome(at, depth, self._seq)
        while shared.due <= at:
            self._fire(shared.due, outcome)
        shared.now = at
        return outcome

    def _fire(self, at: int, outcome: Outcome) -> None:
        """Wake the operators whose timers are due at one moment, in one wave."""
        self._shared.now = max(at, self._shared.now)
        for index, key in self._shared.take_due(at):
            if index == HOLDS:
                scenario, subject = key
                outcome.add_transition(self._courses.take(scenario).release(subject))
            else:
                self._nodes[index].woken.append(key)
        detected: list[Detection] = []
        self._network.wave(detected)
        if detected:
            self._evolving.follow(detected, None, outcome)

    def _accept(
        self, kind: BoundType, values: Values, happened: int | None, own: str | None
    ) -> Row | None:
        """Return the row of an event, unless it is incomplete, late or repeated."""
        shared = self._shared
        now = shared.now
        if own is not None:
            if own == INCOMPLETE:
                shared.counts["incomplete"] += 1
                return None
            if own in self._ids:
                shared.counts["duplicates"] += 1
                return None
        if happened is None:
            happened = now
        elif happened > now:
            shared.counts["ahead"] += 1
            happened = now
        elif happened < now - kind.lateness:
            shared.counts["late"] += 1
            return None
        if own is not None:
            self._remember(own)
        return shared.row(happened, values)

    def _remember(self, identifier: str) -> bool:
        if identifier in self._ids:
            return False
        self._ids[identifier] = None
        if len(self._ids) > self._shared.limits.ids:
            del self._ids[next(iter(self._ids))]
        return True

    # State

    def replay(self, record: bytes) -> Outcome:
        """Repeat a step from its record; the outcome is the one that it had."""
        match step_log.read(record, self._binder.types):
            case step_log.PacketStep(packet, at, bound):
                return self.take(packet, bound, at)
            case step_log.SetStep(scenario, subject, situation, at, hold):
                return self.set(scenario, subject, situation, at, hold)
            case step_log.TimeStep(at):
                return self.advance(at)

    def save(self) -> bytes:
        """Return a snapshot of all state."""
        shared = self._shared
        nodes = {
            text: state
            for text, node in self._network.states()
            if (state := node.save()) is not None
        }
        return state_codec.compress(
            {
                "version": VERSION,
                "now": shared.now,
                "uid": shared.uid,
                "seq": self._seq,
                "counts": shared.counts,
                "ids": list(self._ids),
                "nodes": nodes,
                "scenarios": {name: course.save() for name, course in self._courses},
                "held": {name: course.held for name, course in self._courses if course.held},
            }
        )

    @classmethod
    def load(cls, program: Program, data: bytes, limits: Limits | None = None) -> Engine:
        """Return an engine with the state of a snapshot.

        The program may have changed since: operators that it still has keep their state,
        new ones begin without, and what others knew is gone.
        """
        state = state_codec.expand(data)
        if not isinstance(state, dict) or state.get("version") != VERSION:
            raise state_codec.StateError(
                "a snapshot of events has another format", fix="start without it, or go back"
            )
        engine = cls(program, limits)
        shared = engine._shared
        shared.now, shared.uid, engine._seq = state["now"], state["uid"], state["seq"]
        shared.counts.update(state["counts"])
        engine._ids = dict.fromkeys(state["ids"])
        for text, node in engine._network.states():
            if text in state["nodes"]:
                node.load(state["nodes"][text])
        for name, course in engine._courses:
            held = state.get("held", {})  # snapshots of earlier versions have none
            course.load(state["scenarios"].get(name, []), held.get(name, {}))
        return engine


def _moment(at: int) -> int | None:
    return None if at == NEVER else at
