"""ScenarioRunner: what detected events do to scenarios, and what follows from that.

    detected ──▶ the scenarios that they concern ──▶ evolution ──▶ transition
                                       ▲                 └──▶ requests, actions ──▶ publications
                                       └── what requests raise ◀──┘

Rules that hold here:
- What is detected in a step is followed in rounds: an evolution with actions raises requests,
  and what these bring about counts in the next round. Rounds are limited.
- An event that no longer holds when its turn comes leads nowhere.
- A transition is told together with the one that it ends for a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from penstock.cep.contact_tracing.nodes import VisitsNode
from penstock.cep.context import EngineContext
from penstock.cep.event_binding import Packet, RequestType
from penstock.cep.network import Network
from penstock.cep.operators.nodes import NO_ROWS
from penstock.cep.program import Program
from penstock.cep.rows import Row
from penstock.cep.scenarios.actions import ActionPublisher
from penstock.cep.scenarios.instances import ScenarioInstance, ScenarioInstances
from penstock.cep.step_result import DetectedEvent, StepResult, Transition
from penstock.lang.scalars import EPOCH


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
        self, detected: list[DetectedEvent], packet: Packet | None, outcome: StepResult
    ) -> None:
        """Follow the scenarios; requests of evolutions bring about further rounds."""
        outcome.detected += detected
        for _ in range(self._context.limits.rounds):
            further: list[DetectedEvent] = []
            for instance, event, row in self._instances.arrange(detected):
                if row.alive:
                    self._evolve(instance, event, row, packet, outcome, further)
            if not further:
                return
            detected = further
        self._context.counts["rounds"] += 1

    def move(
        self, instance: ScenarioInstance, made: Transition, outcome: StepResult, hold: int = 0
    ) -> None:
        """Let a transition take effect, and tell it with what ends for it."""
        outcome.add_transition(made)
        ended = instance.move(made.subject, made.target, made.at, hold)
        if ended is not None:
            outcome.add_transition(ended)

    def request(
        self, transition: Transition, packet: Packet | None, wanted: frozenset[str]
    ) -> list[DetectedEvent]:
        """Let the types of requests know of an evolution; return what follows from it."""
        now = self._context.now
        for visits in self._visits:
            visits.asked_for = wanted
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
        outcome: StepResult,
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
        self.move(instance, transition, outcome)
        if not evolution.actions:
            return
        wanted = frozenset(self._actions[name].event for name in evolution.actions)
        raised = self.request(transition, packet, wanted)
        further += raised
        outcome.detected += raised
        publications, refused = self.publisher.publish(
            evolution.actions, [(event, row), *raised], transition, outcome.depth + 1
        )
        outcome.add_publications(publications)
        if refused:
            self._context.counts["refused_topics"] += refused
