"""What other domains signed, as definitions: refused unless it is believed."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from penstock.definitions import DefinitionSet
from penstock.definitions.trust_checks import SKEW, admit, collect_revocations
from penstock.errors import InvalidError
from penstock.model.document import Document
from penstock.model.kinds import EventType
from penstock.model.kinds.trust import TypeCertificate
from penstock.trust import capabilities
from penstock.trust.event_types import sign_type
from tests.support.trust.domains import DAY, NOW, attribute, chain, domain

PLATE, PLACE = attribute("numberplate"), attribute("location", optional=True)
BASE = sign_type(domain("pito"), "sighting/1", "sighting", str(uuid.uuid4()), [PLATE, PLACE])
HELD = chain("pito", ("met", "type: sighting; action: * "))
CAPABILITY = Document("capability", "met", {"token": HELD.text})


def revocations(issued: int, *ids: str, who: str = "pito") -> Document:
    body = capabilities.write_revocations(capabilities.revoke(domain(who), ids, issued))
    return Document("revocation-list", body.pop("signer"), body)


def revision(until: int = NOW + DAY) -> EventType:
    held = chain("pito", ("met", "type: sighting; action: addAttribute"), until=until)
    return sign_type(
        domain("met"), "sighting/2", "sighting", str(uuid.uuid4()),
        [PLATE, PLACE, attribute("speed")], issuer=domain("pito").key,
        certificates=[TypeCertificate(token=held.text, revises=BASE.version)],
    )  # fmt: skip


def problems(*documents: Document) -> str:
    with pytest.raises(InvalidError) as refused:
        DefinitionSet.build(documents)
    return str(refused.value)


def changed(document: Document, **items: Any) -> Document:
    return Document(document.kind, document.name, {**document.body, **items})


def test_what_is_signed_becomes_a_definition() -> None:
    made = DefinitionSet.build(
        [BASE.document(), revision().document(), CAPABILITY, revocations(NOW)]
    )
    assert len(made.definitions) == 4


def test_what_is_not_signed_as_it_should_be_does_not() -> None:
    assert "not trusted" in problems(changed(BASE.document(), label="other"))
    assert "not trusted" in problems(revision().document())  # what it revises is missing
    broken = changed(CAPABILITY, token=HELD.text[:-2])
    assert "token" in problems(broken)
    assert HELD.text[-40:-2] not in problems(broken)
    assert "not signed" in problems(changed(revocations(NOW), issued=NOW + 1))
    other = Document("revocation-list", domain("met").key, revocations(NOW).body)
    assert "not signed" in problems(other)


def test_one_version_is_registered_once() -> None:
    again = Document("event-type", "another-name", BASE.document().body)
    assert "the same version" in problems(BASE.document(), again)


def test_a_version_cannot_be_deleted_while_others_revise_it() -> None:
    made = DefinitionSet.build([BASE.document(), revision().document()])
    with pytest.raises(InvalidError, match="not trusted"):
        made.change(delete=[BASE.key])


STREAM: dict[str, Any] = {"event_type": "sighting/1", "from": ["cameras/+/sighting"]}


def stream(*fields: dict[str, Any]) -> Document:
    return Document("stream", "sightings", {**STREAM, "fields": list(fields)})


def test_the_fields_of_a_stream_are_the_attributes_of_its_type() -> None:
    plate = {"name": "numberplate", "type": "string", "category": "identifier"}
    place = {"name": "location", "type": "string", "optional": True}
    DefinitionSet.build([BASE.document(), stream(place, plate)])
    assert "stream has not" in problems(BASE.document(), stream(plate))
    more = {"name": "speed", "type": "int"}
    assert "has no attribute 'speed'" in problems(BASE.document(), stream(plate, place, more))
    strict = {"name": "location", "type": "string"}
    assert "optional" in problems(BASE.document(), stream(plate, strict))
    assert "sighting/1" in problems(stream(plate, place))


def test_a_stream_follows_when_its_type_is_exchanged() -> None:
    plate = {"name": "numberplate", "type": "string"}
    place = {"name": "location", "type": "string", "optional": True}
    made = DefinitionSet.build([BASE.document(), stream(place, plate)])
    other = sign_type(domain("pito"), "sighting/1", "sighting", str(uuid.uuid4()), [PLATE])
    with pytest.raises(InvalidError, match="has no attribute 'location'"):
        made.change([other.document()])


def test_certificates_of_a_type_hold_when_it_is_registered() -> None:
    held = {BASE.key: BASE.document()}
    late = revision(until=NOW)
    assert admit([late.document()], held, NOW - 1) == []
    assert "ended" in str(admit([late.document()], held, NOW)[0])
    known = {**held, late.key: late.document()}
    assert admit([late.document()], known, NOW + DAY) == []  # it was registered in time
    made = revision()
    link = capabilities.read(made.certificates[0].token or "").links[0]
    with_list = [revocations(NOW, link.id), made.document()]
    assert "revoked" in str(admit(with_list, held, NOW)[0])


def test_an_older_list_of_revocations_never_takes_the_place_of_a_newer_one() -> None:
    new, old = revocations(NOW, HELD.links[0].id), revocations(NOW - 1)
    assert admit([new], {old.key: old}, NOW) == []
    assert "would come back" in str(admit([old], {new.key: new}, NOW)[0])
    assert "future" in str(admit([revocations(NOW + SKEW + 1)], {}, NOW)[0])


def test_a_list_that_is_wrong_counts_for_nothing() -> None:
    right = revocations(NOW, HELD.links[0].id)
    wrong = changed(revocations(NOW, HELD.links[0].id, who="met"), issued=NOW + 5)
    found = collect_revocations({it.key: it for it in (right, wrong)})
    assert found.of(domain("pito").key) is not None
    assert found.of(domain("met").key) is None
