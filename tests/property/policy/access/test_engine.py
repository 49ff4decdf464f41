"""Decisions on access against a naive model that looks at every rule.

The model is statement 6 of the emergency model: the policies that are applied are exactly
those for the current situations of the message's subject that involve who asks, and with an
exclusive one of them, no ordinary ones. Subject, scenario and situation filters are drawn.
Conditions are evaluated by the reference interpreter.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.lang import BOOL, STRING, Expression, RecordType, build_scope, compile_expression
from penstock.model.kinds import Group, ObjectShape
from penstock.model.topics import matches
from penstock.policy.access.emergencies import (
    NO_SITUATIONS,
    SCENARIO_CASE,
    SITUATION_CASE,
    Emergency,
    ScenarioFilter,
    SituationBoard,
    filter_scope,
)
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.plans import Enforcement
from penstock.policy.access.principals import Action, KnownAttributes
from penstock.policy.access.requests import Message
from penstock.policy.access.rules import Policy, Preference
from penstock.policy.decision import VOLATILE, Decision, Depends
from tests.support.scale import scaled

SCOPE = build_scope(
    s={"uid": "string", "groups": "list(string)", "pSet": "list(string)", "rank": "int"},
    o={"patient": "string", "level": "int"},
    e={"ward": "string"},
    payload={"secret": "bool"},
)
CONDITIONS = [
    compile_expression(text, SCOPE, BOOL)
    for text in (
        "true",
        "o.patient in s.pSet",
        "o.patient == s.uid",
        "s.rank > 1",
        "o.level == 1",
        '"staff" in s.groups',
        "t.payload.secret",
        "!t.payload.secret",
        'e.ward == "w1" || s.rank > 2',
        't.topic.includes("pulse")',
        't.user == "pat1"',
        't.clientId == "c1"',
    )
]
ABOUT: list[Expression | None] = [
    compile_expression("o.patient", SCOPE, STRING),
    compile_expression("s.uid", SCOPE, STRING),
    None,
]
USERS = ("ann", "bob", "pat1", "pat2")
SUBJECTS = ("anyone", "user:ann", "user:pat1", "client:c1", "group:staff", "group:nurses")
FILTERS = ("#", "home/#", "home/+/pulse", "home/pat1/#", "home/pat1/pulse", "+/+/weight", "data")
TOPICS = ("home/pat1/pulse", "home/pat2/pulse", "home/pat1/weight", "data", "other")
SCENARIOS = ("covid", "falls")
SITUATIONS = ("Low", "High", "Severe")
LEVELS = {"Low": 1, "High": 2, "Severe": 3}
CASE_TEXTS = (
    "s.uid == c.subject",
    "c.subject in s.pSet",
    '"staff" in s.groups || s.uid == c.subject',
    "s.rank > 1",
    'c.scenario == "covid"',
    'c.plan == "plan" && c.subject.startsWith("pat")',
    's.pSet.intersect([c.subject]).size() == 1 && "nurses" in s.groups',
)
CASE_FILTERS: list[Expression | None] = [
    compile_expression(text, filter_scope(SCOPE, SCENARIO_CASE), BOOL) for text in CASE_TEXTS
]
SITUATION_FILTERS: list[Expression | None] = [
    compile_expression(text, filter_scope(SCOPE, SITUATION_CASE), BOOL)
    for text in (
        "c.level >= 2",
        "c.level <= s.rank",
        'c.situation in ["Low", "Severe"]',
        'c.situation == "High" && c.subject in s.pSet',
        *CASE_TEXTS[:2],
    )
]
DECISIONS = 60


@dataclass
class World:
    rules: dict[str, Policy]
    limits: dict[str, Preference]
    settings: Enforcement
    board: SituationBoard
    rank: int = 3  # of ann
    lost: bool = False  # whether the board is


def draw_rule(draw: random.Random, number: int) -> Policy:
    emergency = None
    if draw.random() < 0.5:
        emergency = draw_emergency(draw, exclusive=draw.random() < 0.2)
    action: Action = draw.choice(("read", "write"))
    return Policy(
        f"rule {number}",
        draw.choice(SUBJECTS),
        draw.choice(FILTERS),
        action,
        draw.choice(CONDITIONS),
        emergency,
    )


def draw_emergency(
    draw: random.Random, *, exclusive: bool, about: list[Expression | None] = ABOUT
) -> Emergency:
    # Scenarios have one filter wherever they are named; here each rule has worlds of its own.
    scenarios = tuple(
        ScenarioFilter(name, "plan", draw.choice([None, *CASE_FILTERS]))
        for name in draw.sample(SCENARIOS, draw.randint(1, 2))
    )
    situations = frozenset(draw.sample(SITUATIONS, draw.randint(1, 3)))
    return Emergency(
        scenarios,
        situations if draw.random() < 0.7 else None,
        draw.choice(about),
        exclusive,
        LEVELS,
        draw.choice([None, None, *CASE_FILTERS]),
        draw.choice([None, None, *SITUATION_FILTERS]),
    )


def draw_limit(draw: random.Random, number: int) -> Preference:
    user = draw.choice(USERS)
    return Preference(f"limit {number}", user, draw.choice(FILTERS), draw.choice(CONDITIONS))


def draw_world(draw: random.Random) -> World:
    rules = [draw_rule(draw, number) for number in range(draw.randint(0, 12))]
    limits = [draw_limit(draw, number) for number in range(draw.randint(0, 4))]
    exclusive: tuple[Emergency, ...] = ()
    if draw.random() < 0.2:
        exclusive = (draw_emergency(draw, exclusive=True, about=[ABOUT[0], None]),)
    settings = Enforcement(
        required=draw.random() < 0.9, override=draw.random() < 0.3, exclusive=exclusive
    )
    board = SituationBoard()
    return World({it.name: it for it in rules}, {it.name: it for it in limits}, settings, board)


def make_access(world: World) -> AccessEngine:
    access = AccessEngine()
    access.declare(SCOPE.root("s") or RecordType(()))
    access.assemble(
        [
            Group(name="nurses", members=("user:ann",)),
            Group(name="staff", includes=("nurses",), members=("client:c1",)),
        ]
    )
    access.describe("group:staff", KnownAttributes({"pSet": ["pat1"], "rank": 1}))
    access.describe("user:ann", KnownAttributes({"rank": world.rank}))
    access.describe("user:bob", KnownAttributes({"pSet": ["pat1", "pat2"]}))
    access.describe("client:c1", KnownAttributes({"rank": 2}, on_behalf_of="pat2"))
    access.shape("home", ObjectShape(name="home", topics="home/+patient/#"))
    access.shape("any", ObjectShape(name="any", topics="#", payload={"level": "level"}))
    access.shape("data", ObjectShape(name="data", topics="data", payload={"patient": "pid"}))
    access.configure(world.settings)
    access.put(*world.rules.values(), *world.limits.values())
    return access


def attributes_of(
    user: str | None, client: str | None, rank: int
) -> tuple[set[str], dict[str, Any]]:
    """Work out groups and attributes by hand: an identifier counts beside a user only."""
    client = client if user is not None else None
    groups = set()
    if user == "ann":
        groups |= {"nurses", "staff"}
    if client == "c1":
        groups |= {"staff"}
    values: dict[str, Any] = {"pSet": ["pat1"], "rank": 1} if "staff" in groups else {}
    if client == "c1":
        values["rank"] = 2
    if user == "ann":
        values["rank"] = rank
    if user == "bob":
        values["pSet"] = ["pat1", "pat2"]
    return groups, {**values, "uid": user, "groups": sorted(groups)}


def object_of(topic: str, payload: dict[str, Any]) -> dict[str, Any]:
    about: dict[str, Any] = {"level": payload.get("level")}
    if topic.startswith("home/"):
        about["patient"] = topic.split("/")[1]
    elif topic == "data":
        about["patient"] = payload.get("pid")
    return about


def decide_naively(world: World, action: Action, ask: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether it is allowed, and whether preferences were overridden."""
    user, client, topic, payload = ask["user"], ask["client"], ask["topic"], ask["payload"]
    groups, s = attributes_of(user, client, world.rank)
    names = {"anyone", *(f"group:{it}" for it in groups)}
    if user is not None:
        names |= {f"user:{user}", f"client:{client}"}
    o, e = object_of(topic, payload), ask["e"]
    t = {
        "topic": topic,
        "user": ask["publisher"],
        "clientId": ask["publishing"] if ask["publisher"] is not None else None,
        "payload": payload,
    }
    roots = {"s": s, "o": o, "e": e, "t": t}

    def holds(condition: Expression) -> bool:
        return condition.evaluate(**roots).holds

    def applies(emergency: Emergency) -> bool | None:
        """Tell whether an emergency applies; None where that cannot be told."""
        patients = [*USERS, "pat3"]
        if emergency.about is not None:
            subject = emergency.about.evaluate(**roots).value
            if subject is None:
                return None
            patients = [subject]
        involving = [
            (scenario, patient)
            for scenario in emergency.scenarios
            for patient in patients
            if involves(scenario.involves, scenario, patient)
            and involves(emergency.scenario_filter, scenario, patient)
        ]
        if world.lost:
            return None if involving or emergency.about is None else False
        return any(
            current is not None
            and (emergency.situations is None or current in emergency.situations)
            and involves(
                emergency.situation_filter,
                scenario,
                patient,
                situation=current,
                level=LEVELS[current],
            )
            for scenario, patient in involving
            for current in [world.board.current(scenario.name, patient)]
        )

    def involves(
        rule: Expression | None, scenario: ScenarioFilter, patient: str, **more: Any
    ) -> bool:
        case = {"subject": patient, "scenario": scenario.name, "plan": scenario.plan, **more}
        return rule is None or rule.evaluate(s=s, c=case).holds

    required = world.settings.required
    about = [
        rule
        for rule in world.rules.values()
        if required and rule.action == action and rule.subject in names
        and matches(rule.filter, topic)
    ]  # fmt: skip
    ordinary = [rule for rule in about if rule.emergency is None]
    emergency = [rule for rule in about if rule.emergency and applies(rule.emergency) is True]
    aside = [it for it in (rule.emergency for rule in about) if it is not None and it.exclusive]
    aside += world.settings.exclusive if required else ()
    if any(applies(it) is not False for it in aside):
        ordinary = []
    by_emergency = any(holds(rule.condition) for rule in emergency)
    granted = by_emergency or any(holds(rule.condition) for rule in ordinary) or not required
    for_whom = "pat2" if ask["publishing"] == "c1" else ask["publisher"]
    limits = [
        limit
        for limit in world.limits.values()
        if action == "read" and limit.subject == for_whom and matches(limit.filter, topic)
    ]
    if not limits or any(holds(limit.condition) for limit in limits):
        return granted, False
    overridden = world.settings.override and by_emergency
    return overridden, overridden


