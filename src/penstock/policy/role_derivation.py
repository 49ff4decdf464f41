"""Which roles somebody has: the least set that activation rules lead to, and what stays of it.

    appointments, roles assigned ──▶ rules in the order of ranks ──▶ instances
    what was active              ──▶ its membership conditions ──────┘

Rules that hold here:
- An instance is active where all conditions of a rule hold now, or where it was activated by a
  rule before and the membership conditions of that activation hold ever since.
- An activation is a rule and the values of its variables. It ends for good when one of its
  membership conditions fails: to come back, all its conditions must hold.
- Roles that exclude each other are active neither, nor what needs them: who has a choice chooses.
- There are limits on instances and on work. Beyond them somebody has no roles at all.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.model.role_terms import Argument, Constant, Variable
from penstock.policy.role_program import (
    APPOINTMENT,
    ROLE,
    ActivationRule,
    Fact,
    Key,
    Program,
)

INSTANCE_LIMIT: Final = 20_000
WORK_LIMIT: Final = 200_000

Activation = tuple[ActivationRule, tuple[str, ...]]
"""A rule, and the values of its variables."""
ASSIGNED: Final = "user"
"""What a role that a user has without conditions is active by."""


class RoleLimitError(PenstockError):
    """Somebody would have more roles than can be watched."""


class Relation:
    """The facts of one name, found by values at some places."""

    __slots__ = ("_indexes", "facts")

    def __init__(self, facts: Iterable[tuple[str, ...]] = ()) -> None:
        self.facts: dict[tuple[str, ...], None] = dict.fromkeys(facts)
        self._indexes: dict[tuple[int, ...], dict[tuple[str, ...], list[tuple[str, ...]]]] = {}

    def add(self, values: tuple[str, ...]) -> bool:
        """Add a fact; False where it is known."""
        if values in self.facts:
            return False
        self.facts[values] = None
        for places, index in self._indexes.items():
            if places[-1] >= len(values):
                continue
            index.setdefault(tuple([values[at] for at in places]), []).append(values)
        return True

    def find(self, places: tuple[int, ...], wanted: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
        """Return the facts with these values at these places."""
        if not places:
            return tuple(self.facts)
        index = self._indexes.get(places)
        if index is None:
            index = self._indexes[places] = {}
            for values in self.facts:
                if places[-1] < len(values):
                    index.setdefault(tuple([values[at] for at in places]), []).append(values)
        return tuple(index.get(wanted, ()))


@dataclass(frozen=True, slots=True)
class Circumstances:
    """All that is known of somebody when roles are looked for."""

    appointments: Mapping[str, Relation] = field(default_factory=dict)
    """What they hold, by the credential's name."""
    assigned: tuple[str, ...] = ()
    domains: frozenset[str] = frozenset()
    s: Mapping[str, Any] = field(default_factory=dict)
    e: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ActiveRoles:
    """What somebody has: instances by role, and what each is active by."""

    relations: dict[str, Relation] = field(default_factory=dict)
    activations: dict[Activation, None] = field(default_factory=dict)
    timed: bool = False
    """Whether the passing of time alone may change it."""
    timed_apart: bool = False
    """Whether it may while no constraint changes that says the same of everybody."""
    barred: frozenset[str] = frozenset()
    """Roles that are not active because they exclude each other."""
    carried: frozenset[str] | None = None
    """The roles whose privileges count; None: all."""
    by: dict[str, set[str]] = field(default_factory=dict)
    """The rules by which roles are active."""
    trouble: str = ""
    """Why there are none, where limits are exceeded."""
    unchosen: ActiveRoles | None = None
    """What would be active without the choice: what limits a role limits who leaves it out, too."""

    def names(self) -> list[str]:
        """Return the roles whose privileges count, in order."""
        return sorted(
            name for name in self.relations if self.carried is None or name in self.carried
        )

    def gives_the_same_as(self, other: ActiveRoles) -> bool:
        """Tell whether the same instances count."""
        names = self.names()
        return (
            names == other.names()
            and all(self.relations[name].facts == other.relations[name].facts for name in names)
            and (self.unchosen is None) is (other.unchosen is None)
            and (
                self.unchosen is None
                or other.unchosen is None
                or self.unchosen.gives_the_same_as(other.unchosen)
            )
        )

    def instances(self) -> frozenset[Fact]:
        """Return all instances whose privileges count."""
        return frozenset(
            (name, values) for name in self.names() for values in self.relations[name].facts
        )


