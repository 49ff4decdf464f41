"""A changed set is judged as a fresh one would be, and as a naive check would."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.definitions import DefinitionSet
from penstock.errors import InvalidError
from penstock.model.document import Document, Key
from tests.support.scale import scaled

PURPOSES = ["a", "a/b", "a/b/c", "d"]
GROUPS = ["g", "h", "i"]


def _document(kind: str, name: str, **body: Any) -> Document:
    return Document(kind, name, body)


documents = st.one_of(
    st.sampled_from(PURPOSES).map(lambda name: _document("purpose", name)),
    st.builds(
        lambda name, allow: _document("reservation", name, allow=allow),
        st.sampled_from(["x", "x/#", "+/y"]),
        st.lists(st.sampled_from(PURPOSES), max_size=2),
    ),
    st.builds(
        lambda name, includes: _document("group", name, includes=includes),
        st.sampled_from(GROUPS),
        st.lists(st.sampled_from(GROUPS), max_size=2),
    ),
    st.builds(
        lambda name, kind: _document("vocabulary", name, subject={"age": kind}),
        st.sampled_from(["v", "w"]),
        st.sampled_from(["int", "string"]),
    ),
    st.builds(
        lambda name, subject, when: _document(
            "policy", name, filter="x", allow="read", subject=subject, when=when
        ),
        st.sampled_from(["p", "q"]),
        st.sampled_from(["anyone", "group:g", "group:h"]),
        st.sampled_from(["true", "s.age > 3", 's.age == "x"', "s.height > 1"]),
    ),
    st.just(_document("enforcement", "default", policies="required")),
)
changes = st.lists(
    st.tuples(st.lists(documents, max_size=3), st.lists(documents, max_size=2)), max_size=12
)


def _expected_valid(held: dict[Key, Document]) -> bool:
    """Judge a set by looking at everything, in the plainest way."""
    names = {kind: {key.name for key in held if key.kind == kind} for kind in _kinds(held)}
    purposes, groups = names.get("purpose", set()), names.get("group", set())
    types = {
        document.body["subject"]["age"]
        for key, document in held.items()
        if key.kind == "vocabulary"
    }
    if len(types) > 1:
        return False
    for key, document in held.items():
        match key.kind:
            case "purpose":
                fits = key.name.rpartition("/")[0] in purposes | {""}
            case "reservation":
                fits = not purposes or set(document.body["allow"]) <= purposes
            case "group":
                known = set(document.body["includes"]) <= groups
                fits = known and not _reaches(held, key.name, key.name)
            case "policy":
                fits = _policy_fits(document, groups, types, names)
            case _:
                fits = True
        if not fits:
            return False
    return True


def _policy_fits(
    document: Document, groups: set[str], types: set[str], names: dict[str, set[str]]
) -> bool:
    subject = document.body["subject"]
    fits = {
        "true": True,
        "s.age > 3": types == {"int"},
        's.age == "x"': types == {"string"},
        "s.height > 1": False,
    }
    return (
        "enforcement" in names
        and (subject == "anyone" or subject.removeprefix("group:") in groups)
        and fits[document.body["when"]]
    )


def _kinds(held: dict[Key, Document]) -> set[str]:
    return {key.kind for key in held}


def _reaches(held: dict[Key, Document], start: str, goal: str, depth: int = 6) -> bool:
    document = held.get(Key("group", start))
    if document is None or depth == 0:
        return False
    return any(
        step == goal or _reaches(held, step, goal, depth - 1) for step in document.body["includes"]
    )


def _problems(build: Any) -> tuple[DefinitionSet | None, set[str]]:
    try:
        return build(), set()
    except InvalidError as error:
        # Where a problem is must agree. Of several cycles that touch each other, which ones
        # are named is chance; and what is missing reads otherwise where it was deleted.
        return None, {
            "a cycle" if "refers to itself" in problem.message else problem.place
            for problem in error.problems
        }


@settings(max_examples=scaled(300))
@given(changes)
def test_a_changed_set_equals_a_fresh_one(
    steps: list[tuple[list[Document], list[Document]]],
) -> None:
    current = DefinitionSet.empty()
    held: dict[Key, Document] = {}
    for put, delete in steps:
        put_by_key = {document.key: document for document in put}
        gone = {document.key for document in delete} - put_by_key.keys()
        wanted = {key: item for key, item in held.items() if key not in gone} | put_by_key
        changed, found = _problems(
            lambda: current.change(put_by_key.values(), gone)  # noqa: B023 - called at once
        )
        fresh, found_fresh = _problems(
            lambda: DefinitionSet.build(wanted.values())  # noqa: B023 - called at once
        )
        assert (changed is not None) == _expected_valid(wanted)
        assert found == found_fresh
        if changed is not None and fresh is not None:
            assert dict(changed.definitions) == dict(fresh.definitions)
            assert changed.scope == fresh.scope
            current, held = changed, wanted
