"""The operator network: one node for each operator of a program, connected by its inputs.

Rules that hold here:
- Conditions directly on an aggregate become its outputs; everything else is a node that
  propagation visits, inputs first.
- Sums of meetings by day and person take nothing from the meetings: `contact_tracing` keeps
  them with the stays.
- State is saved under the text of its operator: an operator that does the same restores it,
  whatever else has changed.
"""

from __future__ import annotations

from typing import assert_never

from penstock.cep.aggregates import AggregateNode
from penstock.cep.contact_tracing import (
    DailySumsNode,
    Interest,
    MeetingsNode,
    VisitsNode,
    find_daily_sums,
)
from penstock.cep.context import EngineContext
from penstock.cep.joins import JoinNode
from penstock.cep.operators import (
    AggregateOutput,
    Feed,
    IterateNode,
    LatestNode,
    OperatorNode,
    RefineNode,
    SourceNode,
    UnionNode,
)
from penstock.cep.program import (
    Aggregate,
    Iterate,
    Join,
    Latest,
    Meetings,
    Operator,
    PacketEvents,
    Program,
    Refine,
    RequestEvents,
    Union,
    Visits,
    is_relation,
)
from penstock.cep.steps import DetectedEvent


class Network:
    """The nodes of a program."""

    def __init__(self, program: Program, context: EngineContext) -> None:
        self._operators = program.operators
        self._context = context
        self._emitters: list[OperatorNode] = []
        """Which node emits the rows of an operator."""
        self.nodes: list[OperatorNode] = []
        """The nodes in order, each at the index of its operator."""
        found = {it: find_daily_sums(it, self._operators) for it in range(len(self._operators))}
        self._sums = {it: sums for it, sums in found.items() if sums is not None}
        for index, operator in enumerate(self._operators):
            node = self._make(index, operator)
            self.nodes.append(node)
        self._name_emitters(program)
        self._connect()
        self._mark_consumers()

    def propagate(self, detected: list[DetectedEvent]) -> None:
        """Propagate rows and timers through the network: run who has input, inputs first."""
        for node in self.nodes:
            if node.inbox or node.woken:
                node.run(detected)

    def states(self) -> list[tuple[str, OperatorNode]]:
        """Return the nodes with state, and the texts under which it is saved."""
        return [
            (operator.text, node)
            for operator, node in zip(self._operators, self.nodes, strict=True)
            if not isinstance(node, SourceNode | AggregateOutput)
        ]

    def downstream(self, start: int) -> tuple[OperatorNode, ...]:
        """Return the nodes that rows of a node can lead to, inputs first."""
        found = {start}
        for index, operator in enumerate(self._operators):
            if found & set(operator.inputs):
                found.add(index)
        return tuple(
            self.nodes[index]
            for index in sorted(found - {start})
            if not isinstance(self.nodes[index], AggregateOutput)
        )

    def find_upstream(self, driving: frozenset[str]) -> frozenset[int]:
        """Return the operators whose rows can lead to one of these events."""
        upstream: set[int] = set()
        for index in reversed(range(len(self._operators))):
            if index in upstream or not driving.isdisjoint(self._emitters[index].names):
                upstream |= {index, *self._operators[index].inputs}
        return frozenset(upstream)

    def find_visits(self, driving: frozenset[str]) -> list[VisitsNode]:
        """Return the nodes of visits, and let them know who waits for what they find."""
        found = [node for node in self.nodes if isinstance(node, VisitsNode)]
        for node in found:
            node.interest = self._find_interest(node.index, driving)
            for sums in node.sums:
                sums.interest = self._find_interest(sums.index, driving)
        return found

    def _find_interest(self, start: int, driving: frozenset[str]) -> Interest:
        """Return who waits for what is made of an operator's rows, but for sums by day."""
        below = {start}
        for index, operator in enumerate(self._operators):
            if index not in self._sums and below & set(operator.inputs):
                below.add(index)
        names = frozenset(name for index in below for name in self._emitters[index].names)
        remembers = any(_remembers(self._operators[index]) for index in below - {start})
        return Interest(remembers or not driving.isdisjoint(names), names)

    def feeders(self, start: int) -> tuple[Feed, ...]:
        """Return what takes a source's rows, if all who do take them directly only."""
        reached = {start} | {node.index for node in self.downstream(start)}
        outputs = {
            index
            for index, operator in enumerate(self._operators)
            if isinstance(self.nodes[index], AggregateOutput) and set(operator.inputs) & reached
        }
        consumers = self._emitters[start].consumers
        for consumer, _ in consumers:
            inputs = self._operators[consumer.index].inputs
            if sum(source in reached | outputs for source in inputs) > 1:
                return ()
        return tuple(consumer.feeder(slot) for consumer, slot in consumers)

    def _make(self, index: int, operator: Operator) -> OperatorNode:
        context = self._context
        match operator:
            case Refine(inputs=(source,)) if isinstance(self._operators[source], Aggregate):
                spec = self._operators[source]
                assert isinstance(spec, Aggregate)  # noqa: S101 - the case says so
                node: OperatorNode = AggregateOutput(index, context, spec, operator)
            case Aggregate():
                self._emitters.append(AggregateOutput(index, context, operator, None))
                return SourceNode(index, context)  # its outputs are not known yet
            case PacketEvents() | RequestEvents():
                node = SourceNode(index, context)
            case Refine():
                relation = is_relation(operator, self._operators)
                node = RefineNode(index, context, operator, relation=relation)
            case Union():
                node = UnionNode(index, context)
            case Latest():
                node = LatestNode(index, context, operator)
            case Iterate():
                node = IterateNode(index, context, operator)
            case Join():
                node = JoinNode(index, context, operator)
            case Visits():
                node = VisitsNode(index, context, operator)
            case Meetings(inputs=(visits,)):
                source_node = self.nodes[visits]
                assert isinstance(source_node, VisitsNode)  # noqa: S101 - the compiler sees to it
                node = MeetingsNode(index, context, source_node)
            case _:
                assert_never(operator)
        self._emitters.append(node)
        return node

    def _name_emitters(self, program: Program) -> None:
        for index, names in program.names().items():
            self._emitters[index].names = names

    def _connect(self) -> None:
        outputs: dict[int, list[AggregateOutput]] = {}
        for index, operator in enumerate(self._operators):
            node = self.nodes[index]
            if isinstance(node, AggregateOutput):
                (source,) = operator.inputs
                outputs.setdefault(source, []).append(node)
                continue
            if index not in self._sums:
                for slot, source in enumerate(operator.inputs):
                    self._emitters[source].consumers.append((node, slot))
        for index, operator in enumerate(self._operators):
            if isinstance(operator, Aggregate):
                plain = self._emitters[index]
                assert isinstance(plain, AggregateOutput)  # noqa: S101 - made above
                own = [plain] if plain.consumers or plain.names else []
                self._replace(
                    index, self._make_aggregate(index, operator, [*own, *outputs.get(index, [])])
                )

    def _make_aggregate(
        self, index: int, operator: Aggregate, outputs: list[AggregateOutput]
    ) -> OperatorNode:
        """Return the node of an aggregate with its outputs."""
        sums = self._sums.get(index)
        if sums is None:
            return AggregateNode(index, self._context, operator, outputs)
        visits = self.nodes[sums.visits]
        assert isinstance(visits, VisitsNode)  # noqa: S101 - the sums say so
        made = DailySumsNode(index, self._context, sums, visits, outputs)
        visits.sums.append(made)
        return made

    def _replace(self, index: int, made: OperatorNode) -> None:
        """Put an aggregate where its place was held, for whoever feeds it."""
        held = self.nodes[index]
        self.nodes[index] = made
        for emitter in self._emitters:
            emitter.consumers = [
                (made if consumer is held else consumer, slot)
                for consumer, slot in emitter.consumers
            ]

    def _mark_consumers(self) -> None:
        for node in (*self.nodes, *self._emitters):
            if isinstance(node, AggregateOutput):
                node.looked_at = self._ends_matter(node)
                node.passed_on = any(
                    not self._holds(consumer, slot) for consumer, slot in node.consumers
                )
        for node in self.nodes:
            if isinstance(node, AggregateNode):
                node.prepare()

    def _holds(self, consumer: OperatorNode, slot: int) -> bool:
        """Tell whether a consumer takes a row once, while it holds."""
        operator = self._operators[consumer.index]
        return isinstance(operator, Join) and operator.sides[slot].window is None

    def _ends_matter(self, node: OperatorNode) -> bool:
        """Tell whether some join looks at the rows while they hold."""
        for consumer, slot in node.consumers:
            if self._holds(consumer, slot):
                return True
            operator = self._operators[consumer.index]
            if isinstance(operator, Refine | Union) and self._ends_matter(consumer):
                return True
        return False


def _remembers(operator: Operator) -> bool:
    """Tell whether an operator keeps something of the rows that it takes."""
    if isinstance(operator, Aggregate):
        return operator.window.kind != "step"
    return not isinstance(operator, Refine | Union | Meetings)
