"""How fast roles are: activation, the cascade when a condition fails, content filters.

Method:
- Activation: one session, 1,000 rules, of which ten lead to a role for somebody with ten
  appointments; the figure is the median time to activate all from nothing.
- Cascade: sessions with 10,000 instances that depend on one appointment, in three shapes:
  `wide` (one role, 10,000 instances that need it), `chain` (100 roles, each needs the one
  before, 100 instances each), `sessions` (1,000 sessions with ten instances each, of one
  group). The appointment is removed; the figure is the median time until every session is
  without the role and the authorizer denies the last read.
- Content filters: 10,000 of as many owners on one type, in four kinds: one patient each
  (`equality`), a lower bound (`threshold`), a narrow range (`range`), and one without a predicate
  that an index knows (`contains`). Two questions, each by the index and one by one, in CPU time:
  which of them a message matches (`find`), and whether it matches, asked for each reader in turn
  (`ask`), as a gateway does when a broker hands it a copy for each. All must say the same.
- `goal_ms` is what the requirements ask.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.definitions import DefinitionSet
from penstock.definitions.access import AccessDefinitions
from penstock.model.document import Document, Key
from penstock.model.kinds import Stream
from penstock.policy.access.emergencies import NO_SITUATIONS
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.requests import Message
from penstock.policy.content_filters import ContentFilters
from penstock.policy.event_types import EventTypes
from penstock_lab.bench import interaction, refusals
from penstock_lab.bench.tables import Table

CASCADE_GOAL_MS = 100.0
ACTIVATION_GOAL_MS = 1.0
DEPENDENT = 10_000
RULES = 1_000
IN_TABLES = ("activation", "cascade", "content", "interaction", "refusals")
BASE = Key("appointment", "base")
_GROUND = [
    Document("vocabulary", "v", {"subject": {"uid": "string"}, "object": {"patientId": "string"}}),
    Document("object", "o", {"topics": "home/+patientId/rx"}),
    Document("enforcement", "default", {"policies": "required"}),
]


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure activation, cascades and content filters."""
    rounds = 3 if quick else 15
    number = DEPENDENT // 10 if quick else DEPENDENT
    with tempfile.TemporaryDirectory() as folder:
        answers = refusals.measure(Path(folder), pairs=100 * rounds)
    return {
        "activation": _measure_activation(20 * rounds),
        "cascade": {
            name: _measure_cascade(make(), rounds)
            for name, make in (("wide", _wide), ("chain", _chain), ("sessions", _many))
        },
        "content": {
            name: _measure_contents(text, number, rounds) for name, text in FILTERS.items()
        },
        "interaction": interaction.measure(rounds=2 * rounds),
        "refusals": answers,
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
    filters = [
        (
            name,
            f"{it['filters']:,}",
            f"{it['matching']:,.0f}",
            *(f"{it[name]:.3f}" for name in ("find_ms", "find_each_ms", "ask_ms", "ask_each_ms")),
        )
        for name, it in figures["content"].items()
    ]
    heads = ("filters", "readers", "matching", "find", "one by one", "ask", "one by one")
    changed = [
        (name, f"{it['us']:.2f}", f"{it['added_us']:.2f}", f"{it['goal_us']:g}")
        for name, it in figures["interaction"].items()
    ]
    answers = [
        (name, f"{it['filtered_us']:.0f}", f"{it['plain_us']:.0f}", f"{it['told']:.1%}")
        for name, it in figures["refusals"].items()
    ]
    heads_of_answers = ("what is asked", "with a filter, µs", "without, µs", "told apart")
    return [
        Table("Roles", ("what", "instances", "ms", "CPU ms", "goal ms"), rows),
        Table("Content filters, CPU ms for a message", heads, filters),
        Table("Deliveries with three masks", ("what", "CPU µs", "added µs", "goal µs"), changed),
        Table("Answers where there is a filter", heads_of_answers, answers),
    ]


FILTERS = {
    "equality": 'r.patient == "p{n}" && r.pulse > 100',
    "threshold": "r.pulse > {bound}",
    "range": "r.pulse >= {low} && r.pulse < {high}",
    "contains": 'r.note.contains("n{n}")',
}
"""Kinds of content filters; `n` is the number of the reader."""
WIDE = "home/+/vitals"
_VITALS = {
    "name": "vitals",
    "from": ["home/+patient/vitals"],
    "fields": [
        {"name": "patient", "type": "string"},
        {"name": "pulse", "type": "int"},
        {"name": "note", "type": "string"},
    ],
}


def _measure_contents(text: str, number: int, rounds: int) -> dict[str, Any]:
    types = EventTypes()
    types.put([Stream.model_validate(_VITALS)])
    indexed, single = ContentFilters(types), ContentFilters(types, direct=number)
    written = [
        text.format(n=n, bound=n % 200, low=n % 1_000, high=n % 1_000 + 5) for n in range(number)
    ]
    held = [indexed.hold(f"user {n}", it, WIDE) for n, it in enumerate(written)]
    alone = [single.hold(f"user {n}", it, WIDE) for n, it in enumerate(written)]
    compiled = {it.compiled.serial: it.compiled for it in held if it.compiled is not None}
    taken = {name: _Times() for name in ("find", "find_each", "ask", "ask_each")}
    matching = []
    for turn in range(rounds):
        payload = json.dumps({"pulse": (turn * 37) % 200, "note": f"about n{turn}"}).encode()
        topic = f"home/p{turn}/vitals"
        record = types.read(Message(topic, payload))
        found: dict[str, set[int]] = {}

        def find(record: Any = record, found: Any = found) -> None:
            some = indexed.candidates(record)
            found["find"] = {it for it in some if compiled[it].function(record) is True}

        def find_each(record: Any = record, found: Any = found) -> None:
            found["find_each"] = {
                serial for serial, it in compiled.items() if it.function(record) is True
            }

        def ask(topic: str = topic, payload: bytes = payload, found: Any = found) -> None:
            message = Message(topic, payload)
            answers = [indexed.admits(it, message) for it in held]
            found["ask"] = {serial for serial, it in zip(compiled, answers, strict=True) if it}

        def ask_each(topic: str = topic, payload: bytes = payload, found: Any = found) -> None:
            message = Message(topic, payload)
            answers = [single.admits(it, message) for it in alone]
            found["ask_each"] = {serial for serial, it in zip(compiled, answers, strict=True) if it}

        for name, work in (
            ("find", find),
            ("find_each", find_each),
            ("ask", ask),
            ("ask_each", ask_each),
        ):
            taken[name].take(work)
        if len(set(map(frozenset, found.values()))) != 1:
            raise AssertionError("the index says something else than each filter")
        matching.append(len(found["find"]))
    cpu = {f"{name}_ms": it.figures()["cpu_ms"] for name, it in taken.items()}
    return {"filters": number, "matching": statistics.mean(matching), **cpu}


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
