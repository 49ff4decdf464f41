"""Decisions on deliveries, on real packets and rules, without a socket."""

from __future__ import annotations

import pytest

from penstock.gateway.authorization.delivery_check import Refusal
from penstock.gateway.session import Session
from penstock.model.document import Document
from penstock.policy.purposes.settings import PurposeSettings
from tests.support.gateway.authorization import Checks, Pairs, delivered

RESERVED = "kind: reservation\nname: a/#\nallow: [p]\n"
STAMP: Pairs = (
    ("penstock-publisher", "bob"),
    ("penstock-client", "phone"),
    ("penstock-for", "bob"),
)

WARD = """
kind: vocabulary
name: ward
subject: {uid: string, pSet: list(string)}
object: {patientId: string, pulse: int}
environment: {purpose: string}
---
kind: object
name: vitals
topics: ward/+patientId/#
---
kind: attributes
name: user:ann
values: {pSet: [p1]}
---
kind: event
name: Fall
attributes: {pid: string}
packet: {when: 't.topic.includes("fall")', set: {pid: o.patientId}}
---
kind: plan
name: falls
situations: [{id: Fallen, level: 1}]
evolutions: [{event: Fall, to: Fallen}]
---
kind: scenario
name: falls
plan: falls
attribute: pid
---
kind: policy
name: nurses
subject: user:ann
filter: ward/#
allow: read
when: o.patientId in s.pSet
---
kind: emergency-policy
name: doctor
subject: user:doc
filter: ward/#
allow: read
plan: falls
minimum_level: 1
about: o.patientId
---
kind: enforcement
name: default
policies: required
"""
PREFERENCE = """---
kind: preference
name: only-ann
user: bob
filter: ward/#
when: s.uid == "ann"
"""


def hold(checks: Checks, *wanted: tuple[str, str | None, int], user: str = "alice") -> Session:
    session = Session(f"c-{user}", user, 0)
    for text, ap, identifier in wanted:
        checks.subscribe(session, text, ap, identifier)
    return session


def test_a_delivery_needs_a_known_and_compatible_subscription() -> None:
    checks = Checks.of(RESERVED)
    session = hold(checks, ("a/#", "p", 0), ("a/b", "q", 0))
    decide = checks.delivery.decide
    assert decide(session, delivered("a/b", 1)).properties == b""
    denied = decide(session, delivered("a/b", 2))
    assert denied.properties is None
    assert denied.refusal == Refusal("purpose", "reservation a/#{p}")
    assert denied.lasting
    for packet in (delivered("a/b", 3), delivered("a/b")):
        unknown = decide(session, packet)
        assert unknown.properties is None
        assert unknown.refusal == Refusal("unknown_subscription", "")
        assert unknown.refusal.reason == "purpose"


def test_one_copy_for_several_subscriptions_names_those_that_let_it_pass() -> None:
    checks = Checks.of(RESERVED)
    session = hold(checks, ("a/#", "p", 7), ("a/b", "q", 8), ("a/+", "p", 0))
    assert checks.delivery.decide(session, delivered("a/b", 1, 2, 3)).properties == b"\x0b\x07"
    assert checks.delivery.decide(session, delivered("a/b", 2)).properties is None


@pytest.mark.parametrize(
    ("pairs", "passes"),
    [
        ((("penstock-aip", "p"),), True),
        ((("penstock-aip", "q"),), False),
        ((("penstock-aip", ""), ("penstock-pip", "p")), False),
        ((("penstock-aip", ""), ("penstock-pip", "q")), True),
        ((("penstock-aip", ""), ("penstock-pip", "")), False),
        ((("penstock-aip", "not//a purpose"),), False),
        ((("penstock-publisher", "x"), ("penstock-epoch", "1")), True),
    ],
)
def test_purposes_that_a_message_carries(pairs: Pairs, passes: bool) -> None:  # noqa: FBT001
    checks = Checks()
    session = hold(checks, ("a", "p", 0))
    for _ in range(2):  # the second time from memory
        decision = checks.delivery.decide(session, delivered("a", 1, stamp=pairs))
        assert (decision.properties is not None) == passes


def test_required_policies_close_the_gateway_where_there_is_none() -> None:
    checks = Checks.of("kind: enforcement\nname: default\npolicies: required\n")
    session = hold(checks, ("a", "p", 0))
    decision = checks.delivery.decide(session, delivered("a", 1))
    assert decision.properties is None
    assert decision.refusal == Refusal("policy", "enforcement default")


def test_definitions_that_cannot_be_compiled_close_the_gateway_until_they_are_mended() -> None:
    checks = Checks([Document("policy", "p", {"subject": "anyone"})])
    session = hold(checks, ("a", "p", 0))
    assert not checks.rules.enforceable
    decision = checks.delivery.decide(session, delivered("a", 1))
    assert decision.properties is None
    assert decision.refusal == Refusal("purpose", "definitions")
    checks.take([])
    assert checks.delivery.decide(session, delivered("a", 1)).properties == b""