def draw_question(draw: random.Random) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    if draw.random() < 0.7:
        payload["level"] = draw.choice([1, True, 1.0, "1", 2, None, [1]])
    if draw.random() < 0.7:
        payload["pid"] = draw.choice(["pat1", "pat2", "pat3", 7, None, "x" * 600])
    if draw.random() < 0.7:
        payload["secret"] = draw.choice([True, False, "yes"])
    return {
        "user": draw.choice([*USERS, None]),
        "client": draw.choice(["c1", "c2", None]),
        "topic": draw.choice(TOPICS),
        "payload": payload,
        "publisher": draw.choice([*USERS, None]),
        "publishing": draw.choice(["c1", "c2", None]),
        "e": draw.choice([{}, {"ward": "w1"}, {"ward": "w2"}]),
    }


def change(draw: random.Random, world: World, access: AccessEngine) -> None:
    """Change situations and rules, in the world and in the engine."""
    for _ in range(draw.randint(0, 3)):
        world.board.move(
            draw.choice(SCENARIOS), draw.choice((*USERS, "pat3")), draw.choice([*SITUATIONS, None])
        )
    if draw.random() < 0.05:
        world.lost = not world.lost
        if world.lost:
            world.board.invalidate("detection has stalled")
        else:
            world.board.fill([("covid", "pat1", "High")])
    if draw.random() < 0.1:
        rule = draw_rule(draw, draw.randint(0, 15))
        world.rules[rule.name] = rule
        access.put(rule)
    if draw.random() < 0.05:
        world.rank = draw.randint(0, 4)
        access.describe("user:ann", KnownAttributes({"rank": world.rank}))
    if draw.random() < 0.05 and world.rules:
        name = draw.choice(sorted(world.rules))
        del world.rules[name]
        access.remove(name)
    if draw.random() < 0.05:
        limit = draw_limit(draw, draw.randint(0, 5))
        world.limits[limit.name] = limit
        access.put(limit)


