"""Joins: conjunction, sequence and negation, group by group.

Rules that hold here:
- What one step changes in a group is looked at anew for that group alone.
- A conjunction is a relation: a match holds while all its rows do and no negated side has
  a row that rules it out. It is raised when it begins to hold, whatever brought that about:
  a row that came, or one that went.
- A sequence is a stream: it is raised when its last row arrives; with a negation at the
  end, when `within` is over. Its rows follow each other by time, then by arrival, and lie
  less than `within` apart.
- Rows of a window leave it at their time plus its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.cep.algebra import Join
from penstock.cep.operators.nodes import NO_ROWS, OperatorNode, Rows
from penstock.cep.rows import NEVER, EngineContext, Key, Row, Values, key_reader, shaper
from penstock.cep.state_codec import pack_key, pack_row, unpack_key, unpack_row

Match = tuple[Row, ...]


def _order(row: Row) -> tuple[int, int]:
    return row.at, row.uid


class _Cell:
    """What is kept of one group: the rows of each side, the matches, what is awaited."""

    __slots__ = ("matches", "sides", "waiting", "wake")

    def __init__(self, sides: int) -> None:
        self.sides: list[dict[int, Row]] = [{} for _ in range(sides)]
        self.matches: dict[tuple[int, ...], Row] = {}
        self.waiting: list[Match] = []
        self.wake = NEVER

    def is_empty(self) -> bool:
        return not self.waiting and not self.matches and not any(self.sides)


class _Sides:
    """The sides of a join, and which rows of them go together."""

    def __init__(self, spec: Join) -> None:
        self.windows = [side.window for side in spec.sides]
        self.positive = [place for place, side in enumerate(spec.sides) if not side.negated]
        self.negated = [place for place, side in enumerate(spec.sides) if side.negated]
        self._where = None if spec.where is None else spec.where.function
        self._rules: dict[int, Callable[..., Any] | None] = {
            place: None if (where := spec.sides[place].where) is None else where.function
            for place in self.negated
        }
        # A negated side at the end of a sequence is awaited, not looked at.
        last = len(spec.sides) - 1
        self.awaited = last if spec.ordered and spec.sides[last].negated else None
        self._ordered = spec.ordered
        self._within = spec.within

    def find(self, cell: _Cell) -> Iterator[Match]:
        """Yield the matches of a group, negated sides left out of account."""
        for match in self._extend((), cell):
            if self._where is None or self._where(*[row.values for row in match]) is True:
                yield match

    def _extend(self, match: Match, cell: _Cell) -> Iterator[Match]:
        if len(match) == len(self.positive):
            yield match
            return
        for row in cell.sides[self.positive[len(match)]].values():
            if not (self._ordered and match) or self._follows(row, match):
                yield from self._extend((*match, row), cell)

    def _follows(self, row: Row, match: Match) -> bool:
        return _order(row) > _order(match[-1]) and row.at - match[0].at < self._within

    def is_ruled_out(self, match: Match, cell: _Cell) -> bool:
        """Tell whether a negated side has a row against a match, but for the awaited one."""
        return any(
            self._has_against(place, match, cell) for place in self.negated if place != self.awaited
        )

    def is_disappointed(self, match: Match, cell: _Cell) -> bool:
        """Tell whether what should not follow a match has followed."""
        return self.awaited is not None and self._has_against(self.awaited, match, cell)

    def _has_against(self, place: int, match: Match, cell: _Cell) -> bool:
        rule = self._rules[place]
        after, before = self._bounds(place, match)
        values = [row.values for row in match]
        for row in cell.sides[place].values():
            if self._ordered and not after < _order(row) < before:
                continue
            if rule is None or rule(*values, row.values) is True:
                return True
        return False

    def _bounds(self, place: int, match: Match) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return between which moments a negated row of a sequence counts."""
        left = sum(other < place for other in self.positive)
        after = _order(match[left - 1]) if left else (match[0].at - self._within, NEVER)
        if left < len(match):
            return after, _order(match[left])
        return after, (match[-1].at + self._within, -1)


