"""Decisions on publications, on real packets, rules and detection, without a socket."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from pydantic import ValidationError

from penstock.gateway.publications import PublishOutcome, PublishResult
from penstock.gateway.session import Session
from penstock.model.kinds import Event
from penstock.policy.access.requests import Message
from penstock.policy.consent import NOBODY
from tests.support.gateway.authorization import Checks, delivered

HOME = """
kind: vocabulary
name: home
subject: {uid: string}
object: {patientId: string}
---
kind: object
name: vitals
topics: home/+patientId/#
---
kind: policy
name: sensors
subject: user:sensor
filter: home/#
allow: write
when: o.patientId == "p1"
---
kind: enforcement
name: default
policies: required
"""
EVENTS = """---
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
kind: emergency-policy
name: helpers
subject: user:helper
filter: home/#
allow: write
plan: falls
minimum_level: 1
about: o.patientId
"""
SENSOR = Session("s", "sensor", 0)


def publish(checks: Checks, session: Session, topic: str) -> PublishResult:
    result = checks.publication.publish(session, delivered(topic, payload=b"{}"))
    assert isinstance(result, PublishResult)
    return result


def test_without_policies_and_events_everything_may_be_written_for_good() -> None:
    checks = Checks()
    assert not checks.publication.concerns("home/p1/pulse")
    result = publish(checks, SENSOR, "home/p1/pulse")
    assert result.accepted
    assert result.lasting


def test_a_policy_decides_who_may_write() -> None:
    checks = Checks.of(HOME)
    assert checks.publication.concerns("home/p1/pulse")
    granted = publish(checks, SENSOR, "home/p1/pulse")
    assert granted.accepted
    assert granted.lasting, "all of the object is in the topic"
    for session, topic in [(SENSOR, "home/p2/pulse"), (Session("x", "anonymous", 0), "home/p1/x")]:
        denied = publish(checks, session, topic)
        assert denied.outcome is PublishOutcome.DENIED
        assert denied.rule == "enforcement default"


def test_what_depends_on_the_message_is_decided_for_each() -> None:
    checks = Checks.of(HOME.replace('o.patientId == "p1"', "t.size < 10"))
    result = publish(checks, SENSOR, "home/p1/pulse")
    assert result.accepted
    assert not result.lasting


def test_what_could_be_an_event_is_refused_while_nobody_detects() -> None:
    checks = Checks.of(HOME + EVENTS)
    assert checks.publication.concerns("home/p1/fall")
    assert publish(checks, SENSOR, "home/p1/fall").outcome is PublishOutcome.NO_LEADER
    assert not checks.publication.detect("home/p1/fall", b"{}", 1)


def test_an_emergency_policy_grants_and_is_put_on_record() -> None:
    checks = Checks.of(HOME + EVENTS)
    helper = Session("h", "helper", 0)
    assert publish(checks, helper, "home/p2/pulse").outcome is PublishOutcome.DENIED
    checks.detection.board.move("falls", "p2", "Fallen")
    granted = publish(checks, helper, "home/p2/pulse")
    assert granted.accepted
    assert not granted.lasting
    assert [it.rule for it in checks.denials.grants.waiting()] == ["emergency-policy helpers"]


def test_a_refusal_by_situations_that_are_not_known_waits_until_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = Checks.of(HOME + EVENTS)
    helper = Session("h", "helper", 0)
    follower = checks.detection.follower
    monkeypatch.setattr(follower, "awaiting_leader", True)

    async def become_current() -> None:
        checks.detection.board.move("falls", "p2", "Fallen")
        monkeypatch.setattr(follower, "awaiting_leader", False)

    monkeypatch.setattr(follower, "wait_current", become_current)

    async def wait() -> PublishResult:
        pending = checks.publication.publish(helper, delivered("home/p2/pulse", payload=b"{}"))
        assert not isinstance(pending, PublishResult)
        return await pending

    assert asyncio.run(wait()).accepted


def test_who_is_blocked_publishes_nothing_more_a_late_will_included() -> None:
    checks = Checks.of("kind: user\nname: sensor\n")
    free = checks.publication.publish(SENSOR, delivered("home/p1/x"))
    assert isinstance(free, PublishResult)
    assert free.accepted
    checks = Checks.of("kind: user\nname: sensor\nblocked: true\n")
    held = checks.publication.publish(SENSOR, delivered("home/p1/x"))
    assert isinstance(held, PublishResult)
    assert (held.outcome, held.rule) == (PublishOutcome.DENIED, "blocked user")


DETECTING = """
kind: stream
name: s
subject: pid
from: ["#"]
fields: [{name: pid, type: string}]
---
kind: purpose
name: care
---
kind: purpose
name: ads
---
kind: event
name: Fall
attributes: {pid: string}
packet: {when: 't.topic == "fall"', set: {pid: t.payload.pid}}
---
kind: event
name: Visit
attributes: {pid: string}
purposes: [ads]
packet: {when: 't.topic == "fall"', set: {pid: t.payload.pid}}
"""


def test_events_for_a_purpose_leave_out_who_opted_out_and_no_other_event_does() -> None:
    checks = Checks.of(DETECTING)
    people = ["p", "q"]
    index = NOBODY.change(1, {"ads": Counter([0])}, people.index)
    checks.rules.take_opt_outs(index, None)
    forbid = checks.rules.consent.forbid_event

    def ask(event: str, payload: bytes) -> bool:
        return forbid(event, "fall", Message("fall", payload))

    assert [ask("Visit", it) for it in (b'{"pid":"p"}', b'{"pid":"q"}', b"{}")] == [
        True,
        False,
        True,
    ]
    assert not any(ask("Fall", it) for it in (b'{"pid":"p"}', b"{}"))
    checks.rules.take_opt_outs(NOBODY, None)
    assert not ask("Visit", b'{"pid":"p"}')


def test_a_pattern_does_not_say_whom_it_is_about() -> None:
    with pytest.raises(ValidationError, match="only a packet tells"):
        Event.model_validate(
            {
                "name": "e",
                "attributes": {"pid": "string"},
                "purposes": ["ads"],
                "pattern": {"event": "Fall"},
            }
        )
