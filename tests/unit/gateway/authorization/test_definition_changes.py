from __future__ import annotations

from penstock.gateway.authorization.definition_changes import COMPARED, concerned_filters, differing
from penstock.model.document import Document, Key
from penstock.store.definitions.snapshots import Snapshot


def snapshot(**bodies: int) -> Snapshot:
    documents = [Document("reservation", name, {"value": it}) for name, it in bodies.items()]
    return Snapshot(1, "m", {it.key: it for it in documents})


def test_changes_concern_the_filters_that_are_reserved() -> None:
    keys = [Key("reservation", "a/#"), Key("group", "p"), Key("reservation", "b")]
    assert concerned_filters(keys) == ("a/#", "b")
    assert concerned_filters([Key("presubscription", "x")]) == ()


def test_settings_purposes_and_very_many_changes_concern_all() -> None:
    assert concerned_filters([Key("purpose", "p")]) is None
    assert concerned_filters([Key("purpose-settings", "default")]) is None
    many = [Key("reservation", f"t/{it}") for it in range(COMPARED + 1)]
    assert concerned_filters(many) is None
    assert len(concerned_filters(many[1:]) or ()) == COMPARED


def test_what_differs_is_new_changed_or_gone() -> None:
    found = differing(snapshot(same=1, changed=1, gone=1), snapshot(same=1, changed=2, new=1))
    assert {key.name for key in found} == {"changed", "gone", "new"}
