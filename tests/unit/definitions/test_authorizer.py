from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.authorizer import make_authorizer
from penstock.errors import UsageError
from penstock.policy.access.requests import make_request

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

WARD = """
kind: vocabulary
name: ward
subject: {pSet: list(string)}
object: {patientId: string}
---
kind: group
name: nurses
members: [user:ann]
---
kind: group
name: staff
includes: [nurses]
members: [client:terminal]
---
kind: policy
name: temperature
subject: group:staff
filter: ward/#
allow: read
when: o.patientId in s.pSet && t.topic.contains("temperature")
---
kind: reservation
name: ward/#
allow: [treatment]
---
kind: enforcement
name: default
policies: required
"""


def _decide(text: str = WARD, **question: Any) -> tuple[bool, str]:
    authorizer = make_authorizer(DefinitionSet.build(read_text(text).documents))
    request = make_request(about=question.pop("object", {}), environment={"time": NOW}, **question)
    decision = authorizer.explain(request)
    assert authorizer.authorize(request).allowed == decision.allowed
    return decision.allowed, str(decision)


GRANTED: dict[str, Any] = {
    "topic": "ward/7/temperature",
    "purpose": "treatment",
    "user": "ann",
    "attributes": {"pSet": ["p1"]},
    "object": {"patientId": "p1"},
}


def test_purpose_and_policy_together_allow() -> None:
    assert _decide(**GRANTED)[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"purpose": None}, "the subscription has no purpose"),
        ({"purpose": "research"}, "not for research"),
        ({"user": "bob"}, "is for group:staff"),
        ({"attributes": {}}, "s.pSet is missing"),
        ({"attributes": {"pSet": ["p2"]}}, "its condition is false"),
        ({"attributes": {"pSet": 7}}, "cannot be decided"),
        ({"object": {"patientId": None}}, "o.patientId is missing"),
        ({"topic": "ward/7/pulse"}, "its condition is false"),
        ({"topic": "other"}, "there is no policy for read on this topic"),
    ],
)
def test_each_part_alone_denies_with_its_reason(change: dict[str, Any], reason: str) -> None:
    allowed, text = _decide(**{**GRANTED, **change})
    assert not allowed
    assert reason in text


def test_groups_within_groups_and_clients_count() -> None:
    allowed, _ = _decide(**{**GRANTED, "user": "tim", "client": "terminal"})
    assert allowed


@pytest.mark.parametrize("user", [None, "anonymous"])
def test_a_client_identifier_without_a_user_counts_for_nothing(user: str | None) -> None:
    allowed, text = _decide(**{**GRANTED, "user": user, "client": "terminal"})
    assert not allowed
    assert "client terminal: without a user it counts for nothing" in text


def test_writing_needs_a_policy_of_its_own_and_has_no_purpose() -> None:
    allowed, text = _decide(topic="ward/1", action="write", user="ann")
    assert not allowed
    assert "no policy for write" in text
    with pytest.raises(UsageError, match="writing has none"):
        _decide(topic="ward/1", action="write", purpose="treatment")


def test_policies_are_looked_at_only_where_they_are_required() -> None:
    text = WARD.replace("policies: required", 'policies: "off"')
    assert _decide(text, topic="ward/1", purpose="treatment")[0]
    assert _decide(text, topic="ward/1", action="write")[0]


def test_deleting_the_last_policy_closes_rather_than_opens() -> None:
    documents = [item for item in read_text(WARD).documents if item.kind != "policy"]
    question = {**GRANTED, "about": GRANTED["object"]}
    del question["object"]
    authorizer = make_authorizer(DefinitionSet.build(documents))
    assert not authorizer.authorize(make_request(**question)).allowed


def test_strict_mode_closes_what_is_not_reserved() -> None:
    text = "kind: purpose-settings\nname: default\nallow_without_reservation: false\n"
    assert not _decide(text, topic="free", purpose="x")[0]
    assert _decide("", topic="free")[0]