@settings(max_examples=scaled(200), deadline=None)
@given(st.integers(0, 2**32))
@example(0)
def test_the_engine_decides_as_the_naive_model_does(seed: int) -> None:
    draw = random.Random(seed)
    world = draw_world(draw)
    access = make_access(world)
    kept: dict[Any, Any] = {}  # principals as sessions keep them, over changes of the rules
    seen: dict[Any, Any] = {}
    for _ in range(DECISIONS):
        change(draw, world, access)
        ask = draw_question(draw)
        who = (ask["user"], ask["client"])
        principal = kept.setdefault(who, access.principal(*who))
        for action in ("read", "write"):
            message = Message(
                ask["topic"], ask["payload"], user=ask["publisher"], client=ask["publishing"]
            )
            decision = access.decide(action, principal, message, ask["e"], world.board)
            expected, overridden = decide_naively(world, action, ask)
            assert decision.allowed is expected, (action, ask)
            assert decision.overridden is overridden
            told = access.explain(action, principal, message, ask["e"], world.board)
            assert (told.allowed, told.rule) == (decision.allowed, decision.rule)
            assert told.situation == (str(decision.applied) if decision.applied else None)
            known = (access.generation, action, who, ask["topic"])
            tell_dependences(known, decision, ask, world, access.about(message), seen)


