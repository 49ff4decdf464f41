"""Transitions: what detected events do to scenarios, and what actions publish for that.

    detected ──▶ the scenarios that they concern ──▶ evolution ──▶ transition
                                       ▲                 └──▶ requests, actions ──▶ publications
                                       └── events of requests ◀──┘

Rules that hold here:
- The events of a step are followed in rounds: an evolution with actions raises requests, and
  their events count in the next round. Rounds are limited.
- An event that no longer holds when its turn comes leads nowhere.
- A transition is reported together with the one that it ends for a limit.
- An action turns each event of its type into a message: the event that caused the evolution, and
  the events of its requests. Equal messages are published once; they are told apart by the
  values that they are made of, before they are made.
- A value in the braces of a topic becomes a part of one level: a value that would add levels or
  wildcards is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from penstock.cep.contact_tracing import VisitsNode
from penstock.cep.context import EngineContext, Row, Values, shaper
from penstock.cep.event_binding import Packet, RequestType
from penstock.cep.network import Network
from penstock.cep.operators import NO_ROWS
from penstock.cep.program import CompiledAction, CompiledEvolution, Program
from penstock.cep.scenario_instances import ScenarioInstance, ScenarioInstances
from penstock.cep.steps import (
    DetectedEvent,
    Publication,
    StepResult,
    Transition,
    TransitionCause,
)
from penstock.errors import PenstockError
from penstock.lang.scalars import EPOCH, MICROSECOND
from penstock.model.topics import check_topic

PLACE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_FORBIDDEN: Final = frozenset("/+#")


class ScenarioRunner:
    """Follows the scenarios of one engine."""

    def __init__(
        self,
        program: Program,
        context: EngineContext,
        network: Network,
        instances: ScenarioInstances,
        visits: Sequence[VisitsNode],
        requests: Sequence[RequestType],
    ) -> None:
        self.publisher = ActionPublisher(program.actions)
        self._actions = program.actions
        self._context = context
        self._network = network
        self._instances = instances
        self._visits = visits
        self._requests = requests

    def follow(
        self, detected: list[DetectedEvent], packet: Packet | None, result: StepResult
    ) -> None:
        """Follow the scenarios; requests of evolutions bring about further rounds."""
        result.detected += detected
        self._follow(detected, packet, result)

    def expire(self, instance: ScenarioInstance, subject: str, result: StepResult) -> None:
        """Leave a situation that has lasted for its longest duration."""
        found = instance.find_overdue(subject)
        if found is None:  # an event of this moment led elsewhere
            return
        number, evolution = found
        transition = Transition(
            instance.scenario.name,
            subject,
            evolution.source,
            evolution.target,
            self._context.now,
            evolution=number,
            cause=TransitionCause.DURATION,
        )
        self.move(instance, transition, result)
        if evolution.actions:
            self._follow(self._carry_out(evolution, transition, [], None, result), None, result)

    def _follow(
        self, detected: list[DetectedEvent], packet: Packet | None, result: StepResult
    ) -> None:
        for _ in range(self._context.limits.rounds):
            further: list[DetectedEvent] = []
            for instance, event, row in self._instances.arrange(detected):
                if row.alive:
                    self._evolve(instance, event, row, packet, result, further)
            if not further:
                return
            detected = further
        self._context.counts["rounds"] += 1

    def move(
        self, instance: ScenarioInstance, made: Transition, result: StepResult, hold: int = 0
    ) -> None:
        """Apply a transition, and report it with the one that it ends for a limit."""
        result.add_transition(made)
        ended = instance.move(made.subject, made.target, made.at, hold)
        if ended is not None:
            result.add_transition(ended)

    def request(
        self, transition: Transition, packet: Packet | None, wanted: frozenset[str]
    ) -> list[DetectedEvent]:
        """Let the types of requests know of an evolution; return what follows from it."""
        now = self._context.now
        for visits in self._visits:
            visits.requested = wanted
        request = {
            "subject": transition.subject,
            "scenario": transition.scenario,
            "situation": transition.target,
            "event": transition.event,
            "at": now,
            "time": EPOCH + timedelta(milliseconds=now),
        }
        raised: list[DetectedEvent] = []
        for kind in self._requests:
            values = kind.values_of(packet, request)
            if values is None:
                self._context.counts["incomplete"] += 1
            else:
                kind.node.emit(raised, [self._context.row(now, values)], NO_ROWS, NO_ROWS)
        self._network.propagate(raised)
        return raised

    def _evolve(
        self,
        instance: ScenarioInstance,
        event: str,
        row: Row,
        packet: Packet | None,
        result: StepResult,
        further: list[DetectedEvent],
    ) -> None:
        found = instance.find(event, row)
        if found is None:
            return
        subject, number, evolution = found
        transition = Transition(
            instance.scenario.name,
            subject,
            evolution.source,
            evolution.target,
            self._context.now,
            event,
            row.values,
            number,
        )
        self.move(instance, transition, result)
        if evolution.actions:
            further += self._carry_out(evolution, transition, [(event, row)], packet, result)

    def _carry_out(
        self,
        evolution: CompiledEvolution,
        transition: Transition,
        events: list[DetectedEvent],
        packet: Packet | None,
        result: StepResult,
    ) -> list[DetectedEvent]:
        """Carry out the actions of an evolution; return the events of its request."""
        wanted = frozenset(self._actions[name].event for name in evolution.actions)
        raised = self.request(transition, packet, wanted)
        result.detected += raised
        publications, refused = self.publisher.publish(
            evolution.actions, [*events, *raised], transition, result.depth + 1
        )
        result.add_publications(publications)
        if refused:
            self._context.counts["refused_topics"] += refused
        return raised


class ActionPublisher:
    """Makes the messages that actions publish."""

    def __init__(self, actions: Mapping[str, CompiledAction]) -> None:
        self._actions = actions
        self._shapes = {name: shaper(action.payload) for name, action in actions.items()}
        self._sources = {name: _source(action) for name, action in actions.items()}

    def publish(
        self,
        names: tuple[str, ...],
        events: list[DetectedEvent],
        transition: Transition,
        depth: int,
    ) -> tuple[list[Publication], int]:
        """Return the messages of some actions, and how many had no proper topic."""
        made = []
        refused = 0
        for name in names:
            action, source = self._actions[name], self._sources[name]
            seen: set[Hashable] = set()
            said: set[tuple[str, str]] = set()
            for event, row in events:
                if event != action.event or not row.alive:
                    continue
                made_of = source(row.values)
                if made_of in seen:
                    continue
                seen.add(made_of)
                topic = _topic(action.topic, row.values)
                if topic is None:
                    refused += 1
                    continue
                payload = {
                    field: _plain(value) for field, value in self._shapes[name](row.values).items()
                }
                message = topic, repr(payload)
                if message in said:
                    continue
                said.add(message)
                made.append(
                    Publication(
                        topic, payload, name, transition.scenario, transition.subject, depth
                    )
                )
        return made, refused


def _source(action: CompiledAction) -> Callable[[Values], Hashable]:
    """Return what reads all that an action's message is made of."""
    names = set(PLACE.findall(action.topic))
    for assignment in action.payload:
        for path in assignment.value.references:
            rest = path.partition(".")[2]
            if not rest:
                return repr  # all of the event
            names.add(rest.partition(".")[0])
    if len(names) == 1:
        (only,) = names

        def read(values: Values) -> Hashable:
            value = values.get(only)
            return value if type(value) is str else (repr(value),)

        return read
    ordered = sorted(names)
    return lambda values: repr([values.get(name) for name in ordered])


def _topic(template: str, values: Values) -> str | None:
    """Fill in a topic; None where the result is none."""
    parts = [str(values.get(name, "")) for name in PLACE.findall(template)]
    if not all(parts) or any(_FORBIDDEN & set(part) for part in parts):
        return None
    filled = PLACE.sub(lambda match: str(values.get(match[1])), template)
    try:
        return check_topic(filled)
    except PenstockError:
        return None


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value // MICROSECOND // 1000
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
