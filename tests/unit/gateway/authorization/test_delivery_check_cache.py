"""What a connection keeps of decisions, and what it decides anew."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import pytest

from penstock.definitions import read_text
from penstock.gateway.authorization.delivery_check import DecisionCache, DeliveryDecision, Refusal
from penstock.gateway.session import Session
from penstock.json_text import read_object
from penstock.model.document import Key
from penstock.policy.access import requests
from penstock.store.definitions.documents import Snapshot
from tests.support.gateway.authorization import Checks, delivered

SESSION = Session("c", "alice", 0)
PASSES = DeliveryDecision(b"kept", lasting=True)
DENIED = DeliveryDecision(None, Refusal("purpose", "reservation a"), lasting=True)


def make(*decisions: DeliveryDecision) -> tuple[DecisionCache, Mock]:
    check = Mock()
    check.decide.side_effect = decisions
    check.open.side_effect = lambda _, packet, __: packet
    check.is_vouched.return_value = False
    return DecisionCache(check), check


def test_what_may_pass_is_kept_as_the_properties_to_send() -> None:
    cache, check = make(PASSES)
    key = ("a", b"raw")
    assert cache.decide(SESSION, delivered("a", 1), key) == PASSES
    assert cache.passing == {key: b"kept"}
    assert check.decide.call_count == 1


def test_what_is_denied_is_kept_with_its_rule() -> None:
    cache, check = make(DENIED)
    for _ in range(2):
        assert cache.decide(SESSION, delivered("a", 1), ("a", b"raw")) == DENIED
    assert check.decide.call_count == 1
    assert not cache.passing


def test_what_was_sealed_is_opened_each_time_and_never_passes_as_it_came() -> None:
    cache, check = make(PASSES, PASSES)
    opened = delivered("a", 1)
    sealed = DeliveryDecision(None, Refusal("sealed", "sealed stream"))
    check.open.side_effect = [opened, opened, sealed]
    for _ in range(2):
        decision = cache.decide(SESSION, delivered("a", 1), ("a", b"raw"))
        assert decision.sent is opened
        assert not cache.passing
    refused = cache.decide(SESSION, delivered("a", 1), ("a", b"raw"))
    assert refused is sealed


def test_what_is_vouched_for_is_decided_on_each_time() -> None:
    for decision in (PASSES, DENIED):
        cache, check = make(decision, decision)
        check.is_vouched.return_value = True
        for _ in range(2):
            assert cache.decide(SESSION, delivered("a", 1), ("a", b"raw")) == decision
        assert check.decide.call_count == check.delivered.call_count == 2


def test_what_waits_for_a_leader_was_not_delivered() -> None:
    cache, check = make(DeliveryDecision(awaiting_leader=True))
    cache.decide(SESSION, delivered("a", 1), ("a", b"raw"))
    assert not check.delivered.called


@pytest.mark.parametrize(
    "decision",
    [
        PASSES._replace(lasting=False),
        DENIED._replace(lasting=False),
        DeliveryDecision(awaiting_leader=True),
    ],
)
def test_what_does_not_last_is_decided_anew(decision: DeliveryDecision) -> None:
    cache, check = make(decision, decision)
    for _ in range(2):
        assert cache.decide(SESSION, delivered("a", 1), ("a", b"raw")) == decision
    assert check.decide.call_count == 2
    assert not cache.passing


def test_long_property_lists_are_not_kept() -> None:
    cache, check = make(PASSES, DENIED)
    cache.decide(SESSION, delivered("a", 1), ("a", b"x" * 257))
    cache.decide(SESSION, delivered("a", 1), ("a", b"x" * 257))
    assert check.decide.call_count == 2


def test_many_topics_push_out_what_was_kept() -> None:
    check = Mock()
    check.open.side_effect = lambda _, packet, __: packet
    check.is_vouched.return_value = False
    check.decide.side_effect = lambda _, packet: PASSES if len(packet.topic) % 2 else DENIED
    cache = DecisionCache(check)
    for number in range(10_000):
        topic = f"t{number}"
        cache.decide(SESSION, delivered(topic, 1), (topic, b""))
        assert len(cache.passing) + len(cache._denied) <= 2_048


def test_forgetting_asks_the_rules_again() -> None:
    checks = Checks.of("kind: reservation\nname: a\nallow: [p]\n")
    session = Session("c", "alice", 0)
    number = checks.subscribe(session, "a", "p")
    cache = DecisionCache(checks.delivery)
    packet, key = delivered("a", number), ("a", b"")
    assert cache.decide(session, packet, key).properties == b""
    checks.take([])
    checks.take(checks.rules.snapshot.documents.values() if checks.rules.snapshot else [])
    cache.forget()
    assert not cache.passing
    assert cache.decide(session, packet, key).properties == b""
    assert cache.passing == {key: b""}


def test_what_was_made_of_a_recent_message_does_not_outlive_where_its_attributes_stand() -> None:
    rules = """
kind: vocabulary
name: v
object: {pid: string}
---
{kind: stream, name: s, fields: [{name: n, type: int}, {name: who, type: string, optional: true}]}
---
{kind: transformation, name: t, filter: "w/#", stream: s, set: {who: o.pid}}
---
"""
    first = f'{rules}{{kind: object, name: o, topics: "w/+pid/+"}}'
    checks = Checks.of(first)
    session = Session("c", "ann", 0)
    number = checks.subscribe(session, "w/#", None)
    packet = delivered("w/a/b", number, payload=b'{"n": 1}')
    key = (packet.topic, packet.properties.raw)

    def made() -> bytes:
        sent = DecisionCache(checks.delivery).decide(session, packet, key).sent
        assert sent is not None
        return sent.payload

    assert made() == b'{"n":1,"who":"a"}'
    second = read_text(f'{rules}{{kind: object, name: o, topics: "w/+/+pid"}}').documents
    snapshot = Snapshot(2, "second", MappingProxyType({it.key: it for it in second}))
    checks.rules.take(snapshot, [Key("object", "o")])
    assert made() == b'{"n":1,"who":"b"}'


@pytest.mark.parametrize("size", [100, 500_000])
def test_a_message_to_many_readers_is_parsed_once(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsed for each reader, one of a megabyte kept the gateway busy for seconds."""
    checks = Checks.of(
        "{kind: vocabulary, name: v, payload: {n: int}}\n---\n"
        '{kind: policy, name: p, subject: anyone, filter: "#", allow: read, when: t.payload.n == 1}'
        "\n---\n{kind: enforcement, name: default, policies: required}"
    )
    parsed: list[int] = []

    def count(content: bytes) -> dict[str, Any] | None:
        parsed.append(len(content))
        return read_object(content)

    monkeypatch.setattr(requests, "read_object", count)
    stamp = (("penstock-publisher", "bob"), ("penstock-client", "watch"))
    payload = json.dumps({"n": 1, "pad": "x" * size}).encode()
    for number in range(10):
        session = Session(f"c{number}", f"u{number}", 0)
        packet = delivered("a", checks.subscribe(session, "#", None), stamp=stamp, payload=payload)
        assert checks.delivery.decide(session, packet).properties is not None
    assert parsed == [len(payload)]
