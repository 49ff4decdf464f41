"""What a draft of the definitions changes of who sees what, before it is applied.

    before, after ─▶ one example of each topic ─▶ subject, purpose, situation ─▶ what differs
                  └▶ what gateways decided lately ─▶ decided anew ─▶ what would be another decision

Rules that hold here:
- The access matrix of both sides is compared: what is told is what a gateway does.
- Looking is bounded in time. What was not looked at is said, never taken for unchanged.
- Both sides are asked about the examples, subjects and purposes of both. A situation that one side
  has not is there what is ordinary.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from penstock.clock import utc_now
from penstock.definitions import DefinitionSet
from penstock.definitions.access_matrix import (
    ORDINARY,
    Cell,
    Degree,
    Question,
    list_subjects,
    look_at_view,
    make_examples,
    make_matrix,
)
from penstock.errors import UsageError
from penstock.model import kinds
from penstock.model.purposes import PurposeSet
from penstock.policy.access.emergencies import Situations
from penstock.policy.access.requests import AccessRequest, Message
from penstock.policy.authorizer import Authorizer
from penstock.policy.decision import Depends
from penstock.store.enforcement_points import RecentDecision

SECONDS: Final = 4.0
_MOST_KEPT: Final = 500
_RANK: Final[dict[Degree, int]] = {"none": 0, "removed": 0, "changed": 1, "full": 2}

Direction = Literal["opens", "closes", "changes"]
Seen = dict[str, tuple[Degree, str]]
_LOOKS: Final = 256
"""So many cells are worked out between two looks at the clock."""


class Place(NamedTuple):
    """What somebody sees, of what, for what, and when."""

    subject: str
    source: str
    purpose: str
    situation: str


@dataclass(frozen=True, slots=True)
class AccessChange:
    """What changes for somebody, of one topic or view."""

    subject: str
    source: str
    purpose: str
    situation: str
    direction: Direction
    attributes: tuple[tuple[str, Degree, Degree], ...]
    rule: str
    """What decides afterwards."""


@dataclass(slots=True)
class AccessEffect:
    """All that changes, as far as it was looked at."""

    changes: list[AccessChange] = field(default_factory=list)
    looked: int = 0
    left: int = 0
    """How many subjects were not looked at: the time was over."""
    total: int = 0
    """How many changed, also those that are not kept."""


def find_effect(
    make: Callable[[DefinitionSet], Authorizer],
    before: DefinitionSet,
    after: DefinitionSet,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> AccessEffect:
    """Return how access differs between two sets of definitions; `make` makes what decides."""
    effect, end = AccessEffect(), clock() + seconds
    old, new = make(before), make(after)
    # Views first: there are few, and what they leave needs no example.
    for change in _compare_views(before, after):
        _note(effect, change)
    sides = (before, after)
    found = {(it.topic, it.stream): it for side in sides for it in make_examples(side, Question())}
    examples = list(found.values())
    subjects = list(dict.fromkeys(it for side in (after, before) for it in list_subjects(side)))
    purposes = [None, *sorted({*before.of(kinds.Purpose), *after.of(kinds.Purpose)})]
    for number, subject in enumerate(subjects):
        question = Question(subjects=[subject], purposes=purposes)
        try:
            was = _gather(make_matrix(old, before, question, examples), end, clock)
            will = _gather(make_matrix(new, after, question, examples), end, clock)
        except (_TimeIsOverError, UsageError):
            effect.left = len(subjects) - number
            break
        for place in dict.fromkeys((*will, *was)):
            effect.looked += 1
            differs = _compare(place, _find(was, place), _find(will, place))
            if differs is not None:
                _note(effect, differs)
    return effect


class _TimeIsOverError(Exception):
    """There is more to look at than time."""


def _note(effect: AccessEffect, change: AccessChange) -> None:
    effect.total += 1
    if len(effect.changes) < _MOST_KEPT:
        effect.changes.append(change)


def _gather(cells: Iterable[Cell], end: float, clock: Callable[[], float]) -> dict[Place, Seen]:
    found: dict[Place, Seen] = {}
    for number, it in enumerate(cells):
        if number % _LOOKS == 0 and clock() > end:
            raise _TimeIsOverError
        place = Place(it.subject, it.source, it.purpose or "", it.situation)
        found.setdefault(place, {})[it.attribute] = (it.degree, it.rule)
    return found


def _find(seen: Mapping[Place, Seen], place: Place) -> Seen:
    """Return what is seen there; in a situation that there is not, what is seen ordinarily."""
    found = seen.get(place)
    return found if found is not None else seen.get(place._replace(situation=ORDINARY), {})


def _compare_views(before: DefinitionSet, after: DefinitionSet) -> Iterator[AccessChange]:
    names = sorted({*before.of(kinds.View), *after.of(kinds.View)})
    for name in names:
        was, will = (_leave(side, name) for side in (before, after))
        held, wanted = (_readers(side, name) for side in (before, after))
        for reader in sorted(held | wanted):
            found = _compare(
                Place(reader, f"view {name}", "", ORDINARY),
                was if reader in held else _nothing(was),
                will if reader in wanted else _nothing(will or was),
            )
            if found is not None:
                yield found


def _leave(definitions: DefinitionSet, name: str) -> Seen:
    view = definitions.of(kinds.View).get(name)
    if view is None:
        return {}
    return {field_: (degree, rule) for field_, degree, rule in look_at_view(definitions, view)}


def _nothing(seen: Seen) -> Seen:
    return dict.fromkeys(seen, ("none", "no role that reads the view"))


def _readers(definitions: DefinitionSet, name: str) -> set[str]:
    """Return the roles that may read a view."""
    view = definitions.of(kinds.View).get(name)
    named = set(view.roles) if view is not None else set()
    for role, it in definitions.of(kinds.Role).items():
        if any(("view", name) == permission.target for permission in it.permissions):
            named.add(role)
    return {f"role {it}" for it in named}


def _compare(place: Place, was: Seen, will: Seen) -> AccessChange | None:
    nothing: tuple[Degree, str] = ("none", "")
    differing: list[tuple[str, Degree, Degree]] = []
    for name in dict.fromkeys((*was, *will)):
        one, other = was.get(name, nothing)[0], will.get(name, nothing)[0]
        if one != other:
            differing.append((name, one, other))
    if not differing:
        return None
    steps = {_sign(one, other) for _, one, other in differing}
    direction: Direction = "changes"
    if steps == {1}:
        direction = "opens"
    elif steps == {-1}:
        direction = "closes"
    rule = next((will[name][1] for name, _, _ in differing if name in will), "no such stream")
    return AccessChange(*place, direction, tuple(differing), rule)


def _sign(one: Degree, other: Degree) -> int:
    difference = _RANK[other] - _RANK[one]
    return (difference > 0) - (difference < 0)


def summarize(changes: Iterable[AccessChange]) -> Sequence[tuple[Direction, int]]:
    """Return how many changes open, close, or change what is seen."""
    counts: dict[Direction, int] = {"opens": 0, "closes": 0, "changes": 0}
    for it in changes:
        counts[it.direction] += 1
    return [(word, count) for word, count in counts.items() if count]


REPLAY_SECONDS: Final = 2.0
_MOST_REPLAYED: Final = 200


@dataclass(frozen=True, slots=True)
class ReplayedDecision:
    """A recent decision that would be another one."""

    decision: RecentDecision
    times: int
    will_be_allowed: bool
    rule: str
    """What would decide then."""


@dataclass(slots=True)
class Replay:
    """Recent decisions, decided anew under a draft."""

    changes: list[ReplayedDecision] = field(default_factory=list)
    same: int = 0
    unknown: int = 0
    """How many cannot be decided anew: by what messages said, or by what has changed since."""
    left: int = 0
    """How many were not looked at: the time was over."""


def replay(
    decisions: Sequence[RecentDecision],
    before: Authorizer,
    after: Authorizer,
    situations: Situations,
    *,
    seconds: float = REPLAY_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Replay:
    """Decide anew what was decided, under the definitions in force and under those of a draft.

    Only what the definitions in force decide as it was decided counts: what does not was decided
    by something that is not known here (a payload, an opt-out, a situation that is over).
    """
    found, end = Replay(), clock() + seconds
    counted = Counter(_freeze(it) for it in decisions)
    for number, (decision, times) in enumerate(counted.items()):
        if number % 32 == 0 and clock() > end:
            found.left = (
                counted.total() - found.same - found.unknown - sum(it.times for it in found.changes)
            )
            break
        was, _ = _decide(before, decision, situations)
        will, rule = _decide(after, decision, situations)
        if was is None or will is None or was != decision.allowed:
            found.unknown += times
        elif was == will:
            found.same += times
        elif len(found.changes) < _MOST_REPLAYED:
            found.changes.append(ReplayedDecision(decision, times, will, rule))
        else:
            found.left += times
    return found


def _freeze(it: RecentDecision) -> RecentDecision:
    aip, pip = (None if some is None else tuple(some) for some in (it.aip, it.pip))
    return it._replace(at=0.0, purposes=tuple(it.purposes), aip=aip, pip=pip)


def _decide(
    authorizer: Authorizer, it: RecentDecision, situations: Situations
) -> tuple[bool | None, str]:
    """Return whether something is allowed, and by which rule; None: that depends on the message."""
    carried = None if it.aip is None else PurposeSet.of(it.aip, it.pip or ())
    reads, rule, unsure = it.action == "read", "", False
    for purpose in it.purposes or (None,):
        request = AccessRequest(
            it.action,
            it.topic,
            it.user,
            it.client,
            purpose if reads else None,
            carried,
            message=Message(
                it.topic,
                {},
                user=it.publisher if reads else it.user,
                client=it.publishing_client if reads else it.client,
                behalf=it.behalf,
            ),
            environment={"time": utc_now()},
            situations=situations,
        )
        decision = authorizer.authorize(request)
        rule = decision.rule or authorizer.explain(request).rule
        looks_inside = bool(authorizer.access.layout(it.topic).paths)
        if decision.depends & Depends.MESSAGE or (
            decision.depends & Depends.OBJECT and looks_inside
        ):
            unsure = True
        elif decision.allowed:
            return True, rule
    return (None if unsure else False), rule
