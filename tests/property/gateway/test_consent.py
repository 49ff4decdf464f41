"""Cached decisions under changing opt-outs: a gateway never delivers by what held before.

Messages go through the decision cache of each client, as in the hot loop; opt-outs come as the
feed hands them over, with the numbers of those who chose.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.gateway.authorization.delivery_check import DecisionCache
from penstock.gateway.session import Session
from penstock.model.document import Document
from penstock.mqtt import Properties, Publish
from penstock.policy.consent import NOBODY, OptOutIndex
from tests.support.gateway.authorization import Checks
from tests.support.scale import scaled

PEOPLE = ["p", "q", "r"]
PURPOSES: list[str | None] = ["ads", "ads/age", "care", None]
FIELDS = [{"name": "pid", "type": "string", "category": "identifier"}]
SHAPES: dict[str, dict[str, Any]] = {
    "level": {"from": ["level/+pid"]},
    "property": {"from": ["property"], "adds": {"properties": {"pid": "who"}}},
    "payload": {"from": ["payload"]},
}
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("choose"), st.sampled_from(PEOPLE), st.sampled_from(PURPOSES[:3]), st.booleans()
        ),
        st.tuples(
            st.just("deliver"),
            st.sampled_from([*PEOPLE, None]),
            st.sampled_from(PURPOSES),
            st.sampled_from(list(SHAPES)),
        ),
        st.tuples(st.just("key"), st.none(), st.none(), st.booleans()),
    ),
    max_size=40,
)


def number_of(person: str) -> int:
    """Give the number of a person; a name that is too long for one is nobody's."""
    if person not in PEOPLE:
        raise UsageError("nobody is called so")
    return PEOPLE.index(person)


class Readers:
    """A client for each purpose, with the cache of its connection."""

    def __init__(self) -> None:
        documents = [
            Document("stream", name, {"fields": FIELDS, "subject": "pid", **shape})
            for name, shape in SHAPES.items()
        ]
        self.checks = Checks(documents)
        self.sessions = {ap: Session(f"c-{ap}", f"u-{ap}", 0) for ap in PURPOSES}
        self.numbers = {ap: self.checks.subscribe(it, "#", ap) for ap, it in self.sessions.items()}
        self.caches = {ap: DecisionCache(self.checks.delivery) for ap in PURPOSES}
        self.generation = self.checks.rules.generation
        self.cached = 0

    def deliver(self, ap: str | None, shape: str, person: str | None) -> bool:
        rules = self.checks.rules
        if rules.generation != self.generation:
            self.generation = rules.generation
            for cache in self.caches.values():
                cache.forget()
        topic = f"level/{person}" if shape == "level" else shape
        user = (("who", person),) if shape == "property" and person else ()
        payload = json.dumps({"pid": person}).encode() if shape == "payload" and person else b"{}"
        packet = Publish.of(
            topic,
            payload,
            properties=Properties(subscription_identifiers=(self.numbers[ap],), user=user),
        )
        packet.properties.reserved, packet.properties.kept = (), b""
        key = (topic, repr(user).encode())
        cache = self.caches[ap]
        if key in cache.passing:
            self.cached += 1
            return True
        return cache.decide(self.sessions[ap], packet, key).properties is not None


@settings(max_examples=scaled(150))
@given(steps=STEPS)
def test_what_is_delivered_follows_the_choices_of_the_moment(steps: list[Any]) -> None:
    readers = Readers()
    out: set[tuple[str, str]] = set()
    index: OptOutIndex = NOBODY.change(0, {}, number_of)
    readers.checks.rules.take_opt_outs(index, None)
    known = True
    for step, person, purpose, more in steps:
        if step == "choose":
            pair = (person, purpose)
            if (pair in out) == more:
                continue
            out ^= {pair}
            number = number_of(person)
            change = {purpose: Counter({number: 1 if more else -1})}
            index = index.change(index.epoch + 1, change, index.number_of)
            readers.checks.rules.take_opt_outs(index, frozenset({number}))
        elif step == "key":
            known = more
            index = index.change(index.epoch, {}, number_of if known else None)
            readers.checks.rules.take_opt_outs(index, frozenset())
        else:
            refusing = {
                who
                for who, refused in out
                if purpose is None
                or f"{refused}/".startswith(f"{purpose}/")
                or f"{purpose}/".startswith(f"{refused}/")
            }
            told = person if person is not None or more != "level" else "None"
            expected = not refusing or (known and told in PEOPLE and told not in refusing)
            assert readers.deliver(purpose, more, person) == expected


def test_an_opt_out_of_somebody_else_leaves_what_is_cached() -> None:
    readers = Readers()
    rules = readers.checks.rules
    index = NOBODY.change(1, {"ads": Counter([2])}, number_of)
    rules.take_opt_outs(index, None)
    for _ in range(3):
        assert readers.deliver("ads", "level", "p")
    assert readers.cached == 2
    generation = rules.generation
    index = index.change(2, {"ads": Counter([1])}, number_of)
    rules.take_opt_outs(index, frozenset({1}))
    assert rules.generation == generation
    assert not readers.deliver("ads", "level", "q")
    assert readers.deliver("ads", "level", "p")
    index = index.change(3, {"ads": Counter([0])}, index.number_of)
    rules.take_opt_outs(index, frozenset({0}))
    assert not readers.deliver("ads", "level", "p")
