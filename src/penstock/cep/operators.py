"""Operator nodes: the base of all, those with little state of their own, outputs of aggregates.

A step propagates through the network in one pass. Nodes stand in an order in which inputs come
first; each takes all that its inputs emitted in this step at once, and emits what follows from
it. So no node ever sees half of a step.

As events leave a sliding window, a maximum or a count falls and a minimum rises. A comparison
with a constant the other way can only cease to hold, and needs no timer: a healthy patient's
readings never wake anybody up.

Rules that hold here:
- `added` rows begin to hold or happen; `removed` rows no longer hold; `touched` rows of a
  relation still hold and are raised again.
- What is saved of an operator is JSON data, keyed by group.
- A condition directly on an aggregate is an output of it, as HAVING is in SQL; the aggregate
  itself is one without a condition.
- Whether time alone can make a condition hold, or cease to, follows from the monotonicity of
  its aggregates. The answer errs towards yes: a timer too many costs time and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from typing_extensions import override

from penstock.cep.context import (
    EngineContext,
    ErasedPeople,
    Key,
    Row,
    Values,
    evaluator,
    key_reader,
    pack_key,
    pack_row,
    shaper,
    unpack_key,
    unpack_row,
)
from penstock.cep.program import Aggregate, Function, Iterate, Latest, Refine
from penstock.lang import tree
from penstock.lang.tree import find_path

Rows: TypeAlias = list[Row]
NO_ROWS: Rows = []
Detections: TypeAlias = list[tuple[str, Row]]
Feed: TypeAlias = Callable[[Row, Detections, Detections], bool]


class OperatorNode:
    """A running operator. `detected` takes what its event types raise."""

    def __init__(self, index: int, context: EngineContext) -> None:
        self.index = index
        self.context = context
        self.names: tuple[str, ...] = ()
        self.consumers: list[tuple[OperatorNode, int]] = []
        self.inbox: list[tuple[int, Rows, Rows, Rows]] = []
        self.woken: list[Key] = []

    def run(self, detected: Detections) -> None:
        """Take what the inputs emitted, and emit what follows."""
        raise NotImplementedError

    def feeder(self, slot: int) -> Feed:
        """Return the fast path for the rows of packets, one by one.

        It takes a row and two lists for what is raised, and tells whether propagation must go
        on from here. The second list is for events that were raised before without a transition,
        where no situation has changed since: they cause none again.
        """

        def feed(row: Row, detected: Detections, quiet: Detections) -> bool:  # noqa: ARG001
            self.inbox.append((slot, [row], NO_ROWS, NO_ROWS))
            return True

        return feed

    def emit(
        self,
        detected: Detections,
        added: Rows,
        removed: Rows,
        touched: Rows,
        replaced: Rows = NO_ROWS,
    ) -> None:
        """Emit what this step changed; `replaced` rows are added without being raised."""
        for row in removed:
            row.alive = False
        if not (added or touched or removed or replaced):
            return
        for name in self.names:
            detected += [(name, row) for row in added]
            detected += [(name, row) for row in touched]
        if replaced:
            added = [*added, *replaced]
        for consumer, slot in self.consumers:
            consumer.inbox.append((slot, added, removed, touched))

    def save(self) -> Any:
        """Return the state as JSON data; None where there is none."""
        return None

    def load(self, state: Any) -> None:
        """Restore the state, timers included."""

    def forget(self, people: ErasedPeople) -> None:
        """Forget people's rows and groups, and emit what no longer holds."""


class SourceNode(OperatorNode):
    """Where rows come from outside: packets and requests."""

    def run(self, detected: Detections) -> None:
        """Do nothing: the engine emits the rows."""


class UnionNode(OperatorNode):
    """Emits the rows of all inputs."""

    def run(self, detected: Detections) -> None:
        """Emit what the inputs emitted, in the order of the inputs."""
        inbox, self.inbox = self.inbox, []
        if len(inbox) == 1:
            _, added, removed, touched = inbox[0]
            self.emit(detected, added, removed, touched)
            return
        inbox.sort(key=lambda item: item[0])
        self.emit(
            detected,
            [row for item in inbox for row in item[1]],
            [row for item in inbox for row in item[2]],
            [row for item in inbox for row in item[3]],
        )


