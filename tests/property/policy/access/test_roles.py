"""Roles against a naive reference: closures by brute force, exclusion by looking at all pairs."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.definitions import DefinitionSet
from penstock.errors import InvalidError, Problem
from penstock.model.document import Document
from penstock.model.kinds import Role
from penstock.policy.access.principals import RoleGraph

NAMES = "abcdef"
names = st.lists(st.sampled_from(NAMES), max_size=3, unique=True)
# Inclusion by position leads nowhere back; `any_roles` may lead back.
ordered_roles = st.tuples(
    *(
        st.fixed_dictionaries(
            {
                "includes": st.lists(st.sampled_from(NAMES[:index]), max_size=3, unique=True)
                if index
                else st.just([]),
                "excludes": st.lists(
                    st.sampled_from(NAMES.replace(name, "")), max_size=1, unique=True
                ),
            }
        )
        for index, name in enumerate(NAMES)
    )
)
any_roles = st.tuples(
    *(st.fixed_dictionaries({"includes": names, "excludes": st.just([])}) for _ in NAMES)
)


def naive_closure(bodies: dict[str, dict[str, list[str]]], held: set[str]) -> set[str]:
    while True:
        more = held | {other for name in held for other in bodies[name]["includes"]}
        if more == held:
            return held
        held = more


def naive_conflict(bodies: dict[str, dict[str, list[str]]], held: set[str]) -> bool:
    return any(
        other in bodies[one]["excludes"] or one in bodies[other]["excludes"]
        for one, other in itertools.combinations(naive_closure(bodies, held), 2)
    )


def problems_of(documents: list[Document]) -> list[Problem]:
    try:
        DefinitionSet.build(documents)
    except InvalidError as error:
        return error.problems
    return []


@given(roles=any_roles, held=names)
def test_closures_are_those_of_the_reference(
    roles: tuple[dict[str, list[str]], ...], held: list[str]
) -> None:
    bodies = dict(zip(NAMES, roles, strict=True))
    graph = RoleGraph(
        {name: Role.model_validate({"name": name, **body}) for name, body in bodies.items()}
    )
    assert graph.closure(held) == naive_closure(bodies, set(held))


@given(roles=ordered_roles, users=st.lists(names, max_size=4))
def test_a_set_is_valid_exactly_if_duties_are_separated(
    roles: tuple[dict[str, list[str]], ...], users: list[list[str]]
) -> None:
    bodies = dict(zip(NAMES, roles, strict=True))
    documents = [Document("role", name, body) for name, body in bodies.items()]
    documents += [
        Document("user", f"u{number}", {"roles": held}) for number, held in enumerate(users)
    ]
    broken = {f"role/{name}" for name in NAMES if naive_conflict(bodies, {name})}
    broken |= {
        f"user/u{number}" for number, held in enumerate(users) if naive_conflict(bodies, set(held))
    }
    assert {problem.place.partition(".")[0] for problem in problems_of(documents)} == broken


@given(roles=any_roles)
def test_inclusion_in_a_circle_is_refused(roles: tuple[dict[str, list[str]], ...]) -> None:
    bodies = dict(zip(NAMES, roles, strict=True))
    circular = any(name in naive_closure(bodies, set(bodies[name]["includes"])) for name in NAMES)
    found = problems_of([Document("role", name, body) for name, body in bodies.items()])
    assert any("refers to itself" in problem.message for problem in found) == circular
