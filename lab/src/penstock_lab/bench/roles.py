"""How fast roles are: activation among many rules, and the cascade when a condition fails.

Method:
- Activation: one session, 1,000 rules, of which ten lead to a role for somebody with ten
  appointments; the figure is the median time to activate all from nothing.
- Cascade: sessions with 10,000 instances that depend on one appointment, in three shapes:
  `wide` (one role, 10,000 instances that need it), `chain` (100 roles, each needs the one
  before, 100 instances each), `sessions` (1,000 sessions with ten instances each, of one
  group). The appointment is removed; the figure is the median time until every session is
  without the role and the authorizer denies the last read.
- `goal_ms` is what the requirements ask.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from penstock.definitions import DefinitionSet
from penstock.definitions.access import AccessDefinitions
from penstock.model.document import Document, Key
from penstock.policy.access.emergencies import NO_SITUATIONS
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.objects import Message
from penstock_lab.bench import interaction
from penstock_lab.bench.tables import Table

CASCADE_GOAL_MS = 100.0
ACTIVATION_GOAL_MS = 1.0
DEPENDENT = 10_000
RULES = 1_000
IN_TABLES = ("activation", "cascade", "interaction")
BASE = Key("appointment", "base")
_GROUND = [
    Document("vocabulary", "v", {"subject": {"uid": "string"}, "object": {"patientId": "string"}}),
    Document("object", "o", {"topics": "home/+patientId/rx"}),
    Document("enforcement", "default", {"policies": "required"}),
]


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure activation and cascades."""
    rounds = 3 if quick else 15
    return {
        "activation": _measure_activation(20 * rounds),
        "cascade": {
            name: _measure_cascade(make(), rounds)
            for name, make in (("wide", _wide), ("chain", _chain), ("sessions", _many))
        },
        "interaction": interaction.measure(rounds=2 * rounds),
    }


def tables(figures: dict[str, Any]) -> list[Table]:
    """Return the figures as tables."""
    activation = figures["activation"]
    rows = [
        (
            f"activation, {activation['rules']:,} rules",
            f"{activation['instances']:,}",
            f"{activation['ms']:.3f}",
            f"{activation['cpu_ms']:.3f}",
            f"{ACTIVATION_GOAL_MS:g}",
        )
    ]
    rows += [
        (
            f"cascade, {name}",
            f"{it['instances']:,}",
            f"{it['ms']:.1f}",
            f"{it['cpu_ms']:.1f}",
            f"{CASCADE_GOAL_MS:g}",
        )
        for name, it in figures["cascade"].items()
    ]
    changed = [
        (name, f"{it['us']:.2f}", f"{it['added_us']:.2f}", f"{it['goal_us']:g}")
        for name, it in figures["interaction"].items()
    ]
    return [
        Table("Roles", ("what", "instances", "ms", "CPU ms", "goal ms"), rows),
        Table("Deliveries with three masks", ("what", "CPU µs", "added µs", "goal µs"), changed),
    ]


def _appointment(name: str, credential: str, holder: str) -> Document:
    return Document("appointment", name, {"credential": credential, "holder": holder})


def _rule(name: str, role: str, *conditions: tuple[str, str]) -> Document:
    requires = [{kind: text, "membership": True} for kind, text in conditions]
    return Document("activation-rule", name, {"role": role, "requires": requires})


def _build(documents: list[Document]) -> DefinitionSet:
    return DefinitionSet.build([*_GROUND, *documents], trusts=lambda _: True)


class _Times:
    """How long something takes, by the clock and in processor time."""

    def __init__(self) -> None:
        self._wall: list[float] = []
        self._cpu: list[float] = []

    def take(self, work: Callable[[], Any]) -> None:
        cpu, started = time.process_time(), time.perf_counter()
        work()
        self._wall.append((time.perf_counter() - started) * 1000)
        self._cpu.append((time.process_time() - cpu) * 1000)

    def figures(self) -> dict[str, float]:
        return {"ms": statistics.median(self._wall), "cpu_ms": statistics.median(self._cpu)}


