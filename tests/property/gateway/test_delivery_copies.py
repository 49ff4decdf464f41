"""A message that goes to many readers is looked at once; each is decided on as if it came alone.

The model is a check that has seen nothing before. Messages differ in one thing that conditions
can see, or in none; definitions change in between.
"""

from __future__ import annotations

from itertools import cycle, product
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.definitions import read_text
from penstock.gateway.authorization.delivery_check import DeliveryCheck
from penstock.gateway.session import Session
from penstock.model.document import Document
from penstock.mqtt import Publish
from tests.support.gateway.authorization import Checks, delivered
from tests.support.scale import scaled

GROUND: Final = """
kind: vocabulary
name: v
subject: {{uid: string, seen: list(string)}}
object: {{patient: string}}
payload: {{patient: string, other: string}}
---
kind: object
name: o
topics: "#"
payload: {{patient: {field}}}
---
kind: attributes
name: user:ann
values: {{seen: [a]}}
---
kind: enforcement
name: default
policies: required
"""
CONDITIONS: Final = (
    "o.patient in s.seen",
    "t.qos == 1",
    "t.retain",
    't.contentType == "x"',
    't.properties.k == "x"',
    't.user == "ann"',
    't.clientId == "c"',
    't.topic == "t/a"',
    "t.size > 30",
)
USERS: Final = ("ann", "bob")
STAMPED: Final = ("penstock-publisher", "penstock-client", "penstock-for")


CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "topic": ("t/a", "t/b"),
    "payload": (b'{"patient":"a","other":"b"}', b'{"patient":"b","other":"a"}', b"{"),
    "first": (0x30, 0x31, 0x32),
    "content_type": (None, "x"),
    "user": ((), (("k", "x"),), (("k", "y"),)),
    "stamp": ((), *(tuple(zip(STAMPED, it, strict=True)) for it in product(USERS, "cd", USERS))),
}


def make_documents(when: str, field: str) -> list[Document]:
    policy = {"subject": "anyone", "filter": "#", "allow": "read", "when": when}
    ground = read_text(GROUND.format(field=field)).documents
    return [*ground, Document("policy", "p", policy)]


def make_packet(chosen: dict[str, Any]) -> Publish:
    packet = delivered(chosen["topic"], 1, stamp=chosen["stamp"], payload=chosen["payload"])
    packet.first = chosen["first"]
    packet.properties.content_type = chosen["content_type"]
    packet.properties.user = chosen["user"]
    return packet


@st.composite
def walks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw messages, each like the one before in all but one thing, or in all."""
    chosen = {name: draw(st.sampled_from(values)) for name, values in CHOICES.items()}
    found = [chosen]
    for name in draw(st.lists(st.sampled_from(("", *CHOICES)), max_size=20)):
        changed = {name: draw(st.sampled_from(CHOICES[name]))} if name else {}
        found.append({**found[-1], **changed})
    return found


@pytest.mark.parametrize("when", CONDITIONS)
@given(steps=walks(), changes=st.sets(st.integers(1, 20), max_size=3))
@settings(max_examples=scaled(40), deadline=None)
def test_copies_are_decided_on_as_if_each_came_alone(
    when: str, steps: list[dict[str, Any]], changes: set[int]
) -> None:
    fields = cycle(("patient", "other"))
    checks = Checks(make_documents(when, next(fields)))
    sessions = [Session(f"c-{user}", user, 0) for user in USERS]
    for session in sessions:
        assert checks.subscribe(session, "#", None) == 1
    for number, chosen in enumerate(steps):
        if number in changes:
            checks.take(make_documents(when, next(fields)))
        known = (checks.rules, checks.detection, checks.clock, checks.denials, None)
        for session in sessions:
            packet = make_packet(chosen)
            assert checks.delivery.decide(session, packet) == DeliveryCheck(*known).decide(
                session, packet
            )
