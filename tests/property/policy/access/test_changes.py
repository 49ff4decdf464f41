"""An engine that follows changes of definitions decides as one that is compiled afresh."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.access import AccessDefinitions
from penstock.errors import InvalidError
from penstock.model.document import Document, Key
from penstock.policy.access.emergencies import SituationBoard
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.principals import ACTIONS
from penstock.policy.access.requests import Message
from tests.support.scale import scaled

# Documents in variants: of each kind and name one at a time is in the set, or none.
POOL = """
kind: vocabulary
name: home
subject: {uid: string, groups: list(string), pSet: list(string)}
object: {patient: string, room: string}
---
kind: vocabulary
name: home
subject: {uid: string, groups: list(string), pSet: list(string), rank: int}
object: {patient: string, room: string}
---
kind: object
name: patient
topics: home/+patient/#
---
kind: object
name: patient
topics: "#"
payload: {patient: pid}
---
kind: object
name: room
topics: home/+/+room
---
kind: group
name: staff
members: [user:ann]
---
kind: group
name: staff
members: [user:bob]
includes: [nurses]
---
kind: group
name: nurses
members: [user:eve]
---
kind: attributes
name: user:ann
values: {pSet: [p1]}
---
kind: attributes
name: user:ann
values: {pSet: [p1, p2]}
---
kind: attributes
name: group:staff
values: {pSet: [p2]}
---
kind: attributes
name: user:sensor
on_behalf_of: p1
---
kind: event
name: Fall
attributes: {pid: string}
packet: {set: {pid: o.patient}}
---
kind: plan
name: falls
situations: [{id: Low, level: 1}, {id: High, level: 2}]
evolutions: [{event: Fall, to: Low}]
---
kind: plan
name: falls
situations: [{id: Low, level: 2}, {id: High, level: 1}]
evolutions: [{event: Fall, to: Low}]
---
kind: scenario
name: falls
plan: falls
attribute: pid
---
kind: scenario
name: house
plan: falls
attribute: pid
---
kind: enforcement
name: default
policies: required
---
kind: enforcement
name: default
policies: required
preferences_in_emergencies: overridden
exclusive: [{plan: falls, about: o.patient}]
---
kind: enforcement
name: default
---
kind: policy
name: one
subject: group:staff
filter: home/#
allow: read
when: o.patient in s.pSet
---
kind: policy
name: one
subject: user:eve
filter: home/+/r1
allow: write
---
kind: policy
name: two
filter: '#'
allow: read
when: o.patient == s.uid
---
kind: emergency-policy
name: one
filter: home/#
allow: read
plan: falls
minimum_level: 2
about: o.patient
---
kind: emergency-policy
name: one
subject: user:bob
filter: '#'
allow: write
plan: falls
scenarios: [house]
any_object: true
exclusive: true
---
kind: preference
name: one
user: p1
filter: home/#
when: '"staff" in s.groups'
---
kind: preference
name: one
user: p1
filter: home/p1/r1
when: s.uid == "bob"
"""
VARIANTS: dict[Key, list[Document]] = {}
for _text in POOL.split("---\n"):
    (_document,) = read_text(_text).documents
    VARIANTS.setdefault(_document.key, []).append(_document)

BOARDS = [
    SituationBoard(),
    SituationBoard([("falls", "p1", "Low")]),
    SituationBoard([("house", "p1", "High"), ("falls", "p2", "Low")]),
]


def decide_all(access: AccessEngine) -> list[tuple[bool, str]]:
    decisions = []
    for user in ("ann", "bob", "eve", "p1", None):
        for topic in ("home/p1/r1", "home/p2/r2", "data"):
            message = Message(topic, {"pid": "p1"}, user="sensor")
            for board in BOARDS:
                for action in ACTIONS:
                    decision = access.decide(
                        action, access.principal(user, None), message, {}, board
                    )
                    decisions.append((decision.allowed, decision.rule))
    return decisions


@settings(max_examples=scaled(60), deadline=None)
@given(st.integers(0, 2**32))
def test_following_changes_is_the_same_as_compiling_afresh(seed: int) -> None:
    draw = random.Random(seed)
    documents = {key: draw.choice(held) for key, held in VARIANTS.items()}
    definitions = DefinitionSet.build(documents.values())
    followed = AccessDefinitions(definitions)
    for _ in range(8):
        keys = draw.sample(sorted(VARIANTS), draw.randint(1, 3))
        put = [draw.choice(VARIANTS[key]) for key in keys if draw.random() < 0.6]
        gone = [key for key in keys if key not in {it.key for it in put}]
        gone = [key for key in gone if key in definitions.definitions]
        try:
            definitions = definitions.change(put, gone)
        except InvalidError:
            continue  # something still refers to what would go
        followed.take(definitions, keys)
        assert decide_all(followed.access) == decide_all(AccessDefinitions(definitions).access)
