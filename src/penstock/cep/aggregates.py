"""Aggregates of windows, group by group, and the conditions on them.

Rules that hold here:
- A group is there while its window holds an event. An aggregate without values is
  missing, but for counts.
- A sliding window holds the events after `now - size`; one leaves at its time plus size.
- The conditions on an aggregate (its *outputs*) are kept with the group, and evaluated again
  only where a value has changed: most events change none.
- A timer is set only where time alone can cause what somebody waits for: a condition
  begins to hold, or a row ends that a join reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from typing_extensions import override

from penstock.cep.accumulators import Accumulator, make_accumulator
from penstock.cep.context import (
    FIELD_OF_ROOT,
    NEVER,
    EngineContext,
    ErasedPeople,
    Key,
    Row,
    Values,
    key_reader,
    pack_key,
    pack_row,
    unpack_key,
    unpack_row,
)
from penstock.cep.operators import (
    NO_ROWS,
    AggregateOutput,
    Detections,
    Feed,
    OperatorNode,
    RowDelta,
)
from penstock.cep.program import Aggregate, AggregateValue
from penstock.lang import INT
from penstock.lang.scalars import DAY, UNIVERSAL, Days
from penstock.lang.tree import find_path

_CHECK_EVERY: Final = 1024  # additions between two looks at how much a group keeps


class _Group:
    """The state of one group."""

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

    def __init__(self, it: Values, accumulators: list[Accumulator], outputs: int) -> None:
        self.it = it
        self.accumulators = accumulators
        self.rows: list[Row | None] = [None] * outputs
        self.expiry = NEVER
        self.wake = NEVER
        self.period = 0
        self.added = 0
        # What every event raises again, and the version of situations under which it last
        # led nowhere.
        self.raised: list[tuple[str, Row]] = []
        self.checked = -1


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
    """An aggregate with its outputs."""

    def __init__(
        self, index: int, context: EngineContext, spec: Aggregate, outputs: list[AggregateOutput]
    ) -> None:
        super().__init__(index, context)
        self._spec = spec
        self._outputs = outputs
        self._key = key_reader(spec.by)
        self._kind = spec.window.kind
        self._size = spec.window.size
        self._days = Days(spec.window.zone) if spec.window.zone != UNIVERSAL else None
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
        """Note whether a consumer takes rows that are raised again, when all are connected."""
        self._passes_on = any(output.passed_on and output.each for output in self._outputs)

    def follow(self, attributes: Mapping[str, set[str]]) -> None:
        """Learn by which attributes scenarios tell the subjects of events, by event type."""
        self._by_subject = self._only is not None and all(
            wanted == {self._only} and output.keeps(self._only)
            for output in self._outputs
            for name in output.names
            if (wanted := attributes.get(name))
        )

    def run(self, detected: Detections) -> None:
        """Take the events of this step and the ends of windows that are due."""
        inbox, self.inbox = self.inbox, []
        woken, self.woken = self.woken, []
        now, groups = self.context.now, self._groups
        touched: dict[Key, bool] = {}  # group → whether a value may have changed
        deltas = [RowDelta() for _ in self._outputs]
        for key in woken:
            group = groups.get(key)
            if group is not None:
                group.wake = NEVER
                self._expire(key, group, deltas)
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
                    self._expire(key, group, deltas)
                    group = groups.get(key)
                if group is None:
                    group = self._open(key, row)
                    changed = True
                if self._kind != "count" and not self._belongs(group, row.at, now):
                    touched[key] = changed
                    continue
                raising.add(key)
                touched[key] = self._add(group, takers, row) or changed
        self._settle(touched, raising, deltas, detected)

    @override
    def feeder(self, slot: int) -> Feed:
        only, takers = self._only, self._takers[slot]
        if only is None or not self._plain or self._passes_on or len(takers) != 1:
            return super().feeder(slot)
        context, size, by_subject = self.context, self._size, self._by_subject
        groups, changed_at, outputs = self._groups, context.changed, self._outputs
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
                self._settle({key: True}, {key}, [RowDelta() for _ in outputs], detected)
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
            return self._period(at) == group.period
        return True

    def _period(self, at: int) -> int:
        if self._days is None:
            return at // self._size
        return self._days.number(at) // (self._size // DAY)

    def _begin_period(self, period: int) -> int:
        if self._days is None:
            return period * self._size
        return self._days.begin(period * (self._size // DAY))

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
        group = _Group(it, self._accumulators(), len(self._outputs))
        if self._kind == "each":
            group.period = self._period(self.context.now)
        self._groups[key] = group
        return group

    def _accumulators(self) -> list[Accumulator]:
        return [
            make_accumulator(
                value.function,
                retain=self._kind == "last",
                whole=value.argument is not None and value.argument.type == INT,
                last_n=self._size if self._kind == "count" else None,
            )
            for value in self._spec.values
        ]

    def _expire(self, key: Key, group: _Group, deltas: list[RowDelta]) -> None:
        """Expire what has left the window, and evaluate what follows from that alone."""
        now = self.context.now
        if self._kind == "last":
            for accumulator in group.accumulators:
                accumulator.expire(now - self._size)
        elif self._kind == "each" and self._period(now) != group.period:
            group.accumulators = self._accumulators()
            group.period = self._period(now)
        self._evaluate(key, group, deltas, raising=False)

    def _settle(
        self,
        touched: dict[Key, bool],
        raising: set[Key],
        deltas: list[RowDelta],
        detected: Detections,
    ) -> None:
        """Evaluate the conditions again where values changed, and emit what follows."""
        before = self.context.uid
        for key, changed in touched.items():
            group = self._groups[key]
            if changed:
                self._evaluate(key, group, deltas, raising=key in raising)
            if key in raising:
                for output, row, delta in zip(self._outputs, group.rows, deltas, strict=True):
                    if row is not None and output.each and row.uid <= before:
                        delta.raise_again(row)
        if self._kind == "step":
            self._groups.clear()
        elif len(self._groups) > self.context.limits.keys:
            self._make_room(deltas)
        for output, delta in zip(self._outputs, deltas, strict=True):
            output.emit(detected, delta.added, delta.removed, delta.touched, delta.replaced)

    def _evaluate(self, key: Key, group: _Group, deltas: list[RowDelta], *, raising: bool) -> None:
        for name, accumulator in zip(self._names, group.accumulators, strict=True):
            group.it[name] = accumulator.result()
        if self._kind == "last":
            first = [at for it in group.accumulators if (at := it.first_at()) is not None]
            group.expiry = min(first) + self._size if first else NEVER
        elif self._kind == "each":
            group.expiry = self._begin_period(group.period + 1)
        empty = all(group.it[name] == none for name, none in self._nothing)
        wanted = False
        for place, (output, delta) in enumerate(zip(self._outputs, deltas, strict=True)):
            held = group.rows[place]
            values = None if empty else output.values_of(group.it)
            if held is not None and held.values == values:
                wanted = wanted or output.looked_at or output.wavers
                continue
            if held is not None:
                delta.removed.append(held)
            row = None if values is None else self.context.row(self.context.now, values)
            group.rows[place] = row
            if row is not None:
                # With other values it still holds: it is raised again only by an event.
                begins = held is None or (raising and output.each)
                (delta.added if begins else delta.replaced).append(row)
            wanted = wanted or (output.rises if row is None else output.looked_at or output.wavers)
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
            for output, row in zip(self._outputs, group.rows, strict=True)
            if row is not None and output.each
            for name in output.names
        ]

    def _make_room(self, deltas: list[RowDelta]) -> None:
        oldest = next(iter(self._groups))
        for row, delta in zip(self._groups.pop(oldest).rows, deltas, strict=True):
            if row is not None:
                delta.removed.append(row)
        self.context.counts["dropped_groups"] += 1

    @override
    def forget(self, people: ErasedPeople) -> None:
        """Forget people's groups, and people among the values of other groups."""
        deltas = [RowDelta() for _ in self._outputs]
        for key in [key for key in self._groups if people.has_key(self._spec.by, key)]:
            for row, delta in zip(self._groups.pop(key).rows, deltas, strict=True):
                if row is not None:
                    delta.removed.append(row)
        naming = {
            place for takers in self._takers for place, name, _ in takers
            if name in people.attributes
        }  # fmt: skip
        for key, group in list(self._groups.items()) if naming else ():
            named = {
                name for place in naming for name in group.accumulators[place].forget(people.name)
            }
            if named:
                people.found.update(named)
                self._evaluate(key, group, deltas, raising=False)
        for output, delta in zip(self._outputs, deltas, strict=True):
            output.emit([], delta.added, delta.removed, delta.touched, delta.replaced)

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
        return [[output.text for output in self._outputs], groups] if groups else None

    def load(self, state: Any) -> None:
        """Restore the groups and their timers.

        Outputs may have come and gone: what is new is evaluated in the next step.
        """
        texts, groups = state
        new = any(output.text not in texts for output in self._outputs)
        for key, by, saved, rows, period, expiry, wake in groups:
            it = dict(zip(self._spec.by, unpack_key(by), strict=True))
            group = _Group(it, self._accumulators(), len(self._outputs))
            for accumulator, part in zip(group.accumulators, saved, strict=True):
                accumulator.load(part)
            for name, accumulator in zip(self._names, group.accumulators, strict=True):
                it[name] = accumulator.result()
            held = {text: row for text, row in zip(texts, rows, strict=True) if row is not None}
            group.rows = [
                unpack_row(held[output.text]) if output.text in held else None
                for output in self._outputs
            ]
            group.period, group.expiry = period, expiry
            group.wake = min(wake, self.context.now) if new else wake
            self._note_raised(group)
            made = unpack_key(key)
            self._groups[made] = group
            if group.wake < NEVER:
                self.context.schedule(group.wake, self.index, made)
