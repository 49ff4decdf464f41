"""Capabilities in the authorizer against a naive model: who gets which attributes, and what is
published. The decision and its explanation agree."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.definitions import DefinitionSet
from penstock.definitions.authorizer import make_authorizer
from penstock.model.document import Document
from penstock.model.grants import Grant
from penstock.model.kinds import Stream
from penstock.policy.access.requests import AccessRequest, Message
from penstock.policy.authorizer import Authorizer
from penstock.policy.capabilities import CapabilityBook, ForeignType, HeldCapability
from penstock.policy.decision import Reshaped

NOW = 1_800_000_000.0
OWNERS = ("pito", "ccs")
LABELS = ("sighting", "sight", "chase")
ATTRIBUTES = ("camera", "plate", "speed", "place")
STREAM = Stream.model_validate(
    {
        "name": "sightings",
        "from": ["cams/+camera/s"],
        "fields": [{"name": it, "type": "string", "optional": True} for it in ATTRIBUTES],
    }
)
VALUES = ("a", "b")

fixed = st.dictionaries(st.sampled_from(ATTRIBUTES), st.sampled_from(VALUES), max_size=2)
contents = st.dictionaries(
    st.sampled_from((*ATTRIBUTES[1:], "extra")), st.sampled_from(VALUES), max_size=4
)


@st.composite
def grants(draw: st.DrawFn) -> Grant:
    values = draw(fixed)
    named = draw(st.none() | st.sets(st.sampled_from(ATTRIBUTES), min_size=1))
    return Grant(
        "type",
        draw(st.sampled_from(("sighting", "sight*", "chase", "*"))),
        frozenset(draw(st.sets(st.sampled_from(("publish", "subscribe")), min_size=1))),
        None if named is None else frozenset(named | values.keys()),
        tuple(sorted(values.items())),
    )


@st.composite
def held(draw: st.DrawFn) -> HeldCapability:
    return HeldCapability(
        draw(st.sampled_from(("one", "two", "three"))),
        draw(st.sampled_from(("smith", "jones"))),
        draw(st.sampled_from(OWNERS)),
        tuple(draw(st.lists(grants(), min_size=1, max_size=2))),
        NOW + draw(st.sampled_from((-60, 60))),
        NOW + draw(st.sampled_from((0, 120))),
        draw(st.sampled_from((None, None, "revoked"))),
    )


def usable(
    capabilities: list[HeldCapability], user: str | None, owner: str, label: str, action: str
) -> list[Grant]:
    return [
        grant
        for it in capabilities
        if it.user == user and it.owner == owner and it.refused is None
        if it.valid_from <= NOW < it.valid_until
        for grant in it.grants
        if action in grant.actions
        and (label.startswith(grant.name[:-1]) if grant.name[-1] == "*" else label == grant.name)
    ]


def delivered(found: list[Grant], event: dict[str, str]) -> set[str] | None:
    """The attributes that somebody may see of an event; None: nothing of it."""
    matching = [it for it in found if all(event.get(name) == value for name, value in it.values)]
    if not matching:
        return None
    seen = {
        name for name in ATTRIBUTES for it in matching
        if it.attributes is None or name in it.attributes
    }  # fmt: skip
    return seen if "camera" in seen else None


def publishes(found: list[Grant], event: dict[str, str]) -> list[dict[str, Any]]:
    """What may be published in the place of an event; nothing, where it is denied."""
    if "extra" in event:
        return []
    made: list[dict[str, Any]] = []
    for it in found:
        if it.attributes is not None and not event.keys() <= it.attributes:
            continue
        wanted = dict(it.values)
        if wanted.get("camera", event["camera"]) != event["camera"]:
            continue
        made.append({**event, **wanted})
    return made


def open_authorizer(book: CapabilityBook) -> Authorizer:
    plain = make_authorizer(DefinitionSet.empty())
    return Authorizer(
        plain.purposes,
        plain.declared,
        plain.access,
        plain.claims,
        plain.broker_topics,
        lambda _: False,
        capabilities=book,
    )


@given(
    st.lists(held(), max_size=3),
    st.sampled_from(OWNERS),
    st.sampled_from(LABELS),
    st.sampled_from(("smith", "jones", None)),
    contents,
)
def test_what_is_delivered_and_published_is_what_the_model_says(
    capabilities: list[HeldCapability],
    owner: str,
    label: str,
    user: str | None,
    content: dict[str, Any],
) -> None:
    book = CapabilityBook([(STREAM, ForeignType(owner, label))], capabilities)
    authorizer = open_authorizer(book)
    event = {**content, "camera": "a"}
    e = {"time": datetime.fromtimestamp(NOW, UTC)}
    topic = "cams/a/s"

    def ask(action: Any) -> tuple[bool, dict[str, Any] | None]:
        message = Message(topic, json.dumps(content).encode(), rest={"size": 9})
        request = AccessRequest(action, topic, user, "c", message=message, environment=e)
        decision = authorizer.authorize(request)
        told = authorizer.explain(request)
        assert told.allowed is decision.allowed
        assert decision.allowed or told.rule == decision.rule
        if not decision.allowed or decision.reshaping is None:
            return decision.allowed, content
        made = decision.reshaping.apply(message, lambda: ({}, {}, {}, {}))
        assert isinstance(made, Reshaped)
        assert made.payload is not None
        return True, json.loads(made.payload)

    seen = delivered(usable(capabilities, user, owner, label, "subscribe"), event)
    allowed, got = ask("read")
    assert allowed is (seen is not None)
    if seen is not None:
        assert got == {name: it for name, it in content.items() if name in seen}

    made = publishes(usable(capabilities, user, owner, label, "publish"), event)
    allowed, got = ask("write")
    assert allowed is bool(made)
    if made:
        assert {**(got or {}), "camera": "a"} in made


@given(st.lists(held(), max_size=3), contents)
def test_other_topics_are_none_of_their_business(
    capabilities: list[HeldCapability], content: dict[str, Any]
) -> None:
    book = CapabilityBook([(STREAM, ForeignType("pito", "sighting"))], capabilities)
    authorizer = open_authorizer(book)
    message = Message("cams/a/other", json.dumps(content).encode())
    for action in ("read", "write"):
        request = AccessRequest(action, "cams/a/other", "eve", message=message)
        decision = authorizer.authorize(request)
        assert decision.allowed
        assert decision.reshaping is None


def test_without_types_of_others_there_is_no_such_part() -> None:
    document = Document("stream", "s", {"from": ["a/b"], "fields": [{"name": "x", "type": "int"}]})
    plain = make_authorizer(DefinitionSet.build([document]))
    assert not plain.capabilities.in_use
    assert all(
        "Capability" not in type(part).__name__ for parts in plain._parts.values() for part in parts
    )
