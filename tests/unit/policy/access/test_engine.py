"""The decision engine at its edges; its rules are in the property test."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.definitions.vocabularies import WrongValueError, read_value
from penstock.lang import BOOL, STRING, build_scope, compile_expression
from penstock.policy.access.emergencies import (
    NO_SITUATIONS,
    Emergency,
    ScenarioFilter,
    SituationBoard,
    SituationsUnknownError,
)
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.plans import KEY_LIMIT, Enforcement
from penstock.policy.access.principals import Directory, KnownAttributes
from penstock.policy.access.requests import Message
from penstock.policy.access.rules import Policy, Preference, are_brief, depends_on
from penstock.policy.decision import Depends

SCOPE = build_scope(
    s={"uid": "string"}, o={"patientId": "string"}, e={"ward": "string"}, payload={"x": "int"}
)


def make_rule(when: str = "true", emergency: Emergency | None = None) -> Policy:
    condition = compile_expression(when, SCOPE, BOOL)
    return Policy("policy p", "anyone", "a/#", "read", condition, emergency)


def make_access(*rules: Policy) -> AccessEngine:
    access = AccessEngine()
    record = SCOPE.root("s")
    assert record is not None
    access.declare(record)
    access.configure(Enforcement(required=True))
    access.put(*rules)
    return access


class Broken(SituationBoard):
    def current(self, scenario: str, subject: str) -> str | None:
        raise RuntimeError(f"{scenario} of {subject} is lost")


def test_an_error_of_any_kind_is_a_denial() -> None:
    covid = ScenarioFilter("covid", "covid-19")
    emergency = Emergency((covid,), None, compile_expression("s.uid", SCOPE, STRING))
    access = make_access(make_rule(emergency=emergency))
    principal = access.principal("ann", None)
    decision = access.decide("read", principal, Message("a/b"), {}, Broken())
    assert not decision
    assert decision.rule == "error RuntimeError"
    assert access.decide(
        "read", principal, Message("a/b"), {}, SituationBoard([("covid", "ann", "X")])
    )


def test_a_user_without_a_name_is_nobody_in_particular() -> None:
    access = make_access(make_rule("has(s.uid)"))
    access.describe("user:None", KnownAttributes({}, on_behalf_of="x"))
    assert not access.decide("read", access.principal(None, None), Message("a"), {}, NO_SITUATIONS)
    assert Directory().publishes_for(None, None) is None


def test_preferences_are_those_of_whom_a_message_is_published_for() -> None:
    access = make_access(make_rule())
    access.put(Preference("preference x", "wearer", "#", compile_expression("false", SCOPE, BOOL)))
    access.describe("client:band", KnownAttributes({}, on_behalf_of="wearer"))
    principal = access.principal("ann", None)

    def reads(message: Message) -> bool:
        return access.decide("read", principal, message, {}, NO_SITUATIONS).allowed

    assert access.publishes_for("hub", "band") == "wearer"
    assert access.publishes_for("hub", None) == "hub"
    assert not reads(Message("a", user="hub", client="band"))
    assert reads(Message("a", user="hub"))
    assert not reads(Message("a", user="hub", behalf="wearer"))


def test_an_explanation_names_first_what_is_for_the_asker() -> None:
    others = [
        Policy(f"policy a{number}", f"user:u{number}", "#", "read", make_rule().condition)
        for number in range(200)
    ]
    access = make_access(*others, make_rule())
    told = access.explain("read", access.principal("ann", None), Message("a"), {}, NO_SITUATIONS)
    assert (told.allowed, told.considered[0].rule, told.more) == (True, "policy p", True)


@pytest.mark.parametrize(
    ("when", "depends"),
    [
        ("true", Depends.NOTHING),
        ("s.uid == t.topic.level(0)", Depends.NOTHING),
        ("o.patientId == s.uid", Depends.OBJECT),
        ('e.ward == "w" && e.purpose == "p"', Depends.ENVIRONMENT),
        ("e.time.hour() < 8", Depends.TIME),
        ("t.user == s.uid", Depends.PUBLISHER),
        ("t.payload.x > 1", Depends.MESSAGE),
        ("t.qos > 1", Depends.MESSAGE),
    ],
)
def test_what_a_condition_depends_on_is_known(when: str, depends: Depends) -> None:
    assert depends_on(compile_expression(when, SCOPE, BOOL)) == depends


def test_time_is_looked_at_each_time() -> None:
    access = make_access(make_rule("e.time.hour() < 8"))
    principal = access.principal("ann", None)
    for hour, allowed in ((7, True), (9, False), (7, True)):
        now = datetime(2026, 3, 1, hour, tzinfo=UTC)
        assert (
            access.decide("read", principal, Message("a"), {"time": now}, NO_SITUATIONS).allowed
            is allowed
        )


def test_attributes_are_told_apart_whatever_their_names() -> None:
    scope = build_scope(o={"a": "string", "a.b": "string"})
    condition = compile_expression('o["a.b"] == "yes"', scope, BOOL)
    access = make_access(Policy("policy p", "anyone", "#", "read", condition))
    principal = access.principal(None, None)
    for value in ("yes", "no", "yes"):
        message = Message("x", about={"a.b": value})
        decision = access.decide("read", principal, message, {}, NO_SITUATIONS)
        assert decision.allowed is (value == "yes")
        assert decision.depends == Depends.OBJECT


@pytest.mark.parametrize(
    ("when", "brief"),
    [
        ("o.patientId == s.uid", True),
        ("o.patientId == s.uid && e.ward == s.uid", True),
        ("o.patientId == s.uid && (e.ward == s.uid || o.patientId == e.ward)", False),
        ('o.patientId.matches("a")', False),
        ("[o.patientId].exists(x, x == s.uid)", False),
    ],
)
def test_what_costs_little_is_not_remembered(when: str, *, brief: bool) -> None:
    condition = compile_expression(when, SCOPE, BOOL)
    assert are_brief([condition]) is brief
    access = make_access(make_rule(when))
    principal = access.principal("ann", None)
    for patient in ("ann", "bob", "ann"):
        message = Message("a", about={"patientId": patient})
        e = {"ward": "ann"}
        found = condition.evaluate(s={"uid": "ann"}, o={"patientId": patient}, e=e, t={})
        allowed = access.decide("read", principal, message, e, NO_SITUATIONS).allowed
        assert allowed is (found.value is True)
    assert access._cache.count == (0 if brief else 2)


def test_what_is_remembered_is_bounded() -> None:
    # Long enough that it is worth remembering.
    access = make_access(make_rule("o.patientId == s.uid || s.uid == o.patientId || e.ward == ''"))
    access._cache.limit = 100
    principals = [access.principal(f"user-{number}", None) for number in range(10)]
    for number in range(250):
        for principal in principals:
            message = Message("a", about={"patientId": f"user-{number}"})
            allowed = access.decide("read", principal, message, {}, NO_SITUATIONS).allowed
            assert allowed is (principal.user == f"user-{number}")
        held = [plan._own for principal in principals for plan in principal.plans.values()]
        assert 0 < sum(map(len, held)) == access._cache.count <= 100
    message = Message("a", about={"patientId": "x" * (KEY_LIMIT + 1)})
    before = access._cache.count
    assert not access.decide("read", principals[0], message, {}, NO_SITUATIONS)
    assert access._cache.count == before


def test_a_board_knows_which_situations_are_occupied() -> None:
    board = SituationBoard([("covid", "a", "Low"), ("covid", "b", "Low")])
    board.move("covid", "a", "High")
    assert set(board.occupied("covid")) == {"Low", "High"}
    board.move("covid", "b", None)
    board.move("covid", "b", None)
    assert set(board.occupied("covid")) == {"High"}
    assert board.occupied("falls") == frozenset()
    assert board.current("covid", "b") is None
    before = board.changes
    board.invalidate("the detector does not answer")
    assert board.changes > before
    for ask in (lambda: board.current("covid", "a"), lambda: board.occupied("covid")):
        with pytest.raises(SituationsUnknownError, match="does not answer"):
            ask()
    board.fill([("falls", "a", "Low")])
    assert (board.current("covid", "a"), board.current("falls", "a")) == (None, "Low")


def test_values_are_read_by_their_type_as_a_whole() -> None:
    scope = build_scope(
        s={"since": "timestamp", "shift": "duration", "beds": {"ward": "string", "n": "list(int)"}}
    )
    record = scope.root("s")
    assert record is not None
    kinds = dict(record.fields)
    assert read_value("2026-01-01T00:00:00Z", kinds["since"]) == datetime(2026, 1, 1, tzinfo=UTC)
    assert read_value("1h", kinds["shift"]).total_seconds() == 3600
    assert read_value({"ward": "w", "n": [1]}, kinds["beds"]) == {"ward": "w", "n": [1]}
    for value, place in (({"n": [1, "2"]}, ("n", 1)), ({"x": 1}, ("x",)), (7, ())):
        with pytest.raises(WrongValueError) as caught:
            read_value(value, kinds["beds"])
        assert caught.value.place == place