class JoinNode(OperatorNode):
    """A conjunction or a sequence."""

    def __init__(self, index: int, context: EngineContext, spec: Join) -> None:
        super().__init__(index, context)
        self._spec = spec
        self._sides = _Sides(spec)
        self._key = key_reader(spec.by)
        self._shape: Callable[..., Values] = shaper(spec.assignments)
        self._cells: dict[Key, _Cell] = {}

    def run(self, detected: list[tuple[str, Row]]) -> None:
        """Look at the groups that this step changed."""
        inbox, self.inbox = self.inbox, []
        woken, self.woken = self.woken, []
        fresh: dict[Key, set[int]] = {key: set() for key in woken if key in self._cells}
        for key in fresh:
            self._cells[key].wake = NEVER
        for slot, added, removed, again in inbox:
            # In a window a row counts as having happened, whether it still holds or not.
            windowed = self._spec.sides[slot].window is not None
            for row in NO_ROWS if windowed else removed:
                key = self._key(row.values)
                cell = self._cells.get(key)
                if cell is not None and cell.sides[slot].pop(row.uid, None) is not None:
                    fresh.setdefault(key, set())
            for row in [*added, *again] if windowed else added:
                self._take(slot, row, fresh)
        added_rows: Rows = []
        removed_rows: Rows = []
        for key, uids in fresh.items():
            cell = self._cells[key]
            if cell.waiting:
                # Before rows leave: one of the same moment may be what should not follow.
                self._end_waiting(cell, added_rows)
            self._prune(cell)
            if self._spec.ordered:
                self._follow(cell, uids, added_rows)
            else:
                self._hold(cell, added_rows, removed_rows)
            self._set_timer(key, cell)
            if cell.is_empty():
                del self._cells[key]
        if len(self._cells) > self.context.limits.keys:
            oldest = self._cells.pop(next(iter(self._cells)))
            removed_rows.extend(oldest.matches.values())
            self.context.counts["dropped_groups"] += 1
        self.emit(detected, added_rows, removed_rows, NO_ROWS)

    def _take(self, slot: int, row: Row, fresh: dict[Key, set[int]]) -> None:
        window = self._spec.sides[slot].window
        if window is not None and row.at + window <= self.context.now:
            return
        key = self._key(row.values)
        if key is None:
            return
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Cell(len(self._spec.sides))
        if window is not None and row.uid in cell.sides[slot]:
            # A relation's row that is raised again happened again.
            row = self.context.row(self.context.now, row.values)
        side = cell.sides[slot]
        side[row.uid] = row
        if len(side) > self.context.limits.rows:
            del side[min(side, key=lambda uid: _order(side[uid]))]
            self.context.counts["dropped_rows"] += 1
        fresh.setdefault(key, set()).add(row.uid)

    def _prune(self, cell: _Cell) -> None:
        now = self.context.now
        for side, window in zip(cell.sides, self._sides.windows, strict=True):
            if window is not None:
                for uid in [row.uid for row in side.values() if row.at + window <= now]:
                    del side[uid]

    def _hold(self, cell: _Cell, added: Rows, removed: Rows) -> None:
        """Bring the matches of a conjunction up to date."""
        found: dict[tuple[int, ...], Row] = {}
        for match in self._sides.find(cell):
            if self._sides.is_ruled_out(match, cell):
                continue
            if len(found) >= self.context.limits.matches:
                self.context.counts["dropped_matches"] += 1
                break
            uids = tuple(row.uid for row in match)
            held = cell.matches.pop(uids, None)
            if held is None:
                held = self._make(match, self.context.now)
                added.append(held)
            found[uids] = held
        removed.extend(cell.matches.values())
        cell.matches = found

    def _end_waiting(self, cell: _Cell, added: Rows) -> None:
        """Raise the sequences that have waited long enough, and in vain."""
        now, within = self.context.now, self._spec.within
        for match in [it for it in cell.waiting if it[-1].at + within <= now]:
            cell.waiting.remove(match)
            if not self._sides.is_disappointed(match, cell):
                added.append(self._make(match, now))

    def _follow(self, cell: _Cell, fresh: set[int], added: Rows) -> None:
        """Find the sequences that new rows complete."""
        if not fresh:
            return
        count = 0
        for match in self._sides.find(cell):
            if not any(row.uid in fresh for row in match):
                continue
            if self._sides.is_ruled_out(match, cell):
                continue
            count += 1
            if count > self.context.limits.matches:
                self.context.counts["dropped_matches"] += 1
                break
            if self._sides.awaited is None:
                added.append(self._make(match, match[-1].at))
            else:
                cell.waiting.append(match)

    def _make(self, match: Match, at: int) -> Row:
        return self.context.row(at, self._shape(*[row.values for row in match]))

    def _set_timer(self, key: Key, cell: _Cell) -> None:
        """Wake when a row leaves a window, or when a sequence has waited enough."""
        ends = [match[-1].at + self._spec.within for match in cell.waiting]
        for side, window in zip(cell.sides, self._sides.windows, strict=True):
            if window is not None and side:
                ends.append(min(row.at for row in side.values()) + window)
        at = min(ends, default=NEVER)
        if at < cell.wake:
            cell.wake = at
            self.context.schedule(at, self.index, key)

    def save(self) -> Any:
        """Return the rows, matches and waiting sequences of each group."""
        return [
            [
                pack_key(key),
                [[pack_row(row) for row in side.values()] for side in cell.sides],
                [[list(uids), pack_row(row)] for uids, row in cell.matches.items()],
                [[pack_row(row) for row in match] for match in cell.waiting],
                cell.wake,
            ]
            for key, cell in self._cells.items()
        ] or None

    def load(self, state: Any) -> None:
        """Take the groups back, and set their timers."""
        for packed, sides, matches, waiting, wake in state:
            key = unpack_key(packed)
            cell = self._cells[key] = _Cell(len(self._spec.sides))
            for side, rows in zip(cell.sides, sides, strict=True):
                side.update({row.uid: row for row in map(unpack_row, rows)})
            cell.matches = {tuple(uids): unpack_row(row) for uids, row in matches}
            cell.waiting = [tuple(map(unpack_row, match)) for match in waiting]
            cell.wake = wake
            if wake < NEVER:
                self.context.schedule(wake, self.index, key)
