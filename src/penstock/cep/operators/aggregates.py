"""Aggregates of windows, group by group, and the conditions on them.

Rules that hold here:
- A group is there while its window holds an event. An aggregate without values is
  missing, but for counts.
- A sliding window holds the events after `now - size`; one leaves at its time plus size.
- The conditions on an aggregate (its *views*) are kept with the group, and looked at again
  only where a value has changed: most events change none.
- A timer is set only where time alone can bring about what somebody waits for: a
  condition comes to hold, or a row ends that a join looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from typing_extensions import override

from penstock.cep.algebra import Aggregate, AggregateValue, Refine
from penstock.cep.operators.accumulators import Accumulator, make_accumulator
from penstock.cep.operators.monotonicity import can_fall, can_rise
from penstock.cep.operators.nodes import NO_ROWS, Detections, Feed, OperatorNode, Rows
from penstock.cep.rows import (
    FIELD_OF_ROOT,
    NEVER,
    EngineContext,
    Key,
    Row,
    Values,
    evaluator,
    key_reader,
    shaper,
)
from penstock.cep.state_codec import pack_key, pack_row, unpack_key, unpack_row
from penstock.lang import INT
from penstock.lang.tree import find_path

_CHECK_EVERY: Final = 1024  # additions between two looks at how much a group keeps


class ViewNode(OperatorNode):
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

    def run(self, detected: list[tuple[str, Row]]) -> None:
        """Do nothing: the aggregate passes on what becomes of the view."""

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


class _Group:
    """What is kept of one group."""

    __slots__ = (
        "accumulators",
        "added",
        "checked",
        "expiry",
        "it",
        "period",
        "raised",
        "rows",
        "wake",
    )

    def __init__(self, it: Values, accumulators: list[Accumulator], views: int) -> None:
        self.it = it
        self.accumulators = accumulators
        self.rows: list[Row | None] = [None] * views
        self.expiry = NEVER
        self.wake = NEVER
        self.period = 0
        self.added = 0
        # What every event raises again, and the version of situations under which it last
        # led nowhere.
        self.raised: list[tuple[str, Row]] = []
        self.checked = -1


class _Changes:
    """What one step does to the rows of one view."""

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


_Taker: TypeAlias = tuple[int, str, Callable[[Values], Any] | None]
"""Which accumulator takes what of a row: an attribute, or what a function makes of it."""


def _take_argument(place: int, value: AggregateValue) -> _Taker:
    if value.argument is None:
        return place, "", lambda _: True
    path = find_path(value.argument.tree)
    if path is not None and len(path) == FIELD_OF_ROOT:
        return place, path[1], None
    return place, "", value.argument.function


class AggregateNode(OperatorNode):
    """An aggregate with its views."""

    def __init__(
        self, index: int, context: EngineContext, spec: Aggregate, views: list[ViewNode]
    ) -> None:
        super().__init__(index, context)
        self._spec = spec
        self._views = views
        self._key = key_reader(spec.by)
        self._kind = spec.window.kind
        self._size = spec.window.size
        self._names = [value.name for value in spec.values]
        self._nothing = [
            (value.name, 0 if value.function in {"count", "distinct"} else None)
            for value in spec.values
        ]
        self._takers: list[list[_Taker]] = [
            [
                _take_argument(place, value)
                for place, value in enumerate(spec.values)
                if slot in value.slots
            ]
            for slot in range(len(spec.inputs))
        ]
        self._only = spec.by[0] if len(spec.by) == 1 else None
        self._groups: dict[Key, _Group] = {}
        self._plain = spec.window.kind in {"last", "all"}
        self._passes_on = False
        self._by_subject = False

    def prepare(self) -> None:
        """Look at who takes the views' rows, when all are connected."""
        self._passes_on = any(view.passed_on and view.each for view in self._views)

    def follow(self, attributes: Mapping[str, set[str]]) -> None:
        """Learn by which attributes scenarios tell the subjects of events, by event type."""
        self._by_subject = self._only is not None and all(
            wanted == {self._only} and view.keeps(self._only)
            for view in self._views
            for name in view.names
            if (wanted := attributes.get(name))
        )

    def run(self, detected: list[tuple[str, Row]]) -> None:
        """Take the events of this step and the ends of windows that are due."""
        inbox, self.inbox = self.inbox, []
        woken, self.woken = self.woken, []
        now, groups = self.context.now, self._groups
        touched: dict[Key, bool] = {}  # group → whether a value may have changed
        changes = [_Changes() for _ in self._views]
        for key in woken:
            group = groups.get(key)
            if group is not None:
                group.wake = NEVER
                self._expire(key, group, changes)
        raising: set[Key] = set()
        for slot, added, _, again in inbox:
            takers = self._takers[slot]
            for row in [*added, *again] if again else added:
                key = self._key(row.values)
                if key is None:
                    continue
                group = groups.get(key)
                changed = touched.get(key, False)
                if group is not None and group.expiry <= now:
                    # First what ends by itself: what comes after may begin anew.
                    self._expire(key, group, changes)
                    group = groups.get(key)
                if group is None:
                    group = self._open(key, row)
                    changed = True
                if self._kind != "count" and not self._belongs(group, row.at, now):
                    touched[key] = changed
                    continue
                raising.add(key)
                touched[key] = self._add(group, takers, row) or changed
        self._settle(touched, raising, changes, detected)

    @override
    def feeder(self, slot: int) -> Feed:
        only, takers = self._only, self._takers[slot]
        if only is None or not self._plain or self._passes_on or len(takers) != 1:
            return super().feeder(slot)
        context, size, by_subject = self.context, self._size, self._by_subject
        groups, changed_at, views = self._groups, context.changed, self._views
        ((place, name, argument),) = takers

        def feed(row: Row, detected: Detections, quiet: Detections) -> bool:
            values, at, now = row.values, row.at, context.now
            key = values[only]
            group = groups.get(key)
            if group is None or group.expiry <= now or (at != now and at <= now - size):
                self.inbox.append((slot, [row], NO_ROWS, NO_ROWS))
                return True
            value = values[name] if argument is None else argument(values)
            changed = value is not None and group.accumulators[place].add(at, value)
            group.added = added = group.added + 1
            if not added % _CHECK_EVERY:
                changed = self._trim(group) or changed
            if changed:
                self._settle({key: True}, {key}, [_Changes() for _ in views], detected)
                return True
            if group.checked >= (
                changed_at.get(key, context.floor) if by_subject else context.version
            ):
                quiet += group.raised
            else:
                group.checked = context.version
                detected += group.raised
            return False

        return feed

    def _belongs(self, group: _Group, at: int, now: int) -> bool:
        """Tell whether an event lies in the window; a newer period begins a new window."""
        if self._kind == "last":
            return at > now - self._size
        if self._kind == "each":
            return at // self._size == group.period
        return True

    def _add(
        self,
        group: _Group,
        takers: list[_Taker],
        row: Row,
    ) -> bool:
        changed = False
        at, values = row.at, row.values
        for place, name, argument in takers:
            value = values[name] if argument is None else argument(values)
            if value is not None and group.accumulators[place].add(at, value):
                changed = True
        group.added += 1
        if not group.added % _CHECK_EVERY:
            changed = self._trim(group) or changed
        return changed

    def _trim(self, group: _Group) -> bool:
        """Drop the oldest values where there are too many."""
        trimmed = False
        for accumulator in group.accumulators:
            while accumulator.size() > self.context.limits.samples:
                accumulator.drop_oldest()
                self.context.counts["dropped_samples"] += 1
                trimmed = True
        return trimmed

    def _open(self, key: Key, row: Row) -> _Group:
        it = {name: row.values[name] for name in self._spec.by}
        group = _Group(it, self._accumulators(), len(self._views))
        if self._kind == "each":
            group.period = self.context.now // self._size
        self._groups[key] = group
        return group

    def _accumulators(self) -> list[Accumulator]:
        return [
            make_accumulator(
                value.function,
                retain=self._kind == "last",
                whole=value.argument is not None and value.argument.type == INT,
                few=self._size if self._kind == "count" else None,
            )
            for value in self._spec.values
        ]

    def _expire(self, key: Key, group: _Group, changes: list[_Changes]) -> None:
        """Let go what has left the window, and look at what follows from that alone."""
        now = self.context.now
        if self._kind == "last":
            for accumulator in group.accumulators:
                accumulator.expire(now - self._size)
        elif self._kind == "each" and now // self._size != group.period:
            group.accumulators = self._accumulators()
            group.period = now // self._size
        self._look(key, group, changes, raising=False)

    def _settle(
        self,
        touched: dict[Key, bool],
        raising: set[Key],
        changes: list[_Changes],
        detected: list[tuple[str, Row]],
    ) -> None:
        """Look at the conditions again where values changed, and pass on what follows."""
        before = self.context.uid
        for key, changed in touched.items():
            group = self._groups[key]
            if changed:
                self._look(key, group, changes, raising=key in raising)
            if key in raising:
                for view, row, change in zip(self._views, group.rows, changes, strict=True):
                    if row is not None and view.each and row.uid <= before:
                        change.raise_again(row)
        if self._kind == "step":
            self._groups.clear()
        elif len(self._groups) > self.context.limits.keys:
            self._make_room(changes)
        for view, change in zip(self._views, changes, strict=True):
            view.emit(detected, change.added, change.removed, change.touched, change.replaced)

    def _look(self, key: Key, group: _Group, changes: list[_Changes], *, raising: bool) -> None:
        for name, accumulator in zip(self._names, group.accumulators, strict=True):
            group.it[name] = accumulator.result()
        if self._kind == "last":
            first = [at for it in group.accumulators if (at := it.first_at()) is not None]
            group.expiry = min(first) + self._size if first else NEVER
        elif self._kind == "each":
            group.expiry = (group.period + 1) * self._size
        empty = all(group.it[name] == none for name, none in self._nothing)
        wanted = False
        for place, (view, change) in enumerate(zip(self._views, changes, strict=True)):
            held = group.rows[place]
            values = None if empty else view.values_of(group.it)
            if held is not None and held.values == values:
                wanted = wanted or view.looked_at or view.wavers
                continue
            if held is not None:
                change.removed.append(held)
            row = None if values is None else self.context.row(self.context.now, values)
            group.rows[place] = row
            if row is not None:
                # With other values it still holds: it is raised again only by an event.
                begins = held is None or (raising and view.each)
                (change.added if begins else change.replaced).append(row)
            wanted = wanted or (view.rises if row is None else view.looked_at or view.wavers)
        self._note_raised(group)
        if empty:
            del self._groups[key]
        elif wanted and group.expiry < group.wake:
            group.wake = group.expiry
            self.context.schedule(group.expiry, self.index, key)

    def _note_raised(self, group: _Group) -> None:
        group.checked = -1
        group.raised = [
            (name, row)
            for view, row in zip(self._views, group.rows, strict=True)
            if row is not None and view.each
            for name in view.names
        ]

    def _make_room(self, changes: list[_Changes]) -> None:
        oldest = next(iter(self._groups))
        for row, change in zip(self._groups.pop(oldest).rows, changes, strict=True):
            if row is not None:
                change.removed.append(row)
        self.context.counts["dropped_groups"] += 1

    def save(self) -> Any:
        """Return what is kept of each group."""
        groups = [
            [
                pack_key(key),
                pack_key(tuple(group.it[name] for name in self._spec.by)),
                [accumulator.save() for accumulator in group.accumulators],
                [row and pack_row(row) for row in group.rows],
                group.period,
                group.expiry,
                group.wake,
            ]
            for key, group in self._groups.items()
        ]
        return [[view.text for view in self._views], groups] if groups else None

    def load(self, state: Any) -> None:
        """Take the groups back, and set their timers.

        Views may have come and gone: what is new is looked at in the next step.
        """
        texts, groups = state
        new = any(view.text not in texts for view in self._views)
        for key, by, saved, rows, period, expiry, wake in groups:
            it = dict(zip(self._spec.by, unpack_key(by), strict=True))
            group = _Group(it, self._accumulators(), len(self._views))
            for accumulator, part in zip(group.accumulators, saved, strict=True):
                accumulator.load(part)
            for name, accumulator in zip(self._names, group.accumulators, strict=True):
                it[name] = accumulator.result()
            held = {text: row for text, row in zip(texts, rows, strict=True) if row is not None}
            group.rows = [
                unpack_row(held[view.text]) if view.text in held else None for view in self._views
            ]
            group.period, group.expiry = period, expiry
            group.wake = min(wake, self.context.now) if new else wake
            self._note_raised(group)
            made = unpack_key(key)
            self._groups[made] = group
            if group.wake < NEVER:
                self.context.schedule(group.wake, self.index, made)