def test_a_purpose_that_is_not_declared_delivers_nothing_and_says_so() -> None:
    checks = Checks.of("kind: purpose\nname: p\n")
    session = hold(checks, ("a", "p", 0), ("b", "q", 0))
    undeclared = Refusal("purpose", "declared purposes")
    assert checks.delivery.decide(session, delivered("a", 1)).properties == b""
    assert checks.delivery.decide(session, delivered("b", 2)).refusal == undeclared
    session.put_to_sleep(session.by_number[2])
    asleep = checks.delivery.decide(session, delivered("b", 2))
    assert asleep.properties is None
    assert asleep.refusal == undeclared


def test_a_paused_subscription_is_named_as_the_rule() -> None:
    settings = PurposeSettings(filter_on_subscribe=True)
    checks = Checks([], settings)
    session = hold(checks, ("a/#", "q", 0))
    checks.take([Document("reservation", "a/b", {"allow": ["p"]})])
    decision = checks.delivery.decide(session, delivered("a/z", 1))
    assert decision.properties is None
    assert decision.refusal == Refusal("purpose", "subscription a/# with purpose q")


def test_what_depends_on_topic_and_publisher_alone_lasts() -> None:
    checks = Checks.of(WARD)
    ann = hold(checks, ("ward/#", None, 0), user="ann")
    decision = checks.delivery.decide(ann, delivered("ward/p1/pulse", 1, stamp=STAMP))
    assert decision.properties == b""
    assert decision.lasting
    other = checks.delivery.decide(ann, delivered("ward/p2/pulse", 1, stamp=STAMP))
    assert other.refusal == Refusal("policy", "enforcement default")
    assert other.lasting


@pytest.mark.parametrize("condition", ["t.size > 3", 'e.time > timestamp("2020-01-01T00:00:00Z")'])
def test_what_depends_on_the_message_or_the_time_does_not_last(condition: str) -> None:
    checks = Checks.of(WARD.replace("when: o.patientId in s.pSet", f"when: '{condition}'"))
    ann = hold(checks, ("ward/#", None, 0), user="ann")
    packet = delivered("ward/p1/pulse", 1, stamp=STAMP, payload=b'{"pulse": 9}')
    decision = checks.delivery.decide(ann, packet)
    assert decision.properties == b""
    assert not decision.lasting


def test_an_emergency_opens_while_its_situation_holds_and_is_put_on_record() -> None:
    checks = Checks.of(WARD)
    doc = hold(checks, ("ward/#", None, 0), user="doc")
    packet = delivered("ward/p1/pulse", 1, stamp=STAMP)
    before = checks.delivery.decide(doc, packet)
    assert before.properties is None
    assert not before.lasting
    checks.detection.board.move("falls", "p1", "Fallen")
    during = checks.delivery.decide(doc, packet)
    assert during.properties == b""
    assert not during.lasting
    assert [(it.kind, it.rule) for it in checks.denials.grants.waiting()] == [
        ("emergency.granted", "emergency-policy doctor")
    ]
    checks.detection.board.move("falls", "p1", None)
    assert checks.delivery.decide(doc, packet).properties is None


def test_a_refusal_by_situations_that_are_not_known_waits_for_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = Checks.of(WARD)
    doc = hold(checks, ("ward/#", None, 0), user="doc")
    ann = hold(checks, ("ward/#", None, 0), user="ann")
    monkeypatch.setattr(checks.detection.follower, "awaiting_leader", True)
    assert checks.delivery.decide(doc, delivered("ward/p1/x", 1, stamp=STAMP)).awaiting_leader
    settled = checks.delivery.decide(ann, delivered("ward/p1/x", 1, stamp=STAMP))
    assert not settled.awaiting_leader
    assert settled.properties == b""


def test_where_preferences_exist_a_message_without_a_stamp_is_nobodys() -> None:
    checks = Checks.of(WARD + PREFERENCE)
    ann = hold(checks, ("ward/#", None, 0), user="ann")
    assert checks.delivery.decide(ann, delivered("ward/p1/x", 1, stamp=STAMP)).properties == b""
    unstamped = checks.delivery.decide(ann, delivered("ward/p1/x", 1))
    assert unstamped.properties is None
    assert unstamped.refusal == Refusal("policy", "unstamped")
    without = Checks.of(WARD)
    ann = hold(without, ("ward/#", None, 0), user="ann")
    assert without.delivery.decide(ann, delivered("ward/p1/x", 1)).properties == b""


def test_settings_that_forbid_caches_let_nothing_last() -> None:
    checks = Checks.of(
        RESERVED + "---\nkind: purpose-settings\nname: default\ncache_reservations: false\n"
    )
    session = hold(checks, ("a/#", "p", 0))
    assert not checks.delivery.decide(session, delivered("a/b", 1)).lasting
