"""Event types: every bit of all six items flipped once, and revisions against a naive model."""

from __future__ import annotations

import json
import uuid
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.model.grants import ADD, MANAGEMENT, REMOVE, RENAME, RETYPE
from penstock.model.kinds import EventType
from penstock.model.kinds.trust import TypeAttribute, TypeCertificate
from penstock.trust.event_types import TypeRegistry, sign_type
from tests.property.trust.test_capabilities import flips
from tests.support.trust.domains import attribute, chain, domain

IDS = [str(uuid.UUID(int=at)) for at in range(1, 4)]
BASE = sign_type(
    domain("pito"), "t", "t", str(uuid.uuid4()), [attribute("numberplate"), attribute("location")]
)
RIGHTS = chain("pito", ("met", "type: t; action: *"))
REVISED = sign_type(
    domain("met"),
    "t2",
    "t",
    str(uuid.uuid4()),
    [*BASE.attributes, attribute("speed", "int", optional=True)],
    issuer=domain("pito").key,
    certificates=[TypeCertificate(token=RIGHTS.text, revises=BASE.version)],
)


def test_a_type_with_any_bit_of_its_items_flipped_is_not_believed() -> None:
    for made in (BASE, REVISED):
        assert TypeRegistry([BASE, made]).object_to(made) is None
        items = made.model_dump(mode="json", exclude={"name", "description"})
        raw = json.dumps(items).encode()
        for changed in flips(raw):
            try:
                body = json.loads(changed)
                found = EventType.model_validate({"name": "t", **body})
            except (ValueError, ValidationError):
                continue
            assert TypeRegistry([BASE, found]).object_to(found) is not None


def test_each_item_is_covered_by_the_signature() -> None:
    others: dict[str, Any] = {
        "issuer": domain("met").key,
        "label": "u",
        "version": str(uuid.uuid4()),
        "attributes": BASE.attributes[:1],
        "certificates": (TypeCertificate(token=RIGHTS.text, revises=BASE.version),),
        "signature": "0" * 128,
    }
    assert others.keys() == {*BASE.statement(), "signature"}
    for item, value in others.items():
        changed = BASE.model_copy(update={item: value})
        assert TypeRegistry([BASE, changed]).object_to(changed) is not None


attributes = st.lists(
    st.builds(
        lambda name, id_, kind, optional: TypeAttribute.model_validate(
            {"name": name, "id": id_, "type": kind, "optional": optional}
        ),
        st.sampled_from(("a", "b", "c")),
        st.sampled_from(IDS),
        st.sampled_from(("string", "int")),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
    unique_by=(lambda it: it.name, lambda it: it.id),
)


@given(attributes, attributes, st.sets(st.sampled_from(sorted(MANAGEMENT)), min_size=1))
def test_a_revision_needs_a_right_for_every_difference(
    before: list[TypeAttribute], after: list[TypeAttribute], rights: set[str]
) -> None:
    base = sign_type(domain("pito"), "b", "t", str(uuid.uuid4()), before)
    held = chain("pito", ("met", f"type: t; action: {' | '.join(sorted(rights))}"))
    made = sign_type(
        domain("met"), "r", "t", str(uuid.uuid4()), after, issuer=domain("pito").key,
        certificates=[TypeCertificate(token=held.text, revises=base.version)],
    )  # fmt: skip
    needed = set()
    reused = False
    for new in after:
        old = next((it for it in before if it.id == new.id), None)
        if old is None:
            needed.add(ADD)
        else:
            needed |= {RENAME} if old.name != new.name else set()
            needed |= {RETYPE} if (old.type, old.optional) != (new.type, new.optional) else set()
        reused = reused or any(it.name == new.name and it.id != new.id for it in before)
    if any(it.id not in {new.id for new in after} for it in before):
        needed.add(REMOVE)
    believed = TypeRegistry([base, made]).object_to(made) is None
    assert believed is (needed <= rights and not reused)