def derive(
    program: Program,
    known: Circumstances,
    before: Iterable[Activation] = (),
    chosen: Iterable[str] | None = None,
) -> ActiveRoles:
    """Find the roles of somebody; `before` is what was active, `chosen` what they want to use."""
    held = tuple(before)
    wanted = None if chosen is None else frozenset(chosen)
    allowed = None if wanted is None else program.support(wanted)
    barred: frozenset[str] = frozenset()
    timed = apart = False
    while True:
        found = _Derivation(program, known, held, allowed, barred).run()
        timed, apart = timed or found.timed, apart or found.timed_apart
        clashing = program.conflicts(found.relations)
        if not clashing:
            found.barred, found.timed, found.timed_apart = barred, timed, apart
            found.carried = None if wanted is None else program.included(wanted)
            return found
        barred |= clashing


class _Derivation:
    """One pass over the roles, in the order of ranks."""

    def __init__(
        self,
        program: Program,
        known: Circumstances,
        before: tuple[Activation, ...],
        allowed: frozenset[str] | None,
        barred: frozenset[str],
    ) -> None:
        self.program = program
        self.known = known
        self.allowed = allowed
        self.barred = barred
        self.active = ActiveRoles()
        self.work = 0
        self.count = 0
        self._waiting: list[tuple[int, str]] = []
        self._queued: set[str] = set()
        self._before: dict[str, list[Activation]] = {}
        for activation in before:
            self._before.setdefault(activation[0].role, []).append(activation)

    def run(self) -> ActiveRoles:
        program = self.program
        for name in program.unconditional:
            self._queue(name)
        for credential in self.known.appointments:
            for name in program.needing.get((APPOINTMENT, credential), ()):
                self._queue(name)
        for name in self._before:
            self._queue(name)
        for name in self.known.assigned:
            shape = program.roles.get(name)
            if shape is not None and not shape.parameters and self._may(name):
                self._add(name, (), ASSIGNED)
        while self._waiting:
            _, name = heapq.heappop(self._waiting)
            self._queued.discard(name)
            try:
                self._look_at(name)
            except RoleLimitError as error:
                raise RoleLimitError(f"role {name}: {error.message}", fix=error.fix) from None
        return self.active

    def _may(self, name: str) -> bool:
        return name not in self.barred and (self.allowed is None or name in self.allowed)

    def _queue(self, name: str) -> None:
        if name not in self._queued and self._may(name):
            self._queued.add(name)
            heapq.heappush(self._waiting, (self.program.ranks.get(name, 0), name))

    def _look_at(self, role: str) -> None:
        known, active = self.known, self.active
        for rule in self.program.by_role.get(role, ()):
            if rule.domain is not None and rule.domain not in known.domains:
                continue
            if all(self._relation(key) is not None for key in rule.needs):
                active.timed = active.timed or rule.timed
                active.timed_apart = active.timed_apart or rule.timed_apart
                for values in self._activations(rule):
                    active.activations[rule, values] = None
                    self._add(role, _head(rule, values), f"activation-rule {rule.name}")
        for activation in self._before.get(role, ()):
            rule, values = activation
            if activation not in active.activations and self._holds_on(rule, values):
                active.timed = active.timed or rule.timed
                active.timed_apart = active.timed_apart or rule.timed_apart
                active.activations[activation] = None
                self._add(role, _head(rule, values), f"activation-rule {rule.name}")

    def _add(self, role: str, values: tuple[str, ...], by: str) -> None:
        """Add an instance, and those of all roles that it includes."""
        program, active = self.program, self.active
        waiting = [(role, values, by)]
        while waiting:
            name, held, way = waiting.pop()
            active.by.setdefault(name, set()).add(way)
            relation = active.relations.get(name)
            if relation is None:
                relation = active.relations[name] = Relation()
            if not relation.add(held):
                continue
            self.count += 1
            if self.count > INSTANCE_LIMIT:
                raise RoleLimitError(f"more than {INSTANCE_LIMIT} role instances would be active")
            for needing in program.needing.get((ROLE, name), ()):
                self._queue(needing)
            shape = program.roles.get(name)
            if shape is None or not shape.includes:
                continue
            named = dict(zip(shape.parameters, held, strict=True))
            for included in shape.includes:
                other = program.roles.get(included)
                if other is not None and self._may(included):
                    given = tuple([named[it] for it in other.parameters])
                    waiting.append((included, given, f"role {name}"))

    def _relation(self, key: Key) -> Relation | None:
        kind, name = key
        held = self.active.relations if kind == ROLE else self.known.appointments
        return held.get(name)

    # --- all conditions, at activation ---

    def _activations(self, rule: ActivationRule) -> Iterator[tuple[str, ...]]:
        bound = self._bind(rule)
        if bound is None:
            return
        for found in self._join(rule, 0, bound):
            if self._satisfies(rule, found, membership_only=False):
                yield tuple([found[name] for name in rule.variables])

    def _bind(self, rule: ActivationRule) -> dict[str, str] | None:
        bound: dict[str, str] = {}
        for name, value_of in rule.bindings:
            value = value_of(self.known.s)
            if type(value) is not str:
                return None
            bound[name] = value
        return bound

    def _join(
        self, rule: ActivationRule, at: int, bound: dict[str, str]
    ) -> Iterator[dict[str, str]]:
        if at == len(rule.atoms):
            yield bound
            return
        atom = rule.atoms[at]
        relation = self._relation(atom.key)
        if relation is None:
            return
        for values in self._matching(relation, atom.arguments, bound):
            further = _unify(atom.arguments, values, bound)
            if further is not None:
                yield from self._join(rule, at + 1, further)

    def _matching(
        self, relation: Relation, arguments: tuple[Argument, ...], bound: Mapping[str, str]
    ) -> Iterable[tuple[str, ...]]:
        places: list[int] = []
        wanted: list[str] = []
        for place, argument in enumerate(arguments):
            value = (
                argument.value
                if isinstance(argument, Constant)
                else bound.get(argument.name)
                if isinstance(argument, Variable)
                else None
            )
            if value is not None:
                places.append(place)
                wanted.append(value)
        found = relation.find(tuple(places), tuple(wanted))
        self.work += 1 + (len(found) if isinstance(found, tuple) else 0)
        if self.work > WORK_LIMIT:
            raise RoleLimitError(
                f"activation rules try more than {WORK_LIMIT} combinations",
                fix="let conditions of a rule share variables",
            )
        return found

    # --- membership conditions, ever since ---

    def _holds_on(self, rule: ActivationRule, values: tuple[str, ...]) -> bool:
        """Tell whether an activation of before holds on."""
        if rule not in self.program.held:
            return False
        if rule.domain is not None and rule.domain not in self.known.domains:
            return False
        bound = dict(zip(rule.variables, values, strict=True))
        if any(value_of(self.known.s) != bound[name] for name, value_of in rule.bindings):
            return False
        for atom in rule.atoms:
            if atom.membership:
                relation = self._relation(atom.key)
                if relation is None:
                    return False
                if not any(
                    _unify(atom.arguments, it, bound) is not None
                    for it in self._matching(relation, atom.arguments, bound)
                ):
                    return False
        return self._satisfies(rule, bound, membership_only=True)

    def _satisfies(
        self, rule: ActivationRule, bound: Mapping[str, str], *, membership_only: bool
    ) -> bool:
        s, e = self.known.s, self.known.e
        return all(
            it.holds(s, e, bound) is True
            for it in rule.constraints
            if it.membership or not membership_only
        )


def _head(rule: ActivationRule, values: tuple[str, ...]) -> tuple[str, ...]:
    bound = dict(zip(rule.variables, values, strict=True))
    return tuple([_value(argument, bound) for argument in rule.arguments])


def _value(argument: Argument, bound: Mapping[str, str]) -> str:
    if isinstance(argument, Constant):
        return argument.value
    if isinstance(argument, Variable):
        return bound[argument.name]
    raise TypeError("an activation rule looks at no message")


def _unify(
    arguments: tuple[Argument, ...], values: tuple[str, ...], bound: dict[str, str]
) -> dict[str, str] | None:
    """Return the variables with what a fact says of them; None where it says otherwise."""
    if len(arguments) != len(values):
        return None
    found = bound
    for argument, value in zip(arguments, values, strict=True):
        if isinstance(argument, Constant):
            if argument.value != value:
                return None
        elif isinstance(argument, Variable) and not argument.is_anything:
            known = found.get(argument.name)
            if known is None:
                if found is bound:
                    found = dict(bound)
                found[argument.name] = value
            elif known != value:
                return None
    return found
