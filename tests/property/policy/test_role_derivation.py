"""Roles are those of a naive fixed point, through any sequence of changes of what is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.role_terms import Argument, Constant, Variable
from penstock.policy.role_derivation import Activation, Circumstances, Relation, derive
from penstock.policy.role_program import (
    APPOINTMENT,
    ROLE,
    ActivationRule,
    Atom,
    Constraint,
    Fact,
    Program,
    RoleShape,
)
from tests.support.scale import scaled

VALUES = ("x", "y")
VARIABLES = ("a", "b")
ROLES = {"r0": 0, "r1": 1, "r2": 1, "r3": 2, "r4": 0}
CREDENTIALS = {"c0": 0, "c1": 1, "c2": 2}
FLAGS = ("f", "g")


def _flag(name: str) -> Any:
    return lambda _s, e, _r: e.get(name, False)


def _differs(_s: Mapping[str, Any], _e: Mapping[str, Any], r: Mapping[str, str]) -> bool:
    return r.get("a") != r.get("b")


def _attribute(s: Mapping[str, Any]) -> Any:
    return s.get("uid")


@st.composite
def _terms(draw: st.DrawFn, count: int, *, anything: bool) -> tuple[Argument, ...]:
    choices: list[Argument] = [*map(Variable, VARIABLES), *map(Constant, VALUES)]
    if anything:
        choices.append(Variable("_"))
    return tuple(draw(st.sampled_from(choices)) for _ in range(count))


@st.composite
def _rules(draw: st.DrawFn, number: int) -> ActivationRule:
    names = list(ROLES)
    head = draw(st.sampled_from(names))
    below = names[: names.index(head)]
    atoms = []
    for _ in range(draw(st.integers(0, 3))):
        choices = [(ROLE, it) for it in below] + [(APPOINTMENT, it) for it in CREDENTIALS]
        key = draw(st.sampled_from(choices))
        count = (ROLES if key[0] == ROLE else CREDENTIALS)[key[1]]
        terms = draw(_terms(count, anything=True))
        atoms.append(Atom(key, terms, draw(st.booleans())))
    constraints = [
        Constraint(draw(st.sampled_from([_flag("f"), _flag("g"), _differs])), draw(st.booleans()))
        for _ in range(draw(st.integers(0, 2)))
    ]
    bindings = (("a", _attribute),) if draw(st.booleans()) else ()
    given_by = {it.name for atom in atoms for it in atom.arguments if isinstance(it, Variable)}
    given_by |= {name for name, _ in bindings}
    arguments = tuple(
        it if not isinstance(it, Variable) or it.name in given_by else Constant("x")
        for it in draw(_terms(ROLES[head], anything=False))
    )
    domain = draw(st.sampled_from([None, None, "top", "low"]))
    return ActivationRule(
        f"rule-{number}", head, arguments, tuple(atoms), tuple(constraints), bindings, domain
    )


@st.composite
def _programs(draw: st.DrawFn) -> Program:
    count = draw(st.integers(1, 6))
    names = ("p", "q")
    shapes = {}
    for name, parameters in ROLES.items():
        # Inclusion may lead back to a prerequisite, and never to itself.
        fitting = [it for it in ROLES if ROLES[it] <= parameters and it > name]
        includes = tuple(draw(st.sets(st.sampled_from(fitting), max_size=1))) if fitting else ()
        others = [it for it in ROLES if it != name]
        excludes = tuple(draw(st.sets(st.sampled_from(others), max_size=1)))
        if draw(st.integers(0, 3)):
            excludes = ()
        shapes[name] = RoleShape(names[:parameters], includes, excludes)
    rules = tuple(draw(_rules(number)) for number in range(count))
    return Program(shapes, rules, {"top": None, "low": "top"}, {"user:ann": frozenset({"low"})})


@dataclass
class World:
    """What is known of somebody, as plain sets."""

    held: set[Fact] = field(default_factory=set)
    assigned: tuple[str, ...] = ()
    domains: frozenset[str] = frozenset()
    uid: str | None = None
    flags: Mapping[str, bool] = field(default_factory=dict)

    def circumstances(self) -> Circumstances:
        relations: dict[str, Relation] = {}
        for name, values in sorted(self.held):
            relations.setdefault(name, Relation()).add(values)
        s = {} if self.uid is None else {"uid": self.uid}
        return Circumstances(relations, self.assigned, self.domains, s, self.flags)


@st.composite
def _worlds(draw: st.DrawFn) -> World:
    all_held = [
        (name, values)
        for name, count in CREDENTIALS.items()
        for values in product(VALUES, repeat=count)
    ]
    return World(
        draw(st.sets(st.sampled_from(all_held), max_size=5)),
        tuple(draw(st.sets(st.sampled_from(["r0", "r4"])))),
        draw(st.sampled_from([frozenset(), frozenset({"top"}), frozenset({"top", "low"})])),
        draw(st.sampled_from([None, *VALUES])),
        draw(st.fixed_dictionaries({name: st.booleans() for name in FLAGS})),
    )


def _ground(argument: Argument, bound: Mapping[str, str]) -> str | None:
    if isinstance(argument, Constant):
        return argument.value
    assert isinstance(argument, Variable)
    return bound.get(argument.name)


def _matches(atom: Atom, bound: Mapping[str, str], facts: Iterable[Fact]) -> bool:
    return any(
        name == atom.key[1]
        and len(values) == len(atom.arguments)
        and all(
            (isinstance(it, Variable) and it.is_anything) or _ground(it, bound) == value
            for it, value in zip(atom.arguments, values, strict=True)
        )
        for name, values in facts
    )


def _holds(
    rule: ActivationRule, values: tuple[str, ...], world: World, active: set[Fact], *, all_: bool
) -> bool:
    bound = dict(zip(rule.variables, values, strict=True))
    s = {} if world.uid is None else {"uid": world.uid}
    return (
        (rule.domain is None or rule.domain in world.domains)
        and all(value_of(s) == bound[name] for name, value_of in rule.bindings)
        and all(
            _matches(atom, bound, active if atom.key[0] == ROLE else world.held)
            for atom in rule.atoms
            if all_ or atom.membership
        )
        and all(it.holds(s, world.flags, bound) for it in rule.constraints if all_ or it.membership)
    )


def _naive(
    program: Program, world: World, before: Iterable[Activation], chosen: frozenset[str] | None
) -> tuple[set[Fact], set[Activation]]:
    allowed = set(program.roles) if chosen is None else set(program.support(chosen))
    while True:
        active: set[Fact] = {(name, ()) for name in world.assigned if name in allowed}
        while True:
            found = set(active)
            activations = {
                (rule, values)
                for rule in program.rules
                if rule.role in allowed
                for values in product(VALUES, repeat=len(rule.variables))
                if _holds(rule, values, world, active, all_=True)
                or ((rule, values) in before and _holds(rule, values, world, active, all_=False))
            }
            for rule, values in activations:
                bound = dict(zip(rule.variables, values, strict=True))
                found.add((rule.role, tuple(_ground(it, bound) or "" for it in rule.arguments)))
            for name, values in list(found):
                shape = program.roles[name]
                named = dict(zip(shape.parameters, values, strict=True))
                for other in shape.includes:
                    if other in allowed:
                        parameters = program.roles[other].parameters
                        found.add((other, tuple(named[it] for it in parameters)))
            if found == active:
                break
            active = found
        names = {name for name, _ in active}
        clashing = {
            both
            for name in names
            for other in program.roles[name].excludes
            if other in names
            for both in (name, other)
        }
        if not clashing:
            return active, activations
        allowed -= clashing


@given(
    _programs(),
    st.lists(_worlds(), min_size=1, max_size=5),
    st.none() | st.frozensets(st.sampled_from(list(ROLES)), min_size=1),
)
@settings(max_examples=scaled(300))
def test_roles_are_those_of_a_naive_fixed_point(
    program: Program, worlds: list[World], chosen: frozenset[str] | None
) -> None:
    before: set[Activation] = set()
    held: dict[Activation, None] = {}
    for world in worlds:
        active, before = _naive(program, world, before, chosen)
        found = derive(program, world.circumstances(), held, chosen)
        held = found.activations
        all_active = {
            (name, values)
            for name, relation in found.relations.items()
            for values in relation.facts
        }
        assert all_active == active
        assert set(held) == before
        carried = set(program.roles) if chosen is None else program.included(chosen)
        assert found.instances() == {it for it in active if it[0] in carried}
