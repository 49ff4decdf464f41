"""Joins: conjunction, sequence and negation, group by group.

Rules that hold here:
- A step evaluates only the groups that it changes.
- A conjunction is a relation: a match holds while all its rows do and no negated side has
  a row that rules it out. It is raised when it begins to hold, whatever brought that about:
  a row that came, or one that went.
- A sequence is a stream: it is raised when its last row arrives; with a negation at the
  end, when `within` is over. Its rows follow each other by time, then by arrival, and lie
  less than `within` apart.
- Rows of a window expire at their time plus its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import override

from penstock.cep.context import (
    NEVER,
    EngineContext,
    ErasedPeople,
    Key,
    Row,
    Values,
    key_reader,
    pack_key,
    pack_row,
    shaper,
    unpack_key,
    unpack_row,
)
from penstock.cep.operators import NO_ROWS, Detections, OperatorNode, Rows
from penstock.cep.program import Join

Match = tuple[Row, ...]


def _order(row: Row) -> tuple[int, int]:
    return row.at, row.uid


class _JoinGroup:
    """The state of one group: the rows of each side, the matches, the pending sequences."""

    __slots__ = ("matches", "pending", "sides", "wake")

    def __init__(self, sides: int) -> None:
        self.sides: list[dict[int, Row]] = [{} for _ in range(sides)]
        self.matches: dict[tuple[int, ...], Row] = {}
        self.pending: list[Match] = []
        self.wake = NEVER

    def is_empty(self) -> bool:
        return not self.pending and not self.matches and not any(self.sides)


class _Matcher:
    """Finds the matches among the rows of a group, side by side."""

    def __init__(self, spec: Join) -> None:
        self.windows = [side.window for side in spec.sides]
        self.positive = [place for place, side in enumerate(spec.sides) if not side.negated]
        self.negated = [place for place, side in enumerate(spec.sides) if side.negated]
        self._where = None if spec.where is None else spec.where.function
        self._rules: dict[int, Callable[..., Any] | None] = {
            place: None if (where := spec.sides[place].where) is None else where.function
            for place in self.negated
        }
        # A negated side at the end of a sequence is awaited: the match is pending until then.
        last = len(spec.sides) - 1
        self.awaited = last if spec.ordered and spec.sides[last].negated else None
        self._ordered = spec.ordered
        self._within = spec.within

    def find(self, group: _JoinGroup) -> Iterator[Match]:
        """Yield the matches of a group, negated sides left out of account."""
        for match in self._extend((), group):
            if self._where is None or self._where(*[row.values for row in match]) is True:
                yield match

    def _extend(self, match: Match, group: _JoinGroup) -> Iterator[Match]:
        if len(match) == len(self.positive):
            yield match
            return
        for row in group.sides[self.positive[len(match)]].values():
            if not (self._ordered and match) or self._follows(row, match):
                yield from self._extend((*match, row), group)

    def _follows(self, row: Row, match: Match) -> bool:
        return _order(row) > _order(match[-1]) and row.at - match[0].at < self._within

    def is_ruled_out(self, match: Match, group: _JoinGroup) -> bool:
        """Tell whether a negated side has a row against a match, but for the awaited one."""
        return any(
            self._has_against(place, match, group)
            for place in self.negated
            if place != self.awaited
        )

    def is_followed(self, match: Match, group: _JoinGroup) -> bool:
        """Tell whether the negated side at the end of a sequence has a row after a match."""
        return self.awaited is not None and self._has_against(self.awaited, match, group)

    def _has_against(self, place: int, match: Match, group: _JoinGroup) -> bool:
        rule = self._rules[place]
        after, before = self._bounds(place, match)
        values = [row.values for row in match]
        for row in group.sides[place].values():
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
        self._matcher = _Matcher(spec)
        self._key = key_reader(spec.by)
        self._shape: Callable[..., Values] = shaper(spec.assignments)
        self._groups: dict[Key, _JoinGroup] = {}

    def run(self, detected: Detections) -> None:
        """Look at the groups that this step changed."""
        inbox, self.inbox = self.inbox, []
        woken, self.woken = self.woken, []
        fresh: dict[Key, set[int]] = {key: set() for key in woken if key in self._groups}
        for key in fresh:
            self._groups[key].wake = NEVER
        for slot, added, removed, again in inbox:
            # In a window a row counts as having happened, whether it still holds or not.
            windowed = self._spec.sides[slot].window is not None
            for row in NO_ROWS if windowed else removed:
                key = self._key(row.values)
                group = self._groups.get(key)
                if group is not None and group.sides[slot].pop(row.uid, None) is not None:
                    fresh.setdefault(key, set())
            for row in [*added, *again] if windowed else added:
                self._take(slot, row, fresh)
        added_rows: Rows = []
        removed_rows: Rows = []
        for key, uids in fresh.items():
            group = self._groups[key]
            if group.pending:
                # Before rows leave: one of the same moment may be what should not follow.
                self._end_pending(group, added_rows)
            self._prune(group)
            if self._spec.ordered:
                self._follow(group, uids, added_rows)
            else:
                self._hold(group, added_rows, removed_rows)
            self._set_timer(key, group)
            if group.is_empty():
                del self._groups[key]
        if len(self._groups) > self.context.limits.keys:
            oldest = self._groups.pop(next(iter(self._groups)))
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
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _JoinGroup(len(self._spec.sides))
        if window is not None and row.uid in group.sides[slot]:
            # A relation's row that is raised again happened again.
            row = self.context.row(self.context.now, row.values)
        side = group.sides[slot]
        side[row.uid] = row
        if len(side) > self.context.limits.rows:
            del side[min(side, key=lambda uid: _order(side[uid]))]
            self.context.counts["dropped_rows"] += 1
        fresh.setdefault(key, set()).add(row.uid)

    def _prune(self, group: _JoinGroup) -> None:
        now = self.context.now
        for side, window in zip(group.sides, self._matcher.windows, strict=True):
            if window is not None:
                for uid in [row.uid for row in side.values() if row.at + window <= now]:
                    del side[uid]

    def _hold(self, group: _JoinGroup, added: Rows, removed: Rows) -> None:
        """Bring the matches of a conjunction up to date."""
        found: dict[tuple[int, ...], Row] = {}
        for match in self._matcher.find(group):
            if self._matcher.is_ruled_out(match, group):
                continue
            if len(found) >= self.context.limits.matches:
                self.context.counts["dropped_matches"] += 1
                break
            uids = tuple(row.uid for row in match)
            held = group.matches.pop(uids, None)
            if held is None:
                held = self._make(match, self.context.now)
                added.append(held)
            found[uids] = held
        removed.extend(group.matches.values())
        group.matches = found

    def _end_pending(self, group: _JoinGroup, added: Rows) -> None:
        """Raise the pending sequences whose `within` is over without a negated row."""
        now, within = self.context.now, self._spec.within
        for match in [it for it in group.pending if it[-1].at + within <= now]:
            group.pending.remove(match)
            if not self._matcher.is_followed(match, group):
                added.append(self._make(match, now))

    def _follow(self, group: _JoinGroup, fresh: set[int], added: Rows) -> None:
        """Find the sequences that new rows complete."""
        if not fresh:
            return
        count = 0
        for match in self._matcher.find(group):
            if not any(row.uid in fresh for row in match):
                continue
            if self._matcher.is_ruled_out(match, group):
                continue
            count += 1
            if count > self.context.limits.matches:
                self.context.counts["dropped_matches"] += 1
                break
            if self._matcher.awaited is None:
                added.append(self._make(match, match[-1].at))
            else:
                group.pending.append(match)

    def _make(self, match: Match, at: int) -> Row:
        return self.context.row(at, self._shape(*[row.values for row in match]))

    def _set_timer(self, key: Key, group: _JoinGroup) -> None:
        """Wake when a row leaves a window, or when a pending sequence is over."""
        ends = [match[-1].at + self._spec.within for match in group.pending]
        for side, window in zip(group.sides, self._matcher.windows, strict=True):
            if window is not None and side:
                ends.append(min(row.at for row in side.values()) + window)
        at = min(ends, default=NEVER)
        if at < group.wake:
            group.wake = at
            self.context.schedule(at, self.index, key)

    @override
    def forget(self, people: ErasedPeople) -> None:
        """Forget people's groups and rows; what others are left with is found in the next run."""
        gone = [key for key in self._groups if people.has_key(self._spec.by, key)]
        ended = [row for key in gone for row in self._groups.pop(key).matches.values()]
        for key, group in self._groups.items():
            found = False
            for side in group.sides:
                for uid in [uid for uid, row in side.items() if people.has_row(row.values)]:
                    del side[uid]
                    found = True
            for match in [*group.pending]:
                if any(people.has_row(row.values) for row in match):
                    group.pending.remove(match)
                    found = True
            if found:
                self.woken.append(key)
        self.emit([], NO_ROWS, ended, NO_ROWS)

    def save(self) -> Any:
        """Return the rows, matches and pending sequences of each group."""
        return [
            [
                pack_key(key),
                [[pack_row(row) for row in side.values()] for side in group.sides],
                [[list(uids), pack_row(row)] for uids, row in group.matches.items()],
                [[pack_row(row) for row in match] for match in group.pending],
                group.wake,
            ]
            for key, group in self._groups.items()
        ] or None

    def load(self, state: Any) -> None:
        """Restore the groups and their timers."""
        for packed, sides, matches, pending, wake in state:
            key = unpack_key(packed)
            group = self._groups[key] = _JoinGroup(len(self._spec.sides))
            for side, rows in zip(group.sides, sides, strict=True):
                side.update({row.uid: row for row in map(unpack_row, rows)})
            group.matches = {tuple(uids): unpack_row(row) for uids, row in matches}
            group.pending = [tuple(map(unpack_row, match)) for match in pending]
            group.wake = wake
            if wake < NEVER:
                self.context.schedule(wake, self.index, key)