class RefineNode(OperatorNode):
    """Keeps the rows where a condition holds, and reshapes them."""

    def __init__(self, index: int, context: EngineContext, spec: Refine, *, relation: bool) -> None:
        super().__init__(index, context)
        self._where = None if spec.where is None else evaluator(spec.where)
        self._shape: Callable[[Values], Values] | None = (
            None if spec.assignments is None else shaper(spec.assignments)
        )
        self._relation = relation
        self._made: dict[int, Row] = {}

    def run(self, detected: Detections) -> None:
        """Refine what the input emitted."""
        (_, added, removed, touched), *rest = self.inbox
        assert not rest  # noqa: S101 - one input, one pass, one message
        self.inbox = []
        made = self._made
        gone = [made.pop(row.uid) for row in removed if row.uid in made]
        fresh = []
        for row in added:
            refined = self._refine(row)
            if refined is not None:
                fresh.append(refined)
                if self._relation:
                    made[row.uid] = refined
        again = [made[row.uid] for row in touched if row.uid in made]
        self.emit(detected, fresh, gone, again)

    @override
    def feeder(self, slot: int) -> Feed:
        take, where = super().feeder(slot), self._where
        if where is None:
            return take

        def feed(row: Row, detected: Detections, quiet: Detections) -> bool:
            # Most rows are not what a condition asks for: nothing goes on from them.
            return where(row.values) is True and take(row, detected, quiet)

        return feed

    def _refine(self, row: Row) -> Row | None:
        if self._where is not None and self._where(row.values) is not True:
            return None
        values = row.values if self._shape is None else self._shape(row.values)
        return self.context.row(row.at, values)

    def save(self) -> Any:
        """Return the rows that hold."""
        return [[uid, pack_row(row)] for uid, row in self._made.items()] or None

    def load(self, state: Any) -> None:
        """Restore the rows."""
        self._made = {uid: unpack_row(row) for uid, row in state}


class LatestNode(OperatorNode):
    """Keeps for each group the row with the greatest value of an attribute."""

    def __init__(self, index: int, context: EngineContext, spec: Latest) -> None:
        super().__init__(index, context)
        self._by = spec.by
        self._key = key_reader(spec.by)
        self._order = spec.order
        self._best: dict[Key, Row] = {}

    def run(self, detected: Detections) -> None:
        """Let newer rows take the place of older ones."""
        inbox, self.inbox = self.inbox, []
        best, order = self._best, self._order
        added: dict[Key, Row] = {}
        removed: list[Row] = []
        for _, rows, _, again in inbox:
            for row in (*rows, *again):
                key = self._key(row.values)
                value = row.values[order]
                held = best.get(key)
                if key is None or value is None:
                    continue
                if held is not None and value < held.values[order]:
                    continue
                if held is not None and added.get(key) is not held:
                    removed.append(held)
                best.pop(key, None)
                best[key] = added[key] = self.context.row(row.at, row.values)
                if len(best) > self.context.limits.keys:
                    oldest = next(iter(best))
                    removed.append(best.pop(oldest))
                    self.context.counts["dropped_groups"] += 1
        self.emit(detected, list(added.values()), removed, NO_ROWS)

    @override
    def forget(self, people: ErasedPeople) -> None:
        gone = [
            key
            for key, row in self._best.items()
            if people.has_key(self._by, key) or people.has_row(row.values)
        ]
        self.emit([], NO_ROWS, [self._best.pop(key) for key in gone], NO_ROWS)

    def save(self) -> Any:
        """Return the row of each group."""
        return [[pack_key(key), pack_row(row)] for key, row in self._best.items()] or None

    def load(self, state: Any) -> None:
        """Restore the rows."""
        self._best = {unpack_key(key): unpack_row(row) for key, row in state}


class IterateNode(OperatorNode):
    """Counts events of a group within a time, and begins anew when they are enough."""

    def __init__(self, index: int, context: EngineContext, spec: Iterate) -> None:
        super().__init__(index, context)
        self._by = spec.by
        self._key = key_reader(spec.by)
        self._times = spec.times
        self._within = spec.within
        self._seen: dict[Key, list[int]] = {}

    def run(self, detected: Detections) -> None:
        """Count what the input emitted."""
        inbox, self.inbox = self.inbox, []
        added = []
        seen, since = self._seen, self.context.now - self._within
        for _, rows, _, again in inbox:
            for row in (*rows, *again):
                key = self._key(row.values)
                if key is None:
                    continue
                times = [at for at in seen.pop(key, ()) if at > since]
                if row.at > since:
                    times.append(row.at)
                if len(times) >= self._times:
                    added.append(self.context.row(row.at, row.values))
                elif times:
                    seen[key] = times
                    if len(seen) > self.context.limits.keys:
                        del seen[next(iter(seen))]
                        self.context.counts["dropped_groups"] += 1
        self.emit(detected, added, NO_ROWS, NO_ROWS)

    @override
    def forget(self, people: ErasedPeople) -> None:
        for key in [key for key in self._seen if people.has_key(self._by, key)]:
            del self._seen[key]

    def save(self) -> Any:
        """Return when events of each group happened."""
        return [[pack_key(key), times] for key, times in self._seen.items()] or None

    def load(self, state: Any) -> None:
        """Restore the times."""
        self._seen = {unpack_key(key): list(times) for key, times in state}


