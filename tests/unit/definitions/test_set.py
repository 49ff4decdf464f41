from __future__ import annotations

import pytest

from penstock.definitions import DefinitionSet, after_applying, differences
from penstock.errors import InvalidError
from penstock.model.document import Document, Key
from penstock.model.kinds import Group, Purpose, Reservation


def _group(name: str, *includes: str) -> Document:
    return Document("group", name, {"includes": list(includes)})


def test_definitions_are_found_by_kind_and_name() -> None:
    built = DefinitionSet.build(
        [Document("purpose", "b", {}), Document("purpose", "a", {}), _group("g")]
    )
    assert list(built.of(Purpose)) == ["a", "b"]
    found = built.get(Group, "g")
    assert found is not None
    assert found.name == "g"
    assert built.get(Reservation, "g") is None


def test_what_others_refer_to_cannot_be_deleted() -> None:
    built = DefinitionSet.build([_group("a", "b"), _group("b")])
    with pytest.raises(InvalidError, match=r"group/a.includes.0: still uses group/b"):
        built.change(delete=[Key("group", "b")])


def test_a_set_tells_who_names_a_definition() -> None:
    built = DefinitionSet.build([_group("c", "a"), _group("b", "a"), _group("a")])
    assert built.used_by(Key("group", "a")) == [Key("group", "b"), Key("group", "c")]
    changed = built.change([_group("c")], [Key("group", "b")])
    assert changed.used_by(Key("group", "a")) == []
    assert changed.used_by(Key("group", "nobody")) == []


def test_long_chains_are_walked_without_recursion() -> None:
    chain = [_group(f"g{number}", f"g{number + 1}") for number in range(5000)]
    DefinitionSet.build([*chain, _group("g5000")])
    with pytest.raises(InvalidError, match="refers to itself"):
        DefinitionSet.build([*chain, _group("g5000", "g0")])


def test_the_first_purpose_closes_the_vocabulary() -> None:
    free = DefinitionSet.build([Document("reservation", "a/#", {"allow": ["bilng"]})])
    with pytest.raises(InvalidError, match="did you mean 'billing'"):
        free.change([Document("purpose", "billing", {})])


def test_differences_name_the_action() -> None:
    before = {item.key: item for item in [_group("a"), _group("b"), _group("c")]}
    after = after_applying(before, [_group("a", "b"), _group("b"), _group("d")], prune=["group"])
    found = {item.key.name: item.action for item in differences(before, after)}
    assert found == {"a": "update", "c": "delete", "d": "create"}
    lines = next(item.lines() for item in differences(before, after) if item.key.name == "a")
    assert "+- b" in lines
