"""The access matrix, against what a gateway delivers and what a view publishes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.definitions import read_text
from penstock.definitions.access_matrix import (
    Question,
    list_situations,
    look_at_view,
    make_examples,
    make_matrix,
)
from penstock.definitions.authorizer import make_authorizer
from penstock.definitions.set import DefinitionSet
from penstock.definitions.views import find_plan
from penstock.gateway.authorization.delivery_check import DecisionCache
from penstock.gateway.broker import PUBLISHER
from penstock.gateway.publications import PublishResult
from penstock.gateway.session import Session
from penstock.masks import Rejected
from penstock.model import kinds
from penstock.policy.access.principals import ANONYMOUS
from tests.support.gateway.authorization import Checks, delivered
from tests.support.scale import scaled

GROUND = """
kind: vocabulary
name: house
subject: {uid: string, ward: string}
object: {patientId: string}
payload: {pulse: int, note: string}
---
{kind: object, name: homes, topics: "home/+patientId/#"}
---
{kind: group, name: nurses, members: ["user:ann", "user:bob"]}
---
{kind: user, name: ann, roles: [carer]}
---
{kind: user, name: bob}
---
{kind: user, name: dan, blocked: true}
---
{kind: attributes, name: "user:bob", values: {ward: "3"}}
---
{kind: role, name: carer}
---
{kind: purpose, name: care}
---
{kind: purpose, name: research}
---
kind: event
name: Fall
attributes: {pid: string}
packet: {filters: [home/+/fall], set: {pid: o.patientId}}
---
kind: plan
name: help
situations: [{id: Fallen, level: 1}]
evolutions: [{event: Fall, to: Fallen}]
---
{kind: scenario, name: help, plan: help, attribute: pid}
---
kind: stream
name: vitals
from: [home/+patient/vitals]
subject: patient
fields:
- {name: patient, type: string, category: identifier}
- {name: pulse, type: int, category: sensitive}
- {name: note, type: string, optional: true}
---
kind: stream
name: report
fields:
- {name: pulse, type: int}
- {name: note, type: string, optional: true}
"""
RULES_TEXT = """
{kind: policy, name: nurses, subject: "group:nurses", filter: home/+/vitals, allow: read}
---
kind: policy
name: pulses
subject: anyone
filter: home/#
allow: read
when: t.payload.pulse > 0
---
{kind: authorisation-rule, name: carers, role: carer, subscribe: [home/+/vitals]}
---
kind: emergency-policy
name: help
subject: anyone
filter: home/#
allow: read
plan: help
about: o.patientId
---
{kind: reservation, name: home/#, allow: [care]}
---
{kind: reservation, name: home/+/vitals, prohibit: [research]}
---
{kind: restriction, name: ward, filter: home/#, permit: 's.ward == "3"'}
---
{kind: restriction, name: secrets, filter: home/#, deny: 't.payload.note == "secret"'}
---
kind: transformation
name: coarse
order: 1
filter: home/+/vitals
stream: vitals
except_during: {plan: help, about: o.patientId}
anonymizers: [{anonymizer: bucketizing, keys: [pulse], bucket_size: 10}]
---
kind: transformation
name: short
order: 2
filter: home/+/vitals
stream: vitals
exempt: ["user:ann"]
anonymizers: [{anonymizer: suppression, keys: [note]}]
---
kind: transformation
name: at-source
at: publication
order: 1
filter: home/+/vitals
stream: vitals
except_during: {plan: help, about: o.patientId}
anonymizers: [{anonymizer: suppression, keys: [note]}]
---
kind: transformation
name: reports
at: publication
order: 2
filter: home/+/vitals
stream: vitals
when: t.payload.pulse > 10
into: {topic: "reports/{pulse}", stream: report, keep: false}
---
kind: transformation
name: vague-reports
filter: reports/+
stream: report
when: t.payload.pulse > 15
remove: [pulse]
---
{kind: policy, name: reports, subject: "group:nurses", filter: reports/#, allow: read}
"""
RULES = RULES_TEXT.split("---")
TOPIC = "home/p-17/vitals"


Leaving = dict[str, bytes]


def publish(checks: Checks, payload: bytes) -> Leaving:
    """Return what a gateway publishes of a message: payloads by topic."""
    made = checks.publication.reshape_own(TOPIC, payload)
    if made is None:
        return {TOPIC: payload}
    if isinstance(made, PublishResult):
        return {}
    own = {} if made.payload is None else {TOPIC: made.payload}
    return own | dict(made.copies)


def deliver(
    checks: Checks, user: str, purpose: str | None, topic: str, payload: bytes
) -> bytes | None:
    """Return what a subscriber gets of a message; None: nothing."""
    session = Session(user, user, 0)
    number = checks.subscribe(session, "#", purpose)
    packet = delivered(topic, number, stamp=((PUBLISHER, ANONYMOUS),), payload=payload)
    made = DecisionCache(checks.delivery).decide(session, packet, (topic, packet.properties.raw))
    checks.rules.engine.end_session(user)
    if made.properties is None:
        return None
    return made.sent.payload if made.sent is not None else payload


@given(
    st.sets(st.integers(0, len(RULES) - 1)),
    st.sampled_from(["required", "off"]),
    st.integers(-1, 25),
    st.sampled_from(["fine", "secret"]),
)
@settings(deadline=None, max_examples=scaled(25))
def test_the_matrix_says_what_a_gateway_delivers(
    chosen: set[int], policies: str, pulse: int, note: str
) -> None:
    rules = [RULES[it] for it in sorted(chosen)]
    rules.append(f"\n{{kind: enforcement, name: default, policies: {policies}}}\n")
    text = "---".join((GROUND, *rules))
    documents = read_text(text, "rules").documents
    definitions = DefinitionSet.build(documents)
    checks = Checks(documents)
    question = Question(topics=[TOPIC], payload={"pulse": pulse, "note": note})
    (example,) = make_examples(definitions, question)
    assert json.loads(example.payload) == {"patient": "p-17", "pulse": pulse, "note": note}
    cells = list(make_matrix(make_authorizer(definitions), definitions, question, [example]))
    before = json.loads(example.payload)
    seen = 0
    for situation, scenario, word in list_situations(definitions):
        checks.detection.board.fill([(scenario, "p-17", word)] if scenario else [])
        checks.rules.generation += 1
        left = publish(checks, example.payload)
        assert {it.source for it in cells if it.situation == situation} == {TOPIC, *left}
        for subject in ("ann", "bob", "dan", ANONYMOUS):
            for purpose in (None, "care", "research"):
                for topic in {TOPIC, *left}:
                    told = {
                        it.attribute: it.degree
                        for it in cells
                        if (it.subject, it.purpose, it.situation, it.source)
                        == (subject, purpose, situation, topic)
                    }
                    got = (
                        deliver(checks, subject, purpose, topic, left[topic])
                        if (topic in left)
                        else None
                    )
                    after = json.loads(got) if got is not None else None
                    names = before if topic == TOPIC else json.loads(left[topic])
                    expected = {name: _degree(topic, name, before, after) for name in names}
                    assert told == expected, (subject, purpose, situation, rules)
                    seen += 1
    assert seen >= 24


def _degree(topic: str, name: str, before: dict[str, Any], after: dict[str, Any] | None) -> str:
    if after is None:
        return "none"
    if topic == TOPIC and name == "patient":
        return "full"  # the topic tells it, whatever the payload says
    if name not in after:
        return "removed"
    return "full" if after[name] == before[name] else "changed"


MASKS: list[dict[str, Any]] = [
    {"anonymizer": "bucketizing", "keys": ["pulse"], "bucket_size": 10},
    {"anonymizer": "suppression", "keys": ["note"]},
    {"anonymizer": "suppression", "keys": ["pulse"]},
    {"anonymizer": "suppression", "keys": ["patient", "note"]},
]


@given(
    st.lists(st.sampled_from(MASKS), max_size=3, unique_by=str),
    st.lists(st.tuples(st.integers(-50, 50), st.text("ab", max_size=3)), min_size=1, max_size=6),
)
@settings(deadline=None, max_examples=scaled(25))
def test_the_matrix_says_what_a_view_leaves(
    masks: list[dict[str, Any]], records: list[tuple[int, str]]
) -> None:
    documents = read_text(GROUND, "ground").documents
    definitions = DefinitionSet.build(documents)
    stream = definitions.of(kinds.Stream)["vitals"]
    view = kinds.View.model_validate({"name": "v", "stream": "vitals", "anonymizers": masks})
    problems: list[Any] = []
    plan = find_plan(view, stream, {}, problems)
    told = {name: degree for name, degree, _ in look_at_view(definitions, view)}
    if plan is None:
        assert set(told.values()) == {"none"}
        return
    chain, _ = plan.make_chains("v", bytes(32), {})
    for number, (pulse, note) in enumerate(records):
        record = {"patient": f"p{number}", "pulse": pulse, "note": note}
        row = chain.apply(record, str(number))
        assert not isinstance(row, Rejected)
        for name, degree in told.items():
            assert (name in row) is (degree != "removed")
            if degree == "full":
                assert row[name] == record[name]
