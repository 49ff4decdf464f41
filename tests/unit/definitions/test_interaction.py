"""Restrictions and transformations: what `apply` refuses, and what leaves of a message."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.authorizer import make_authorizer
from penstock.errors import InvalidError
from penstock.model.document import Document
from penstock.policy.access.requests import Message, make_request
from penstock.policy.decision import Decision, Reshaped

BASE = read_text(
    """
kind: vocabulary
name: v
object: {pid: string}
payload: {n: int, w: string, at: timestamp}
---
{kind: object, name: o, topics: "w/+pid/#"}
---
kind: stream
name: s
fields:
- {name: n, type: int}
- {name: w, type: string}
- {name: day, type: date, optional: true}
- {name: at, type: timestamp, optional: true}
- {name: x, type: double, optional: true}
---
{kind: stream, name: other, fields: [{name: w, type: string}, {name: c, type: string}]}
---
{kind: table, name: t, columns: {c: string}, rows: {a: {c: one}}}
---
{kind: role, name: r, parameters: [p]}
"""
).documents
BUCKET = {"anonymizer": "bucketizing", "keys": ["n"], "bucket_size": 10}
TOKENS = {"anonymizer": "tokenization", "keys": ["w"], "method": "vault"}
NOISE = {"anonymizer": "noise", "keys": ["x"], "distribution": "laplace", "noise": 1.0}


def change(name: str = "t", **body: Any) -> Document:
    return Document("transformation", name, {"filter": "w/#", "stream": "s", **body})


def limit(name: str = "r", **body: Any) -> Document:
    return Document("restriction", name, {"filter": "w/#", **body})


def decide(
    *documents: Document, topic: str = "w/p/a", user: str = "ann", **payload: Any
) -> Decision:
    found = DefinitionSet.build([*BASE, *documents])
    authorizer = make_authorizer(found, read_key=lambda: b"k" * 32)
    return authorizer.authorize(make_request(topic, user=user, payload=payload))


def reshape(*documents: Document, topic: str = "w/p/a", write: bool = False, **payload: Any) -> Any:
    """Return what leaves: its payload, `str` why nothing does, or with `write` all of it."""
    found = DefinitionSet.build([*BASE, *documents])
    authorizer = make_authorizer(found, read_key=lambda: b"k" * 32)
    action: Any = "write" if write else "read"
    message = Message(topic, json.dumps(payload).encode())
    request = make_request(topic, action=action, user="ann", payload=payload)
    decision = authorizer.authorize(request)
    if decision.reshaping is None:
        return decision
    about = authorizer.access.about(message)
    made = decision.reshaping.apply(message, lambda: ({"uid": "ann"}, about, {}, message.t))
    if write or not isinstance(made, Reshaped):
        return made
    return json.loads(made.payload or b"null")


PROBLEMS = [
    ([change()], "it changes nothing"),
    ([change(remove=["n"], set={"n": "1"})], "'n' is removed, and named again"),
    ([change(remove=["nope"])], "there is no field 'nope'"),
    ([change(anonymizers=[{"anonymizer": "bucketing", "keys": ["n"]}])], "no row-wise mask"),
    ([change(anonymizers=[{**BUCKET, "keys": ["q"]}])], "there is no field 'q'"),
    ([change(remove=["n"], anonymizers=[BUCKET])], "there is no field 'n'"),
    (
        [change(anonymizers=[{**TOKENS, "vault": "people"}])],
        "keeps originals in a vault",
    ),
    ([change(set={"n": '"text"'})], "'n' is int, and this gives string"),
    ([change(set={"q": "1"})], "there is no field 'q'"),
    ([change(remove=["x"], when="d.row.c == 1")], "d has no field"),
    (
        [change(remove=["x"], lookup={"row": {"table": "no", "key": "o.pid"}})],
        "no",
    ),
    ([change(into={"topic": "a", "stream": "other"})], "nothing gives 'c'"),
    ([change(into={"topic": "a/{q}", "stream": "s"})], "'q' cannot be a level"),
    ([change(into={"topic": "a/{x}", "stream": "s"})], "'x' cannot be a level"),
    ([change(into={"topic": "a/#", "stream": "s"})], "name one topic"),
    ([change(into={"topic": "$SYS/a", "stream": "s"})], "name one topic"),
    ([change(into={"topic": "a", "stream": "s", "keep": False})], "about publication"),
    ([change(remove=["x"], filter="$share/a/b")], "means a share"),
    (
        [change(anonymizers=[BUCKET], into={"topic": "a", "stream": "s"})],
        "'n' would be string, and is int there",
    ),
    ([change("a", remove=["x"]), change("b", remove=["x"])], "both change 'x' with the order 0"),
    (
        [change("a", anonymizers=[BUCKET]), change("b", anonymizers=[BUCKET], order=1)],
        "behind the transformation 'a'",
    ),
    (
        [change("a", remove=["n"]), change("b", anonymizers=[BUCKET], order=1)],
        "before this one, and removes 'n'",
    ),
    (
        [change("a", into={"topic": "w/a", "stream": "s"}), change("b", remove=["x"], order=1)],
        "into another type before this one",
    ),
    (
        [
            change("a", into={"topic": "w/a", "stream": "s"}),
            change("b", into={"topic": "w/b", "stream": "s"}),
        ],
        "into another type, and both have the order 0",
    ),
    (
        [change("a", remove=["x"]), change("b", stream="other", remove=["w"], filter="w/p/a")],
        "as one of the stream 's'",
    ),
    ([limit()], "give permit or deny"),
    ([limit(permit="true", deny="true")], "give permit or deny"),
    ([limit(permit="t.payload.n")], "bool is asked for"),
    ([limit(permit="o.pid == 's'", at="subscription")], "'o.pid' is of a message"),
    ([limit(permit="true", at="subscription", exempt=["role:r(o.pid)"])], "looks at a message"),
    ([limit(permit="true", subject="role:r(o.pid)")], "is an attribute of a message"),
    ([limit(permit="true", exempt=["role:r(_, _)"])], "has 1 parameters, not 2"),
    (
        [Document("table", "u", {"columns": {"c": "string"}, "rows": {"a": {"c": 1}}})],
        "is declared string, but holds another value",
    ),
    (
        [Document("table", "u", {"columns": {"c": "string"}, "rows": {"a": {"d": "1"}}})],
        "there is no column 'd'",
    ),
    ([Document("table", "u", {"columns": {"c": "strin"}})], "strin"),
]


@pytest.mark.parametrize(("documents", "told"), PROBLEMS, ids=[told for _, told in PROBLEMS])
def test_apply_refuses_and_says_why(documents: list[Document], told: str) -> None:
    with pytest.raises(InvalidError) as caught:
        DefinitionSet.build([*BASE, *documents])
    assert told in str(caught.value)


def test_transformations_that_do_not_meet_need_no_order() -> None:
    DefinitionSet.build(
        [
            *BASE,
            change("a", remove=["x"]),
            change("b", remove=["x"], filter="v/#"),
            change("c", remove=["x"], at="publication"),
            change("d", anonymizers=[BUCKET]),
            change("e", remove=["x"], subject="user:ann", filter="u/#"),
            change("f", remove=["x"], subject="user:bob", filter="u/#"),
        ]
    )


def test_what_does_not_stand_in_the_stream_does_not_leave() -> None:
    made = reshape(change(anonymizers=[BUCKET]), n=33, w="a", more="secret", x=None)
    assert made == {"n": "[30 - 40]", "w": "a"}


def test_dates_and_moments_are_written_as_text() -> None:
    moment = "2026-05-01T12:00:00+02:00"
    made = reshape(change(remove=["x"]), n=1, w="a", day="2026-05-01", at=moment)
    assert made == {"n": 1, "w": "a", "day": "2026-05-01", "at": "2026-05-01T10:00:00Z"}
    assert isinstance(reshape(change(remove=["x"]), n=1, w="a", day="yesterday"), str)


def test_transformations_are_done_in_their_order() -> None:
    first = change("z", set={"w": '"b"'}, order=-1)
    second = change("a", anonymizers=[{"anonymizer": "suppression", "keys": ["w"]}])
    assert reshape(first, second, n=1, w="secret") == {"n": 1, "w": "*"}


ROW = {"row": {"table": "t", "key": "t.payload.w"}}


def test_what_cannot_be_carried_out_denies() -> None:
    assert reshape(change(set={"w": "d.row.c"}, lookup=ROW), n=1, w="a") == {"n": 1, "w": "one"}
    assert isinstance(reshape(change(set={"w": "d.row.c"}, lookup=ROW), n=1, w="b"), str)
    assert isinstance(reshape(change(anonymizers=[BUCKET]), n="text", w="a"), str)
    assert isinstance(reshape(change(anonymizers=[BUCKET]), w="a"), str)
    # A condition that nobody can tell, and a key that nobody has.
    assert not decide(change(remove=["x"], when="t.payload.n > 1"), w="a")
    assert not decide(change(remove=["x"], when='d.row.c == "one"', lookup=ROW), n=1, w="b")
    found = DefinitionSet.build([*BASE, change(anonymizers=[NOISE])])
    assert not make_authorizer(found).authorize(make_request("w/p/a", user="ann", payload={"n": 1}))


def test_one_message_has_one_draw() -> None:
    rule = change(anonymizers=[NOISE])
    assert len({reshape(rule, n=1, w="a", x=5.0)["x"] for _ in range(20)}) == 1
    others = {reshape(rule, n=at, w="a", x=5.0)["x"] for at in range(20)}
    assert len(others) > 10
    assert 5.0 not in others


@pytest.mark.parametrize("value", ["", "a/b", "#", "+", "a\0", "$SYS", "!PBAC", "{w}", "x" * 300])
def test_no_value_becomes_syntax_of_a_topic(value: str) -> None:
    rule = change(at="publication", into={"topic": "a/{w}", "stream": "s"})
    assert isinstance(reshape(rule, write=True, n=1, w=value), str)
    made = reshape(rule, write=True, n=1, w="fine")
    assert [topic for topic, _ in made.copies] == ["a/fine"]
    assert json.loads(made.payload) == {"n": 1, "w": "fine"}


def test_a_conversion_may_take_the_place_of_a_message() -> None:
    rule = change(at="publication", into={"topic": "a", "stream": "s", "keep": False})
    made = reshape(rule, write=True, n=1, w="b")
    assert made.payload is None
    assert [topic for topic, _ in made.copies] == ["a"]


def test_a_restriction_says_nothing_of_others_and_denies_what_it_cannot_tell() -> None:
    rule = limit(permit="t.payload.n > 1", exempt=["user:bob"])
    assert decide(rule, n=2)
    assert not decide(rule, n=1)
    assert not decide(rule, w="a")
    assert decide(rule, n=1, user="bob")
    assert decide(rule, n=1, topic="v/p")
    deny = limit(deny="t.payload.n > 1")
    assert decide(deny, n=1)
    assert not decide(deny, n=2)
    assert not decide(deny, w="a")


def test_a_view_takes_what_a_transformation_does_and_nothing_else() -> None:
    view = Document("view", "v", {"stream": "s", "transformation": "t"})
    with pytest.raises(InvalidError, match="it adds to messages or converts them"):
        DefinitionSet.build([*BASE, change(set={"w": '"a"'}), view])
    other = Document("view", "v", {"stream": "other", "transformation": "t"})
    with pytest.raises(InvalidError, match="and the view of 'other'"):
        DefinitionSet.build([*BASE, change(remove=["x"]), other])
    everything = Document("view", "v", {"stream": "other", "remove": ["w", "c"]})
    with pytest.raises(InvalidError, match="the view would have no fields"):
        DefinitionSet.build([*BASE, everything])


def test_the_how_to_holds(request: pytest.FixtureRequest) -> None:
    page = request.config.rootpath / "docs" / "how-to" / "interaction.md"
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    found = DefinitionSet.build(read_text("---\n".join(blocks), "page").documents)
    authorizer = make_authorizer(found)
    payload = {"patient": "p", "drug": "morphine"}
    message = Message("home/p/prescribe", json.dumps(payload).encode())
    decision = authorizer.authorize(
        make_request("home/p/prescribe", action="write", user="ann", payload=payload)
    )
    assert decision.reshaping is not None
    made = decision.reshaping.apply(message, lambda: ({}, {}, {}, message.t))
    assert isinstance(made, Reshaped)
    assert made.copies == (("audit/A", b'{"drug":"morphine","class":"A"}'),)
    assert not authorizer.authorize(make_request("audit/A", user="ann"))
    assert authorizer.authorize(make_request("audit/A", user="auditor"))