def _measure_activation(rounds: int) -> dict[str, Any]:
    documents = []
    for number in range(RULES):
        documents += [
            Document("role", f"r{number}", {"parameters": ["p"]}),
            _rule(f"a{number}", f"r{number}(p)", ("appointment", f"c{number % 100}(p)")),
        ]
    documents += [_appointment(f"h{n}", f'c7("p{n}")', "user:ann") for n in range(10)]
    access = AccessDefinitions(_build(documents)).access
    taken = _Times()
    instances = 0
    for _ in range(rounds):
        access.open_session("ann", "ann", None)
        taken.take(lambda: access.principal("ann", "ann"))
        instances = len(access.principal("ann", "ann").roles.instances())
    return {"rules": RULES, "instances": instances, **taken.figures()}


class _Case:
    """Definitions with a base appointment, and the sessions that depend on it."""

    def __init__(self, documents: list[Document], sessions: int) -> None:
        self.definitions = _build(documents)
        self.base = self.definitions.definitions[BASE].document()
        self.users = [f"u{number}" for number in range(sessions)]


def _wide() -> _Case:
    return _Case(
        [
            Document("role", "base", {"parameters": ["d"]}),
            Document("role", "leaf", {"parameters": ["d", "p"]}),
            _rule("base", "base(d)", ("appointment", "base(d)")),
            _rule("leaf", "leaf(d, p)", ("role", "base(d)"), ("appointment", "treats(d, p)")),
            _read("leaf(_, o.patientId)"),
            _appointment("base", 'base("u0")', "user:u0"),
            *(_appointment(f"t{n}", f'treats("u0", "p{n}")', "user:u0") for n in range(DEPENDENT)),
        ],
        1,
    )


def _chain() -> _Case:
    width, depth = 100, DEPENDENT // 100
    documents = [
        Document("role", "base", {}),
        _rule("base", "base", ("appointment", "base")),
        _appointment("base", "base", "user:u0"),
        _read(f"s{depth - 1}(o.patientId)"),
    ]
    documents += [_appointment(f"t{n}", f'of("p{n}")', "user:u0") for n in range(width)]
    for step in range(depth):
        before = ("role", f"s{step - 1}(p)") if step else ("role", "base")
        documents += [
            Document("role", f"s{step}", {"parameters": ["p"]}),
            _rule(f"s{step}", f"s{step}(p)", before, ("appointment", "of(p)")),
        ]
    return _Case(documents, 1)


def _many() -> _Case:
    sessions, each = 1_000, DEPENDENT // 1_000
    return _Case(
        [
            Document("group", "g", {"members": [f"user:u{n}" for n in range(sessions)]}),
            Document("role", "base", {}),
            Document("role", "leaf", {"parameters": ["p"]}),
            _rule("base", "base", ("appointment", "base")),
            _rule("leaf", "leaf(p)", ("role", "base"), ("appointment", "of(p)")),
            _read("leaf(o.patientId)"),
            _appointment("base", "base", "group:g"),
            *(_appointment(f"t{n}", f'of("p{n}")', "group:g") for n in range(each)),
        ],
        sessions,
    )


def _read(role: str) -> Document:
    return Document("authorisation-rule", "read", {"role": role, "subscribe": ["home/+/rx"]})


def _measure_cascade(case: _Case, rounds: int) -> dict[str, Any]:
    taken = _Times()
    instances = 0
    with_base, without = case.definitions, case.definitions.change(delete=[BASE])
    compiled = AccessDefinitions(with_base)
    access = compiled.access
    for user in case.users:
        access.open_session(user, user, None)
    for _ in range(rounds):
        compiled.take(with_base, [BASE])
        access.refresh_roles()
        instances = sum(len(access.principal(it, it).roles.instances()) for it in case.users)
        if not all(_may_read(access, user) for user in case.users):
            raise AssertionError("a session has not the role that is to be revoked")

        def revoke() -> None:
            compiled.take(without, [BASE])
            access.refresh_roles()
            if any(_may_read(access, user) for user in case.users):
                raise AssertionError("a revoked role grants")

        taken.take(revoke)
    return {"instances": instances, **taken.figures()}


def _may_read(access: AccessEngine, user: str) -> bool:
    principal = access.principal(user, user)
    message = Message("home/p1/rx", {})
    return access.decide("read", principal, message, {}, NO_SITUATIONS).allowed
