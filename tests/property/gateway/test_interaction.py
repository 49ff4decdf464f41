"""What each subscriber gets, for random rules, roles, situations and messages, by a plain model.

The model reads the definitions as documents and knows nothing of plans, caches or masks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.definitions import DefinitionSet, read_text
from penstock.errors import InvalidError
from penstock.gateway.authorization.delivery_check import DecisionCache
from penstock.gateway.publications import PublishResult
from penstock.gateway.session import Session
from penstock.model.document import Document
from penstock.model.topics import matches
from penstock.mqtt import Publish
from tests.support.gateway.authorization import Checks, delivered
from tests.support.scale import scaled

BASE = """
kind: vocabulary
name: ward
subject: {uid: string, activeRoles: list(string)}
object: {pid: string}
payload: {n: int, w: string}
---
{kind: object, name: places, topics: "w/+pid/#"}
---
kind: stream
name: obs
fields:
- {name: n, type: int}
- {name: w, type: string}
- {name: tag, type: string, optional: true}
- {name: x, type: string, optional: true}
---
kind: stream
name: note
fields: [{name: w, type: string}, {name: tag, type: string, optional: true}]
---
{kind: role, name: nurse}
---
{kind: role, name: clerk}
---
{kind: user, name: ann, roles: [nurse]}
---
{kind: user, name: bob, roles: [nurse, clerk]}
---
{kind: table, name: words, columns: {tag: string}, rows: {a: {tag: one}, b: {tag: two}, c: {}}}
---
{kind: event, name: Up, attributes: {pid: string}, packet: {filters: [up], set: {pid: t.topic}}}
---
kind: plan
name: alert
situations: [{id: Low, level: 1}, {id: High, level: 2}]
evolutions: [{event: Up, to: Low}]
---
{kind: scenario, name: alert, plan: alert, attribute: pid}
"""
DOCUMENTS = read_text(BASE).documents
ROLES = {"ann": {"nurse"}, "bob": {"nurse", "clerk"}, "cyd": set(), None: set()}
TABLE = {"a": "one", "b": "two"}

CONDITIONS: dict[str, Any] = {
    "true": lambda _user, _pid, _body: True,
    "t.payload.n > 20": lambda _user, _pid, body: whole(body) and body["n"] > 20,
    's.uid == "ann"': lambda user, _pid, _body: None if user is None else user == "ann",
    'o.pid == "p"': lambda _user, pid, _body: None if pid is None else pid == "p",
    'd.row.tag == "one"': lambda _user, _pid, body: row(body) and row(body) == "one",
    "has(d.row.tag)": lambda _user, _pid, body: row(body) is not None,
    '"clerk" in s.activeRoles': lambda user, _pid, _body: (
        None if user is None else "clerk" in ROLES[user]
    ),
}
"""What each condition says of a user, a patient and a payload; None: it cannot be told."""


def whole(body: Any) -> bool | None:
    return True if isinstance(body, dict) and type(body.get("n")) is int else None


def row(body: Any) -> str | None:
    word = body.get("w") if isinstance(body, dict) else None
    return TABLE.get(word) if isinstance(word, str) else None


subjects = st.sampled_from(["anyone", "role:nurse", "role:clerk", "user:ann"])
filters = st.sampled_from(["w/#", "w/+/a", "w/p/#", "#"])
occasions = st.none() | st.builds(
    lambda level, about: {"plan": "alert", "minimum_level": level, **about},
    st.sampled_from([1, 2]),
    st.sampled_from([{"about": "o.pid"}, {"any_object": True}]),
)
lookup = {"row": {"table": "words", "key": "t.payload.w"}}
common = {
    "subject": subjects,
    "filter": filters,
    "during": occasions,
    "except_during": occasions,
    "exempt": st.sampled_from([[], ["user:ann"], ["role:clerk"]]),
    "lookup": st.just(lookup),
}
restrictions = st.fixed_dictionaries(
    {
        **common,
        "at": st.sampled_from(["delivery", "delivery", "subscription"]),
        "effect": st.sampled_from(["permit", "deny"]),
        "when": st.sampled_from(sorted(CONDITIONS)),
    }
)
transformations = st.fixed_dictionaries(
    {
        **common,
        "order": st.integers(0, 3),
        "when": st.sampled_from(sorted(CONDITIONS)),
        "bucket": st.booleans(),
        "hide": st.booleans(),
        "add": st.booleans(),
        "remove": st.sampled_from([[], ["x"], ["tag"]]),
        "into": st.sampled_from([None, None, None, "w/n/note", "elsewhere"]),
    }
)
bodies = st.one_of(
    st.fixed_dictionaries(
        {"n": st.integers(-5, 45), "w": st.sampled_from(["a", "b", "c", "d"])},
        optional={"x": st.just("secret"), "more": st.just(1), "tag": st.just("raw")},
    ),
    st.fixed_dictionaries({"w": st.sampled_from(["a", "b"])}),
    st.just({"n": "7", "w": "a"}),
    st.just("no object"),
)
messages = st.lists(
    st.tuples(
        st.sampled_from(["w/p/a", "w/q/a", "w/p/b", "other"]),
        bodies,
        st.sampled_from(["ann", "bob", "cyd", None]),
    ),
    min_size=4,
    max_size=12,
)
situations = st.dictionaries(st.sampled_from(["p", "q"]), st.sampled_from(["Low", "High"]))


def restriction(at: int, drawn: dict[str, Any]) -> Document:
    body = {k: v for k, v in drawn.items() if k not in {"effect", "when"} and v}
    body[drawn["effect"]] = drawn["when"]
    if body["at"] == "subscription":
        body.pop("lookup")
        for name in ("during", "except_during"):
            if "about" in body.get(name, {}):
                body[name] = {"plan": "alert", "minimum_level": 1, "any_object": True}
    return Document("restriction", f"r{at}", body)


def transformation(at: int, drawn: dict[str, Any]) -> Document:
    body: dict[str, Any] = {
        k: v
        for k, v in drawn.items()
        if k not in {"bucket", "hide", "add", "into"} and v not in (None, [])
    }
    masks = []
    if drawn["bucket"]:
        masks.append({"anonymizer": "bucketizing", "keys": ["n"], "bucket_size": 10})
    if drawn["hide"]:
        masks.append({"anonymizer": "suppression", "keys": ["w"]})
    if masks:
        body["anonymizers"] = masks
    if drawn["add"]:
        body["set"] = {"tag": "d.row.tag"}
        body.pop("remove", None)
    if drawn["into"]:
        body["into"] = {"topic": drawn["into"], "stream": "note"}
    body["stream"] = "obs"
    return Document("transformation", f"t{at}", body)


def is_valid(documents: list[Document]) -> bool:
    try:
        DefinitionSet.build(documents)
    except InvalidError:
        return False
    return True


def meets(occasion: dict[str, Any], pid: str | None, held: dict[str, str]) -> bool:
    level = {"Low": 1, "High": 2}
    whom = [pid] if "about" in occasion else list(held)
    return any(level[held[it]] >= occasion["minimum_level"] for it in whom if it in held)


def is_about(
    body: Mapping[str, Any], user: str | None, topic: str, held: dict[str, str]
) -> bool | None:
    """Tell whether a rule is about a message for somebody; None: it cannot be told."""
    if not matches(body["filter"], topic):
        return False
    meant = {"anyone", f"user:{user}", *(f"role:{it}" for it in ROLES[user])}
    if body.get("subject", "anyone") not in meant or meant & set(body.get("exempt", ())):
        return False
    pid = pid_of(topic)
    if "except_during" in body and meets(body["except_during"], pid, held):
        return False
    during = body.get("during")
    if during is None:
        return True
    return None if "about" in during and pid is None else meets(during, pid, held)


def pid_of(topic: str) -> str | None:
    parts = topic.split("/")
    return parts[1] if parts[0] == "w" else None


def model(
    rules: list[Document], topic: str, content: Any, user: str | None, held: dict[str, str]
) -> tuple[str, dict[str, Any]] | str | None:
    """Return topic and payload that somebody gets; None: nothing; "as it is": unchanged."""
    applied = []
    pid = pid_of(topic)
    ordered = sorted(rules, key=lambda it: (it.body.get("order", 0), it.name))
    for rule in sorted(ordered, key=lambda it: it.kind):  # restrictions come first
        body = rule.body
        about = is_about(body, user, topic, held)
        if about is False:
            continue
        if about is None:
            return None
        text = body.get("when") or body.get("permit") or body["deny"]
        if body.get("at") == "subscription":
            said = CONDITIONS[text](user, None, None)
        else:
            said = CONDITIONS[text](user, pid, content)
        if rule.kind == "restriction":
            if said is not ("permit" in body):
                return None
        elif said is None:
            return None
        elif said:
            applied.append(body)
            if "into" in body:
                break
    return carry_out(applied, topic, content) if applied else "as it is"


def carry_out(
    applied: list[Mapping[str, Any]], topic: str, content: Any
) -> tuple[str, dict[str, Any]] | None:
    if not isinstance(content, dict) or not whole(content) or "w" not in content:
        return None
    made = {k: content[k] for k in ("n", "w", "tag", "x") if k in content}
    for body in applied:
        if "set" in body:
            if row(content) is None:
                return None
            made["tag"] = row(content)
        for mask in body.get("anonymizers", ()):
            if mask["anonymizer"] == "suppression":
                made["w"] = "*" * len(made["w"])
            else:
                low = made["n"] // 10 * 10
                made["n"] = f"[{low} - {low + 10}]"
        for name in body.get("remove", ()):
            made.pop(name, None)
        if "into" in body:
            topic = body["into"]["topic"]
            made = {k: made[k] for k in ("w", "tag") if k in made}
    return topic, made


@settings(max_examples=scaled(60), deadline=None)
@given(
    st.lists(restrictions, max_size=2),
    st.lists(transformations, max_size=3),
    messages,
    situations,
    st.booleans(),
)
def test_subscribers_get_what_a_plain_model_says(
    limits: list[dict[str, Any]],
    changes: list[dict[str, Any]],
    sent: list[tuple[str, Any, str | None]],
    held: dict[str, str],
    known: bool,  # noqa: FBT001
) -> None:
    documents = list(DOCUMENTS)
    rules: list[Document] = []
    made = [restriction(at, it) for at, it in enumerate(limits)]
    made += [transformation(at, it) for at, it in enumerate(changes)]
    for rule in made:
        # What does not go together is refused when it is applied: see `test_interaction_checks`.
        if is_valid([*documents, *rules, rule]):
            rules.append(rule)
    checks = Checks([*documents, *rules])
    board = checks.detection.board
    board.fill([("alert", who, which) for who, which in held.items()])
    if not known:
        board.invalidate("nobody knows")
    readers: dict[str | None, tuple[Session, int, DecisionCache]] = {}
    for user in ("ann", "bob", "cyd", None):
        session = Session(f"{user}:1", user or "anonymous", 0)
        checks.rules.open_roles(session)
        number = checks.subscribe(session, "w/#", None)
        other = checks.subscribe(session, "other", None)
        readers[user] = (session, number, DecisionCache(checks.delivery))
        assert number != other
    for topic, content, user in [*sent, *sent]:
        session, number, cache = readers[user]
        numbers = (session.numbers["other"],) if topic == "other" else (number,)
        packet = delivered(topic, *numbers, payload=json.dumps(content).encode())
        decision = cache.decide(session, packet, (topic, packet.properties.raw))
        got: Any = None
        if decision.properties is not None:
            left = decision.sent
            got = "as it is" if left is None else (left.topic, json.loads(left.payload))
        if not known and any("during" in it.body for it in rules):
            # An emergency that nobody knows of: nothing more than in none, and maybe less.
            continue
        expected = model(rules, topic, content, user, held if known else {})
        came_by = "other" if topic == "other" else "w/#"
        if isinstance(expected, tuple) and not matches(came_by, expected[0]):
            expected = None  # it came by no subscription to that topic
        assert got == expected, (topic, content, user, held, [dict(it.body) for it in rules])


publications = st.lists(
    st.tuples(
        st.sampled_from(["w/p/a", "w/q/a", "other"]),
        st.one_of(bodies.map(lambda it: json.dumps(it).encode()), st.just(b"")),
        st.booleans(),
        st.sampled_from(["ann", "bob", None]),
    ),
    min_size=4,
    max_size=12,
)
CONFORMING = """
{kind: stream, name: typed, from: [other], conform: true, fields: [{name: n, type: int}]}
"""


@settings(max_examples=scaled(60), deadline=None)
@given(
    st.lists(transformations, max_size=2),
    publications,
    situations,
    st.booleans(),
)
def test_what_is_remembered_of_a_topic_holds_for_every_message(
    changes: list[dict[str, Any]],
    sent: list[tuple[str, bytes, bool, str | None]],
    held: dict[str, str],
    typed: bool,  # noqa: FBT001
) -> None:
    """A publisher's later messages pass unseen: an empty one must not open the way for them."""
    documents = [*DOCUMENTS, *(read_text(CONFORMING).documents if typed else ())]
    rules: list[Document] = []
    for at, it in enumerate(changes):
        drawn = transformation(at, it)
        rule = replace(drawn, body={**drawn.body, "at": "publication"})
        if is_valid([*documents, *rules, rule]):
            rules.append(rule)
    checks = Checks([*documents, *rules])
    checks.detection.board.fill([("alert", who, which) for who, which in held.items()])
    users = ("ann", "bob", None)
    sessions = {it: Session(f"{it}:1", it or "anonymous", 0) for it in users}
    remembered: set[tuple[str | None, str]] = set()
    for topic, payload, retain, user in [*sent, *sent]:
        packet = Publish.of(topic, payload, retain=retain)
        result = checks.publication.publish(sessions[user], packet)
        assert isinstance(result, PublishResult)
        if (user, topic) in remembered:
            assert result.accepted
            assert result.reshaped is None
        if result.lasting:
            remembered.add((user, topic))
