"""Roles and users in a set: references, targets of permissions, separation of duties."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.definitions import DefinitionSet
from penstock.errors import InvalidError
from penstock.model.document import Document, Key


def role(name: str, **body: Any) -> Document:
    return Document("role", name, body)


def user(name: str, *roles: str) -> Document:
    return Document("user", name, {"roles": list(roles)})


def problems(*documents: Document) -> list[str]:
    with pytest.raises(InvalidError) as caught:
        DefinitionSet.build(documents)
    return [str(problem) for problem in caught.value.problems]


def test_a_permission_is_about_one_thing_that_exists() -> None:
    assert "one thing" in problems(role("a", permissions=[{}]))[0]
    assert "one thing" in problems(role("a", permissions=[{"topic": "t", "prefix": "p"}]))[0]
    assert "there is no view 'v'" in problems(role("a", permissions=[{"view": "v"}]))[0]
    assert "there is no stream 's'" in problems(role("a", permissions=[{"stream": "s"}]))[0]
    assert "'*'" in problems(role("a", permissions=[{"topic": "*"}]))[0]
    DefinitionSet.build(
        [role("a", permissions=[{"topic": "t"}, {"prefix": "p", "allow": "write"}])]
    )


def test_roles_of_users_exist_and_stay() -> None:
    assert "there is no role 'a'" in problems(user("u", "a"))[0]
    held = DefinitionSet.build([role("a"), user("u", "a")])
    with pytest.raises(InvalidError, match="still uses role/a"):
        held.change(delete=[Key("role", "a")])


def test_exclusion_holds_through_inclusion_and_in_both_directions() -> None:
    roles = [role("a", excludes=["b"]), role("b"), role("c", includes=["b"])]
    assert "by a, c" in problems(*roles, user("u", "a", "c"))[0]
    assert "nobody could have it" in problems(*roles, role("d", includes=["a", "c"]))[0]
    assert "cannot exclude itself" in problems(role("a", excludes=["a"]))[0]
    DefinitionSet.build([*roles, user("u", "a"), user("v", "c")])


def test_a_later_exclusion_is_refused_while_someone_has_both() -> None:
    held = DefinitionSet.build([role("a"), role("b"), user("u", "a", "b")])
    with pytest.raises(InvalidError, match="exclude each other"):
        held.change([role("a", excludes=["b"])])
    held.change([role("a", excludes=["b"]), user("u", "a")])
