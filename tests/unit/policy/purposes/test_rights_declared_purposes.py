from __future__ import annotations

from penstock.model.document import Key
from penstock.policy.purposes.rights import DeclaredPurposes


def declare(*names: str) -> DeclaredPurposes:
    keys = [Key("purpose", name) for name in names]
    declared = DeclaredPurposes()
    declared.take(set(keys), keys)
    return declared


def test_every_purpose_may_be_used_while_none_is_declared() -> None:
    declared = declare()
    declared.take({Key("reservation", "ads")}, [Key("reservation", "ads")])
    assert declared.object_to("anything") == ""


def test_once_some_are_declared_others_are_refused_with_a_hint() -> None:
    declared = declare("billing", "research", "research/public")
    for name in ("billing", "research/public", None):
        assert declared.object_to(name) == ""
    assert "did you mean 'billing'?" in declared.object_to("biling")
    assert "research/private" in declared.object_to("research/private")
    assert "declare it" in declared.object_to("zzz")


def test_a_purpose_that_is_no_longer_declared_is_forgotten() -> None:
    declared = declare("billing", "research")
    declared.take({Key("purpose", "research")}, [Key("purpose", "billing")])
    assert declared.object_to("billing")
    declared.take(set(), [Key("purpose", "research")])
    assert declared.object_to("billing") == ""


def test_what_is_admitted_meets_no_objection() -> None:
    declared = declare("billing")
    for name in ("billing", "biling", "zzz", None):
        assert declared.admits(name) == (declared.object_to(name) == "")
    assert declare().admits("anything")