def tell_dependences(
    known: tuple[Any, ...],
    decision: Decision,
    ask: dict[str, Any],
    world: World,
    about: Any,
    seen: dict[Any, Any],
) -> None:
    """Check that what a decision depends on is all that it depends on."""
    depends = decision.depends
    publisher = (ask["publisher"], ask["publishing"])
    assert seen.setdefault(known, depends & Depends.PUBLISHER) == depends & Depends.PUBLISHER
    if depends & Depends.PUBLISHER:
        known = (*known, publisher)
    assert seen.setdefault((known, "depends"), depends) == depends
    inputs = {
        Depends.OBJECT: about,
        Depends.ENVIRONMENT: ask["e"],
        Depends.SITUATION: world.board.changes,
        Depends.MESSAGE: ask["payload"],
    }
    looked_at = [repr(value) for flag, value in inputs.items() if depends & flag]
    assert seen.setdefault((known, *looked_at), decision) == decision


@settings(max_examples=scaled(30), deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_remembered_that_depends_on_the_message_or_the_time(seed: int) -> None:
    draw = random.Random(seed)
    access = make_access(draw_world(draw))
    for _ in range(20):
        ask = draw_question(draw)
        principal = access.principal(ask["user"], ask["client"])
        access.decide(
            "read", principal, Message(ask["topic"], ask["payload"]), ask["e"], NO_SITUATIONS
        )
        for plan in principal.plans.values():
            assert not (plan.depends & VOLATILE and plan._own)
