"""Rules of users against a naive reading of the definitions, and what a change touches."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.definitions import DefinitionSet
from penstock.kafka.acls import Acl, WantedAccess
from penstock.model.document import Document, Key

ROLES, VIEWS, STREAMS, USERS = ("r1", "r2", "r3"), ("v1", "v2"), ("s1", "s2"), ("u1", "u2", "u3")


def subsets(names: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), max_size=2, unique=True)


permissions = st.one_of(
    st.builds(lambda name: {"view": name}, st.sampled_from(VIEWS)),
    st.builds(
        lambda name, allow: {"stream": name, "allow": allow},
        st.sampled_from(STREAMS),
        st.sampled_from(["read", "write"]),
    ),
    st.builds(lambda name: {"topic": name, "allow": "write"}, st.sampled_from(["t1", "s1-v1"])),
    st.builds(lambda name: {"prefix": name}, st.sampled_from(["s", "s1-"])),
)
Bodies = dict[Key, dict[str, Any]]


@st.composite
def sets(draw: st.DrawFn) -> Bodies:
    found: Bodies = {}
    for name in STREAMS:
        topic = draw(st.sampled_from(["int", "long"]))
        found[Key("stream", name)] = {"fields": [{"name": "a", "type": topic}]}
    for name in VIEWS:
        body = {"stream": draw(st.sampled_from(STREAMS)), "roles": draw(subsets(ROLES))}
        found[Key("view", name)] = body
    for index, name in enumerate(ROLES):
        found[Key("role", name)] = {
            "permissions": draw(st.lists(permissions, max_size=2)),
            "includes": draw(subsets(ROLES[:index])) if index else [],
        }
    for name in USERS:
        if draw(st.booleans()):
            found[Key("user", name)] = {"roles": draw(subsets(ROLES))}
    return found


def documents(bodies: Bodies) -> dict[Key, Document]:
    return {key: Document(key.kind, key.name, body) for key, body in bodies.items()}


def topic_of(bodies: Bodies, view: str) -> str:
    return f"{bodies[Key('view', view)]['stream']}-{view}"


def naive_acls(bodies: Bodies, user: str) -> set[Acl]:
    """Walk from the user to everything, again and again, without remembering anything."""

    def has(role: str, held: str) -> bool:
        inner = bodies[Key("role", held)]["includes"]
        return role == held or any(has(role, other) for other in inner)

    found = set()
    roles = bodies.get(Key("user", user), {"roles": []})["roles"]
    mine = [role for role in ROLES if any(has(role, held) for held in roles)]
    for role in mine:
        for item in bodies[Key("role", role)]["permissions"]:
            allow = item.get("allow", "read")
            if "view" in item:
                found.add(Acl("topic", "literal", topic_of(bodies, item["view"]), allow))
            elif "prefix" in item:
                found.add(Acl("topic", "prefixed", item["prefix"], allow))
            else:
                name = item.get("stream") or item["topic"]
                found.add(Acl("topic", "literal", name, allow))
        for view in VIEWS:
            if role in bodies[Key("view", view)]["roles"]:
                found.add(Acl("topic", "literal", topic_of(bodies, view), "read"))
    if any(acl.operation == "read" for acl in found):
        found.add(Acl("group", "prefixed", f"{user}:", "read"))
    if any(acl.operation == "write" for acl in found):
        found.add(Acl("transactional_id", "prefixed", f"{user}:", "write"))
    return found


@given(bodies=sets())
def test_rules_are_those_of_the_reference(bodies: Bodies) -> None:
    access = WantedAccess(DefinitionSet.build(documents(bodies).values()))
    for user in USERS:
        assert access.acls(user) == naive_acls(bodies, user)


@given(before=sets(), after=sets())
def test_a_change_touches_all_whose_rules_differ(before: Bodies, after: Bodies) -> None:
    old, new = documents(before), documents(after)
    access = WantedAccess(DefinitionSet.build(new.values()))
    touched = access.touched(old, new)
    differing = {user for user in USERS if naive_acls(before, user) != naive_acls(after, user)}
    assert differing <= touched


@given(before=sets(), key=st.sampled_from([Key("role", "r1"), Key("user", "u1")]))
def test_one_change_leaves_others_alone(before: Bodies, key: Key) -> None:
    after = {**before, key: {"description": "changed", **before.get(key, {"roles": []})}}
    touched = WantedAccess(DefinitionSet.build(documents(after).values())).touched(
        documents(before), documents(after)
    )
    users = {user for user in USERS if Key("user", user) in before}
    if key.kind == "user":
        assert touched == {"u1"}
    else:
        assert touched <= users
