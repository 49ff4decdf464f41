"""Event types: the six items, versions, managers with their four rights, and extension."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import pytest

from penstock.model.grants import ADD, REMOVE, RENAME, RETYPE
from penstock.model.kinds import EventType
from penstock.model.kinds.trust import TypeAttribute, TypeCertificate
from penstock.trust.capabilities import Capability, Revocations, revoke
from penstock.trust.event_types import (
    TypeRegistry,
    list_changes,
    object_to_times,
    sign_type,
    type_id,
)
from tests.support.trust.domains import DAY, NOW, attribute, chain, domain

PLATE, PLACE = attribute("numberplate"), attribute("location")


def sign(
    who: str,
    attributes: Iterable[TypeAttribute],
    *certificates: TypeCertificate,
    label: str = "sighting",
    issuer: str | None = None,
) -> EventType:
    version = str(uuid.uuid4())
    return sign_type(
        domain(who),
        f"{label}/{version}",
        label,
        version,
        attributes,
        issuer=domain(issuer).key if issuer else None,
        certificates=certificates,
    )


def revise(
    base: EventType, attributes: Iterable[TypeAttribute], held: Capability, who: str = "met"
) -> EventType:
    certificate = TypeCertificate(token=held.text, revises=base.version)
    return sign(who, attributes, certificate, issuer="pito")


def manager(*rights: str, until: int = NOW + DAY) -> Capability:
    return chain("pito", ("met", f"type: sighting; action: {' | '.join(rights)}"), until=until)


BASE = sign("pito", [PLATE, PLACE])


def test_the_issuer_signs_versions_and_all_of_them_coexist() -> None:
    other = sign("pito", [PLATE])
    registry = TypeRegistry([BASE, other])
    assert registry.object_to(BASE) is None
    assert registry.object_to(other) is None
    assert registry.get(type_id(BASE)) == BASE
    assert registry.get(type_id(other)) == other


def test_one_name_under_two_keys_is_two_types() -> None:
    version = str(uuid.uuid4())
    both = [sign_type(domain(it), "x", "sighting", version, [PLATE]) for it in ("pito", "met")]
    assert type_id(both[0]) != type_id(both[1])
    registry = TypeRegistry(both)
    assert [registry.object_to(it) for it in both] == [None, None]


CHANGES = {
    ADD: [PLATE, PLACE, attribute("colour")],
    REMOVE: [PLATE],
    RENAME: [PLATE, PLACE.model_copy(update={"name": "place"})],
    RETYPE: [PLATE, PLACE.model_copy(update={"type": "long"})],
}


@pytest.mark.parametrize("needed", CHANGES)
@pytest.mark.parametrize("held", CHANGES)
def test_a_manager_needs_the_right_to_each_change(needed: str, held: str) -> None:
    made = revise(BASE, CHANGES[needed], manager(held))
    assert list_changes(BASE, made) == [needed]
    reason = TypeRegistry([BASE, made]).object_to(made)
    assert (reason is None) is (needed == held)
    if reason is not None:
        assert needed in reason


def test_whether_an_attribute_is_optional_is_a_part_of_its_type() -> None:
    changed = [PLATE, PLACE.model_copy(update={"optional": True})]
    assert list_changes(BASE, revise(BASE, changed, manager(RETYPE))) == [RETYPE]


def test_managers_build_on_versions_of_managers() -> None:
    first = revise(BASE, CHANGES[ADD], manager(ADD))
    second = revise(first, CHANGES[ADD][:2], manager(REMOVE))
    registry = TypeRegistry([BASE, first, second])
    assert registry.object_to(second) is None
    assert "not known" in (TypeRegistry([BASE, second]).object_to(second) or "")


def test_a_name_never_passes_to_another_attribute_by_a_managers_hand() -> None:
    # Who may read `numberplate` would read the location: in one step, and in two.
    rights = manager(ADD, REMOVE, RENAME)
    swapped = PLACE.model_copy(update={"name": "numberplate"})
    at_once = revise(BASE, [swapped], rights)
    assert "was that of another" in (TypeRegistry([BASE, at_once]).object_to(at_once) or "")
    without = revise(BASE, [PLACE], rights)
    later = revise(without, [swapped], rights)
    registry = TypeRegistry([BASE, without, later])
    assert registry.object_to(without) is None
    assert "was that of another" in (registry.object_to(later) or "")


def test_a_manager_of_somebody_else_and_a_stranger_are_nobody() -> None:
    elsewhere = chain("ccs", ("met", f"type: sighting; action: {ADD}"))
    made = revise(BASE, CHANGES[ADD], elsewhere)
    assert "not of its issuer" in (TypeRegistry([BASE, made]).object_to(made) or "")
    other_label = chain("pito", ("met", f"type: other; action: {ADD}"))
    made = revise(BASE, CHANGES[ADD], other_label)
    assert "no right" in (TypeRegistry([BASE, made]).object_to(made) or "")
    made = revise(BASE, CHANGES[ADD], manager(ADD), who="stranger")
    assert "not signed by" in (TypeRegistry([BASE, made]).object_to(made) or "")
    forged = sign("stranger", [PLATE], issuer="pito")
    assert "not signed by" in (TypeRegistry([forged]).object_to(forged) or "")


def test_certificates_hold_when_a_type_is_registered() -> None:
    made = revise(BASE, CHANGES[ADD], manager(ADD, until=NOW - 1))
    assert TypeRegistry([BASE, made]).object_to(made) is None
    assert "ended" in (object_to_times(made, NOW, Revocations()) or "")
    assert object_to_times(made, NOW - 2, Revocations()) is None
    held = manager(ADD)
    made = revise(BASE, CHANGES[ADD], held)
    known = Revocations([revoke(domain("pito"), [held.links[0].id], NOW)])
    assert "revoked" in (object_to_times(made, NOW, known) or "")


def test_versions_that_revise_each_other_are_not_believed() -> None:
    rights = manager(ADD)
    one, two = str(uuid.uuid4()), str(uuid.uuid4())
    both = [
        sign_type(
            domain("met"), version, "sighting", version, [PLATE], issuer=domain("pito").key,
            certificates=[TypeCertificate(token=rights.text, revises=other)],
        )
        for version, other in ((one, two), (two, one))
    ]  # fmt: skip
    assert "itself" in (TypeRegistry(both).object_to(both[0]) or "")


EXTEND = "type: sight*; action: extend"


def extend(who: str, attributes: Iterable[TypeAttribute], held: Capability | None) -> EventType:
    certificate = TypeCertificate(
        token=held.text if held is not None else None, extends=type_id(BASE)
    )
    return sign(who, attributes, certificate, label="chase")


def test_a_type_is_extended_with_the_owners_authority_and_all_attributes() -> None:
    more = [PLATE, PLACE, attribute("speed", "double")]
    made = extend("ccs", more, chain("pito", ("ccs", EXTEND)))
    assert TypeRegistry([BASE, made]).object_to(made) is None
    lacking = extend("ccs", more[1:], chain("pito", ("ccs", EXTEND)))
    assert "numberplate" in (TypeRegistry([BASE, lacking]).object_to(lacking) or "")
    changed = [PLATE.model_copy(update={"type": "int"}), *more[1:]]
    made = extend("ccs", changed, chain("pito", ("ccs", EXTEND)))
    assert "has not its attribute" in (TypeRegistry([BASE, made]).object_to(made) or "")


@pytest.mark.parametrize(
    "held",
    [
        None,
        chain("pito", ("met", EXTEND)),
        chain("ccs", ("ccs", EXTEND)),
        chain("pito", ("ccs", "type: other; action: extend")),
        chain("pito", ("ccs", "type: *; action: publish")),
    ],
    ids=["none", "for somebody else", "own", "of another type", "another action"],
)
def test_nobody_extends_the_type_of_another_without_authority(held: Capability | None) -> None:
    made = extend("ccs", [PLATE, PLACE], held)
    assert TypeRegistry([BASE, made]).object_to(made) is not None


def test_an_owner_extends_its_own_types() -> None:
    made = extend("pito", [PLATE, PLACE, attribute("speed")], None)
    assert TypeRegistry([BASE, made]).object_to(made) is None


def test_types_that_lead_to_one_another_in_many_ways_are_looked_at_once() -> None:
    """Each level of two types that extend both of the level below doubled the work."""
    level = [sign("pito", [PLATE])]
    known = list(level)
    for at in range(30):
        extensions = [TypeCertificate(extends=type_id(it)) for it in level]
        level = [sign("pito", [PLATE], *extensions, label=f"{at}{side}") for side in "ab"]
        known += level
    assert TypeRegistry(known).object_to(level[0]) is None
    # One that was changed below is found from above.
    forged = known[1].model_copy(update={"signature": known[2].signature})
    registry = TypeRegistry([known[0], forged, *known[2:]])
    reason = registry.object_to(level[0])
    assert reason is not None
    assert "not signed" in reason
