"""The gateway, `authorize`, `explain` and a model of a few lines decide alike.

Random definitions, subjects, topics, purposes, stamps and situations; real packets go through
the gateway's own checks, which follow the definitions change by change, while the authorizer
is made of the whole set.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.authorizer import make_authorizer
from penstock.gateway.authorization.delivery_check import DeliveryDecision
from penstock.gateway.authorization.request_context import as_properties
from penstock.gateway.publications import PublishResult
from penstock.gateway.session import Session
from penstock.model.document import Document
from penstock.model.purposes import PurposeSet
from penstock.model.topics import matches
from penstock.policy.access.emergencies import SituationBoard
from penstock.policy.access.requests import AccessRequest, make_request
from penstock.policy.authorizer import Authorizer
from penstock.policy.consent import NOBODY
from penstock.policy.decision import Explanation, Part
from penstock.policy.purposes.settings import PurposeSettings
from tests.support.gateway.authorization import Checks, Pairs, delivered
from tests.support.scale import scaled

GROUND = """
kind: vocabulary
name: v
subject: {uid: string, groups: list(string), pSet: list(string)}
object: {patientId: string}
environment: {purpose: string}
---
kind: object
name: o
topics: t/+patientId
---
kind: group
name: staff
members: [user:ann]
---
kind: attributes
name: user:ann
values: {pSet: [a]}
---
kind: attributes
name: group:staff
values: {pSet: [b]}
---
kind: attributes
name: user:bob
values: {pSet: [b]}
---
kind: event
name: Fall
attributes: {pid: string}
packet: {when: 't.topic.includes("fall")', set: {pid: o.patientId}}
---
kind: plan
name: plan
situations: [{id: Low, level: 1}, {id: High, level: 2}]
evolutions: [{event: Fall, to: Low}, {event: Fall, from: Low, to: High}]
---
kind: scenario
name: s
plan: plan
attribute: pid
"""
BY_POLICY = {Part.POLICIES, Part.PREFERENCES, Part.EMERGENCIES}
USERS = ["ann", "bob", "anonymous"]
PATIENTS = {"ann": ["a"], "bob": ["b"]}
GROUPS = {"ann": ["staff"]}
TOPICS = ["t/a", "t/b", "u", "$SYS"]
FILTERS = ["#", "t/#", "t/+", "t/a", "u", "$SYS/#"]
PURPOSES = ["p", "p/q", "x"]
ACCESS_PURPOSES = [None, *PURPOSES, "misspelt"]
SETS = [
    PurposeSet.of(allow, prohibit)
    for allow in ([], ["p"], ["p/q"], ["x", "p"])
    for prohibit in ([], ["p/q"], ["x"])
]
PEOPLE = ["a", "b", "ann"]
NUMBERS = {who: number for number, who in enumerate([*PEOPLE, "bob", ""])}
FEEDS = {"level": "t/+", "payload": "#", "publisher": "t/#"}
STREAMS: dict[str, dict[str, Any]] = {
    "level": {"from": ["t/+pid"]},
    "payload": {"from": ["#"]},
    "publisher": {"from": ["t/#"], "adds": {"publisher": "pid"}},
}
SUBJECTS = ["anyone", "anyone", "user:ann", "user:bob", "group:staff"]


@dataclass(frozen=True)
class Asked:
    """What conditions of the model look at."""

    user: str | None
    patient: str | None
    purpose: str | None


CONDITIONS: dict[str, Callable[[Asked], bool]] = {
    "true": lambda _: True,
    "false": lambda _: False,
    "o.patientId in s.pSet": lambda it: it.patient in PATIENTS.get(it.user or "", []),
    's.uid == "ann"': lambda it: it.user == "ann",
    'e.purpose == "p"': lambda it: it.purpose == "p",
    't.topic == "t/a"': lambda it: it.patient == "a",
}
choose = st.sampled_from
MODES: list[dict[str, bool]] = [
    {},
    {"filter_on_subscribe": True, "filter_on_publish": False},
    {"filter_on_subscribe": True},
    {"filter_hybrid": True},
    {"filter_hybrid": True, "hybrid_tag": True},
]
SETTINGS = st.builds(
    lambda mode, allow, need: {
        **mode,
        "allow_without_reservation": allow,
        "claims_need_right": need,
    },
    choose(MODES),
    st.booleans(),
    st.booleans(),
)
LIKELY = choose(["true", "true", "true", *CONDITIONS])
RULE = st.fixed_dictionaries(
    {"subject": choose(SUBJECTS), "filter": choose(FILTERS), "when": LIKELY}
)
ACTIONS = choose(["read", "read", "read", "write"])


@dataclass
class World:
    """Definitions as the model knows them."""

    declared: list[str]
    configured: dict[str, bool]
    settings: dict[str, bool] | None
    rights: list[tuple[str, str]]
    monitors: list[tuple[str, str]]
    administrators: list[str]
    blocked: list[str]
    role: list[str]
    reservations: dict[str, PurposeSet]
    required: bool
    overridden: bool
    exclusive: bool
    policies: list[tuple[str, dict[str, str]]]
    emergencies: list[tuple[str, int, bool, dict[str, str]]]
    preferences: list[tuple[str, str, str]]
    situations: dict[str, str]
    streams: list[str]
    opted_out: list[tuple[str, str]]

    def documents(self) -> list[Document]:
        made = list(read_text(GROUND).documents)
        fields = [{"name": "pid", "type": "string", "optional": True, "category": "identifier"}]
        made += [
            Document("stream", name, {"fields": fields, "subject": "pid", **STREAMS[name]})
            for name in self.streams
        ]
        made += [Document("purpose", name, {}) for name in self.declared]
        if self.settings is not None:
            made.append(Document("purpose-settings", "default", self.settings))
        made += [
            Document("reservation", name, {"allow": sorted(it.aip), "prohibit": sorted(it.pip)})
            for name, it in self.reservations.items()
        ]
        made += [
            Document("right", f"c{n}", {"subjects": [subject], "claim": [purpose]})
            for n, (subject, purpose) in enumerate(self.rights)
        ]
        made += [
            Document("right", f"m{n}", {"subjects": [subject], "monitor": [filter_]})
            for n, (subject, filter_) in enumerate(self.monitors)
        ]
        made += [
            Document("right", f"a{n}", {"subjects": [subject], "administer": True})
            for n, subject in enumerate(self.administrators)
        ]
        made += [
            Document("role", "nurse", {"claim": self.role}),
            Document("role", "matron", {"includes": ["nurse"]}),
            Document("user", "bob", {"roles": ["matron"], "blocked": "bob" in self.blocked}),
        ]
        if "ann" in self.blocked:
            made.append(Document("user", "ann", {"blocked": True}))
        enforcement: dict[str, Any] = {
            "policies": "required" if self.required else "off",
            "preferences_in_emergencies": "overridden" if self.overridden else "kept",
        }
        if self.exclusive:
            enforcement["exclusive"] = [{"plan": "plan", "about": "o.patientId"}]
        made.append(Document("enforcement", "default", enforcement))
        made += [
            Document("policy", f"p{n}", {**rule, "allow": action})
            for n, (action, rule) in enumerate(self.policies)
        ]
        for n, (action, level, whoever, rule) in enumerate(self.emergencies):
            about = {"any_object": True} if whoever else {"about": "o.patientId"}
            body = {**rule, **about, "allow": action, "plan": "plan", "minimum_level": level}
            made.append(Document("emergency-policy", f"e{n}", body))
        made += [
            Document("preference", f"r{n}", {"user": user, "filter": filter_, "when": when})
            for n, (user, filter_, when) in enumerate(self.preferences)
        ]
        return made

    # --- the model ---

    def allows(  # noqa: PLR0911 - one for each part
        self,
        action: str,
        topic: str,
        asked: Asked,
        message: PurposeSet | None,
        publisher: str,
        person: str | None = None,
    ) -> bool:
        """Decide by the rules as they are written down, part by part."""
        if asked.user in self.blocked:
            return False
        if topic.startswith("$"):
            given = [who for who, filter_ in self.monitors if matches(filter_, topic)]
            given = given if action == "read" else self.administrators
            if names_of(asked).isdisjoint(given):
                return False
        if action == "read" and not (
            self._may_claim(asked) and self._purposes_allow(topic, asked.purpose, message)
        ):
            return False
        if action == "read" and not self._consented(topic, asked.purpose, publisher, person):
            return False
        preferring = action == "read" and bool(self.preferences)
        if preferring and publisher == "":
            return False  # nobody can tell whose preferences hold
        about = [
            CONDITIONS[when](asked)
            for user, filter_, when in self.preferences
            if action == "read" and user == publisher and matches(filter_, topic)
        ]
        agreed = not about or any(about)
        if not self.required:
            return agreed
        ordinary = any(
            self._grants(rule, topic, asked) for allow, rule in self.policies if allow == action
        )
        current = self.situations.get(asked.patient or "")
        aside = self.exclusive and (asked.patient is None or current is not None)
        emergency = any(
            self._grants(rule, topic, asked) and self._applies(level, current, whoever=whoever)
            for allow, level, whoever, rule in self.emergencies
            if allow == action
        )
        return (ordinary and not aside and agreed) or (emergency and (agreed or self.overridden))

    def _may_claim(self, asked: Asked) -> bool:
        in_force = self.configured | (self.settings or {})
        if asked.purpose is None or not in_force["claims_need_right"]:
            return True
        given = [purpose for subject, purpose in self.rights if subject in names_of(asked)]
        given += self.role if asked.user == "bob" else []
        return any(f"{asked.purpose}/".startswith(f"{it}/") for it in given)

    def _purposes_allow(self, topic: str, ap: str | None, message: PurposeSet | None) -> bool:
        if ap is not None and self.declared and ap not in self.declared:
            return False
        held = [it for filter_, it in self.reservations.items() if matches(filter_, topic)]
        in_force = self.configured | (self.settings or {})
        allowed = in_force["allow_without_reservation"]
        if held:
            allowed = any(it.effect(ap) > 0 for it in held) and all(
                it.effect(ap) >= 0 for it in held
            )
        if message is not None:
            silent = bool(message.pip) and not message.aip
            admits = ap is not None and message.effect(ap) >= 0
            allowed = allowed and admits and (silent or message.effect(ap) > 0)
        return allowed

    def _consented(self, topic: str, ap: str | None, publisher: str, person: str | None) -> bool:
        """Nobody whom the message is about has opted out, and it is told who that is."""
        out = {who for who, it in self.opted_out if ap is None or related(it, ap)}
        about = {
            "level": topic.partition("/")[2] or None,
            "payload": None if self.preferences and not publisher else person,
            "publisher": publisher or None,
        }
        fed = {name: about[name] for name in self.streams if matches(FEEDS[name], topic)}
        return not out or all(it is not None and it not in out for it in fed.values())

    @staticmethod
    def _grants(rule: Mapping[str, str], topic: str, asked: Asked) -> bool:
        meant = rule["subject"] in names_of(asked) and matches(rule["filter"], topic)
        return meant and CONDITIONS[rule["when"]](asked)

    def _applies(self, level: int, current: str | None, *, whoever: bool) -> bool:
        held = set(self.situations.values()) if whoever else {current} - {None}
        return bool(held & ({"Low", "High"} if level == 1 else {"High"}))


def related(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def names_of(asked: Asked) -> set[str]:
    """Return by which words definitions mean somebody."""
    names = {"anyone", f"user:{asked.user}"}
    return names | {f"group:{it}" for it in GROUPS.get(asked.user or "", [])}


SOME_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "allow_without_reservation": st.booleans(),
        "claims_need_right": st.booleans(),
        "cache_reservations": st.booleans(),
    },
)

WORLDS = st.builds(
    World,
    rights=st.lists(st.tuples(choose(SUBJECTS), choose(PURPOSES)), max_size=3),
    monitors=st.lists(st.tuples(choose(SUBJECTS), choose(["$SYS/#", "$SYS", "$x/#"])), max_size=2),
    administrators=st.lists(choose(SUBJECTS), max_size=1),
    blocked=choose([[], [], [], ["ann"], ["bob"]]),
    role=st.lists(choose(PURPOSES), max_size=1),
    declared=choose([[], PURPOSES]),
    configured=SETTINGS,
    settings=st.none() | SETTINGS | SOME_SETTINGS,
    reservations=st.dictionaries(choose(FILTERS), choose(SETS), max_size=2),
    required=st.booleans(),
    overridden=st.booleans(),
    exclusive=st.booleans(),
    policies=st.lists(st.tuples(ACTIONS, RULE), max_size=4),
    emergencies=st.lists(st.tuples(ACTIONS, choose([1, 2]), st.booleans(), RULE), max_size=3),
    preferences=st.lists(
        st.tuples(choose(["ann", "bob"]), choose(FILTERS), choose(list(CONDITIONS))), max_size=2
    ),
    situations=st.dictionaries(choose(["a", "b"]), choose(["Low", "High"])),
    streams=choose([[], [], ["level"], ["payload"], ["publisher"], ["level", "payload"]]),
    opted_out=st.lists(st.tuples(choose(PEOPLE), choose(PURPOSES)), max_size=2),
)
PROBES = st.lists(
    st.tuples(
        choose(USERS),
        choose(TOPICS),
        choose(ACCESS_PURPOSES),
        choose([*[None] * len(SETS), *SETS]),
        choose(["ann", "bob", ""]),
        choose([*PEOPLE, None]),
    ),
    min_size=10,
    max_size=20,
)
RARE = World(
    declared=[],
    configured={"allow_without_reservation": True, "claims_need_right": False},
    settings=None,
    rights=[],
    monitors=[],
    administrators=[],
    blocked=[],
    role=[],
    reservations={},
    required=True,
    overridden=False,
    exclusive=False,
    policies=[],
    emergencies=[("read", 1, False, {"subject": "user:ann", "filter": "#", "when": "true"})],
    preferences=[],
    situations={"a": "Low"},
    streams=[],
    opted_out=[],
)
"""An emergency that grants: not every run would draw one."""
CHOSEN = replace(RARE, required=False, emergencies=[], streams=["level"], opted_out=[("b", "p")])
"""Somebody opted out, and it is somebody else."""
Probe = tuple[str, str, str | None, PurposeSet | None, str, str | None]
"""User, topic, purpose, purposes of the message, publisher, whom its payload names."""
SEEN: Counter[str] = Counter()


def test_gateway_authorizer_explanation_and_model_agree() -> None:
    SEEN.clear()
    draw_worlds()
    # The runs are worth something only if each part has decided, both ways where it can.
    wanted = {f"denied by {part}" for part in Part} - {
        "denied by subscription",  # that is the gateway's alone: `held back`
        "denied by emergencies",  # they grant only
        "denied by interaction",  # see `test_interaction`
        "denied by content filter",  # see `test_content_filters`
        "denied by event types",  # see `test_advertisements`
        "denied by capabilities",  # see `tests/property/policy/test_capabilities.py`
    }
    wanted |= {f"allowed by {it}" for it in ("reservations", "consent", "policies", "emergencies")}
    wanted |= {"delivered", "held back", "paused"}
    assert wanted <= SEEN.keys(), wanted - SEEN.keys()


@given(WORLDS, PROBES)
@example(RARE, [("ann", "t/a", None, None, "bob", None)])
@example(CHOSEN, [("ann", topic, "p", None, "bob", None) for topic in ("t/a", "t/b")])
@settings(max_examples=scaled(150), deadline=None, suppress_health_check=list(HealthCheck))
def draw_worlds(world: World, probes: list[Probe]) -> None:
    compare(world, probes)


def compare(world: World, probes: list[Probe]) -> None:
    """Ask all four about each probe."""
    configured = PurposeSettings(**world.configured)
    documents = world.documents()
    out: dict[str, Counter[int]] = {}
    for person, refused in set(world.opted_out):
        out.setdefault(refused, Counter())[NUMBERS[person]] += 1
    opt_outs = NOBODY.change(1, out, NUMBERS.__getitem__)
    authorizer = make_authorizer(DefinitionSet.build(documents), configured, opt_outs=opt_outs)
    board = SituationBoard(("s", who, it) for who, it in world.situations.items())
    # Subscriptions are made while nothing forbids them: some are paused by what comes then.
    checks = Checks([])
    sessions = {user: Session(f"c-{user}", user, 0) for user in USERS}
    numbers = {
        (user, filter_, ap): checks.subscribe(sessions[user], f"$share/g{n}/{filter_}", ap)
        for user, filter_, (n, ap) in product(USERS, FILTERS, enumerate(ACCESS_PURPOSES))
    }
    checks.rules.initial = configured
    checks.rules.engine.configure(configured)
    checks.take(documents)
    checks.rules.take_opt_outs(opt_outs, None)
    assert checks.rules.enforceable
    checks.detection.board.fill(("s", who, it) for who, it in world.situations.items())

    for user, topic, ap, message, publisher, named in probes:
        who = None if user == "anonymous" else user
        patient = topic.partition("/")[2] or None
        asked = Asked(who, patient, ap)
        request = ask(topic, asked, message, publisher, board, named)
        if publisher == "" and world.preferences:
            request = request._replace(message=None)
        expected = world.allows("read", topic, asked, message, publisher, named)
        told = answer(authorizer, request, expected=expected)
        for filter_ in FILTERS:
            if matches(filter_, topic):
                number = numbers[user, filter_, ap]
                held = sessions[user].by_number[number]
                stamp = make_stamp(checks, message, publisher)
                payload = json.dumps(say(named)).encode()
                decision = checks.delivery.decide(
                    sessions[user], delivered(topic, number, stamp=stamp, payload=payload)
                )
                assert (decision.properties is not None) == (expected and held.active)
                if held.active:
                    compare_refusal(decision, told)
                else:
                    compare_paused(decision, authorizer, request._replace(subscription=held))
                SEEN["delivered" if expected and held.active else "held back"] += 1
                SEEN["paused"] += not held.active
        write(checks, authorizer, world, sessions[user], request, Asked(who, patient, None))


def say(person: str | None) -> dict[str, str]:
    return {} if person is None else {"pid": person}


def ask(
    topic: str,
    asked: Asked,
    message: PurposeSet | None,
    publisher: str,
    board: SituationBoard,
    person: str | None,
) -> AccessRequest:
    return make_request(
        topic,
        payload=say(person),
        purpose=asked.purpose,
        user=asked.user,
        client=f"c-{asked.user or 'anonymous'}",
        publisher=publisher or None,
        message_purposes=message,
        situations=board,
    )


def answer(authorizer: Authorizer, request: AccessRequest, *, expected: bool) -> Explanation:
    """Ask both ways; they must agree with each other and with what is expected."""
    decision, told = authorizer.authorize(request), authorizer.explain(request)
    assert decision.allowed == expected
    assert told.allowed == expected, str(told)
    assert decision.rule in {"", told.rule}
    if not expected:
        assert decision.part == told.part
        by_policy = request.action == "write" or told.part in BY_POLICY
        named = authorizer.name_purpose_denial(request) if request.action == "read" else ""
        assert named == ("" if by_policy else told.rule)
    assert (told.situation is not None) == (decision.applied is not None)
    SEEN[f"{'allowed' if expected else 'denied'} by {told.part}"] += 1
    return told


def compare_refusal(decision: DeliveryDecision, told: Explanation) -> None:
    """What a gateway puts on record is what `explain` says."""
    if decision.properties is None:
        assert decision.refusal.rule == told.rule
        assert (decision.refusal.why == "policy") == (told.part in BY_POLICY)
        assert (decision.refusal.why == "consent") == (told.part is Part.CONSENT)


def compare_paused(
    decision: DeliveryDecision, authorizer: Authorizer, request: AccessRequest
) -> None:
    """A subscription that is paused is refused as such, and no policy is named for it.

    What comes before purposes is named first: a user who is kept out, a topic of the broker's.
    """
    told = authorizer.explain(request)
    assert not told.allowed
    assert told.part in {Part.SUBSCRIPTION, Part.USERS, Part.BROKER_TOPICS}
    assert (decision.refusal.why, decision.refusal.rule) == ("purpose", told.rule)


def make_stamp(checks: Checks, message: PurposeSet | None, publisher: str) -> Pairs:
    """Return the stamp that the gateway gives to a publisher's messages; none without one."""
    pairs: list[tuple[str, str]] = list(as_properties(message)) if message is not None else []
    if publisher:
        session = Session("publisher", publisher, 0)
        pairs += [("penstock-publisher", publisher), *checks.rules.publisher_properties(session)]
    return tuple(pairs)


def write(
    checks: Checks,
    authorizer: Authorizer,
    world: World,
    session: Session,
    read: AccessRequest,
    asked: Asked,
) -> None:
    """Compare what may be written, too."""
    request = make_request(
        read.topic,
        action="write",
        user=read.user,
        client=read.client,
        situations=read.situations,
    )
    expected = world.allows("write", read.topic, asked, None, "")
    told = answer(authorizer, request, expected=expected)
    result = checks.publication.publish(session, delivered(read.topic))
    assert isinstance(result, PublishResult)
    assert result.accepted == expected
    if not expected:
        assert result.rule == told.rule