_FALLING: Final = frozenset({"max", "count", "distinct"})
_UPWARD: Final = frozenset({"gt", "ge"})
_DOWNWARD: Final = frozenset({"lt", "le"})


class AggregateOutput(OperatorNode):
    """A condition on an aggregate, or the aggregate itself; the aggregate runs it."""

    def __init__(
        self, index: int, context: EngineContext, spec: Aggregate, refine: Refine | None
    ) -> None:
        super().__init__(index, context)
        self.text = "" if refine is None else refine.text
        where = None if refine is None else refine.where
        assignments = None if refine is None else refine.assignments
        self.where = None if where is None else evaluator(where)
        self.shape: Callable[[Values], Values] | None = (
            None if assignments is None else shaper(assignments)
        )
        self._assignments = assignments
        self.each = refine is None or refine.each
        functions = {value.name: value.function for value in spec.values}
        self.rises = where is not None and can_rise(where.tree, functions)
        self.wavers = self.rises and where is not None and can_fall(where.tree, functions)
        """Whether it can cease to hold and come to hold again, by time alone."""
        self.looked_at = False
        """Whether the end of a row matters to some operator."""
        self.passed_on = False
        """Whether it matters to some operator that a row is raised again."""

    def run(self, detected: Detections) -> None:
        """Do nothing: the aggregate emits the rows of its outputs."""

    def keeps(self, name: str) -> bool:
        """Tell whether rows have an attribute of the group as it is."""
        if self._assignments is None:
            return True
        return any(
            assignment.name == name and (find_path(assignment.value.tree) or ())[1:] == (name,)
            for assignment in self._assignments
        )

    def values_of(self, it: Values) -> Values | None:
        """Return the row's values while the condition holds."""
        if self.where is not None and self.where(it) is not True:
            return None
        return dict(it) if self.shape is None else self.shape(it)


class RowDelta:
    """What one step changes in the rows of one output."""

    __slots__ = ("added", "removed", "replaced", "touched")

    def __init__(self) -> None:
        self.added: Rows = []
        self.replaced: Rows = []
        self.removed: Rows = []
        self.touched: Rows = []

    def raise_again(self, row: Row) -> None:
        """Raise a row that held before, or that took another's place in this step."""
        if row in self.replaced:
            self.replaced.remove(row)
            self.added.append(row)
        elif row not in self.added:
            self.touched.append(row)


def can_rise(condition: tree.Node, functions: Mapping[str, Function]) -> bool:
    """Tell whether a condition may come to hold while events leave; functions by value."""
    return _can_turn(condition, functions, 1)


def can_fall(condition: tree.Node, functions: Mapping[str, Function]) -> bool:
    """Tell whether a condition may cease to hold while events leave and values are there."""
    return _can_turn(condition, functions, -1)


def _can_turn(condition: tree.Node, functions: Mapping[str, Function], way: int) -> bool:
    match condition:
        case tree.Logic(terms=terms):
            return any(_can_turn(term, functions, way) for term in terms)
        case tree.Constant():
            return False
        case tree.Apply(operation=operation, arguments=(one, other)):
            if operation not in _UPWARD | _DOWNWARD:
                return True
            left, right = _direction(one, functions), _direction(other, functions)
            if left is None or right is None:
                return True
            # How far the left side moves against the right one, seen from the comparison.
            apart = left - right if operation in _UPWARD else right - left
            return apart * way > 0
        case _:
            return True


def _direction(node: tree.Node, functions: Mapping[str, Function]) -> int | None:
    """Tell how a side moves as events leave: -1 falls, 0 stays, 1 rises, None unknown."""
    match node:
        case tree.Constant():
            return 0
        case tree.Apply(operation="to_double", arguments=(inner,)):
            return _direction(inner, functions)
        case tree.Field(operand=tree.Root(), name=name):
            function = functions.get(name)
            if function is None:
                return None
            return -1 if function in _FALLING else 1 if function == "min" else None
        case _:
            return None
