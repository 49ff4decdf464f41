from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from penstock.gateway.authorization.compiled_definitions import named_clients
from penstock.gateway.authorization.rules import COMPARED, Rules
from penstock.gateway.broker import stamp
from penstock.gateway.service.definition_feed import concerned_filters, differing
from penstock.gateway.session import Session
from penstock.model.document import Document, Key
from penstock.policy.purposes.commands import Clear, Presubscribe, Reserve
from penstock.policy.purposes.settings import PurposeSettings
from penstock.store.definitions.documents import Snapshot
from penstock.store.sessions import StoredSubscription

RESERVED = Key("reservation", "a/#")


def document(key: Key, **body: Any) -> Document:
    return Document(key.kind, key.name, body)


def snapshot(epoch: int, *documents: Document) -> Snapshot:
    held = {it.key: it for it in documents}
    return Snapshot(epoch, f"mark-{epoch}", MappingProxyType(held))


def rules(*documents: Document) -> Rules:
    made = Rules(PurposeSettings(auto_persist=True))
    first = snapshot(1, *documents)
    made.take(first, first.documents)
    return made


def subscribed(made: Rules, *wanted: tuple[str, str | None, int]) -> Session:
    session = Session("c", "alice", 0)
    for text, ap, identifier in wanted:
        admission = made.engine.subscribe("c", text, ap, 1, identifier=identifier)
        assert admission.subscription is not None
        session.hold(admission.subscription)
    return session


def test_a_change_turns_a_generation_and_stamps_follow_the_epoch() -> None:
    made = rules()
    before = made.generation
    alice = Session("c", "alice", 0)
    assert made.stamp(alice) == stamp("alice", 1)
    made.take(snapshot(2), ())
    assert made.generation > before
    assert made.stamp(alice) == stamp("alice", 2)
    made.take(snapshot(2), ())
    assert made.epoch == 2


def test_what_is_tried_out_goes_before_what_is_stored_until_it_is_taken_back() -> None:
    made = rules(document(RESERVED, allow=["p"]))
    made.try_out({RESERVED: document(RESERVED, allow=["q"])})
    assert made.engine.decide("a", "q")
    later = snapshot(2, document(RESERVED, allow=["r"]))
    made.take(later, later.documents)
    assert made.engine.decide("a", "q")
    assert made.unsaved().keys() == {RESERVED}
    made.reload()
    assert made.engine.decide("a", "r")
    assert not made.engine.decide("a", "q")
    assert made.unsaved() == {}


def test_what_is_stored_holds_again_unless_something_else_is_tried_out() -> None:
    made = rules(document(RESERVED, allow=["p"]))
    made.try_out({RESERVED: document(RESERVED, allow=["q"])})
    tried = made.unsaved()
    made.try_out({RESERVED: document(RESERVED, allow=["r"])})
    made.settle([RESERVED], tried)
    assert made.engine.decide("a", "r")
    before = made.generation
    made.settle([RESERVED], made.unsaved())
    assert made.engine.decide("a", "p")
    assert made.unsaved() == {}
    assert made.generation > before
    made.try_out({RESERVED: None})
    made.settle([RESERVED], {})
    assert made.unsaved() == {RESERVED: None}


class CountedText(str):
    """A text that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        type(self).compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_no_presubscription_is_compared_with_all_others() -> None:
    clients = [CountedText(f"c{number}") for number in range(300)]
    first = snapshot(
        1,
        *(
            Document("presubscription", f"p{at}", {"client": it, "filter": "a", "purpose": "p"})
            for at, it in enumerate(clients)
        ),
    )
    made = Rules(PurposeSettings())
    CountedText.compared = 0
    made.take(first, first.documents)
    made.take(snapshot(2), first.documents)
    assert CountedText.compared <= 20 * len(clients)
    assert len(made.engine.presubscriptions) == 0


def test_presubscriptions_of_the_same_go_by_name_and_can_be_taken_back() -> None:
    made = rules()
    one, two = Key("presubscription", "one"), Key("presubscription", "two")

    def said(key: Key, purpose: str) -> Document:
        return document(key, client="c", filter="a", purpose=purpose)

    made.try_out({one: said(one, "p"), two: said(two, "q")})
    found = made.engine.presubscriptions.get("c", "a")
    assert found is not None
    assert found.ap == "q"
    assert made.presubscription("c", "a") == "two"
    made.try_out({two: None})
    assert made.presubscription("c", "a") == "one"
    made.try_out({one: None})
    assert made.engine.presubscriptions.get("c", "a") is None


def test_a_plain_subscription_stays_plain_when_it_is_taken_up_again() -> None:
    made = rules(document(RESERVED, allow=["p"]))
    made.engine.presubscribe("c", "a/#", "p")
    held = made.restore(Session("c", "alice", 0), StoredSubscription("a/b", 1, None, 1, 0), 1)
    assert held is not None
    assert held.ap is None
    assert made.engine.presubscriptions.get("c", "a/#") is not None


def test_settings_are_definitions() -> None:
    key = Key("purpose-settings", "default")
    made = rules(document(key, filter_on_subscribe=True, cache_reservations=False))
    assert made.engine.settings.filter_on_subscribe
    assert not made.remembers
    made.take(snapshot(2), [key])
    assert made.engine.settings == PurposeSettings(auto_persist=True)
    assert made.remembers


def test_rights_come_from_users_clients_and_groups() -> None:
    made = rules(
        Document("right", "r1", {"subjects": ["user:alice"], "reserve": ["a/#"]}),
        Document("right", "r2", {"subjects": ["client:c"], "presubscribe": ["b/#"]}),
        Document("right", "r3", {"subjects": ["group:ops"], "administer": True}),
        Document("right", "r4", {"subjects": ["user:anonymous"], "administer": True}),
        Document("group", "ops", {"members": ["user:olga"]}),
    )
    alice, olga = Session("x", "alice", 0), Session("y", "olga", 0)
    nobody, carl = Session("c", "anonymous", 0), Session("c", "carl", 0)
    assert made.rights(alice).may(Reserve("a/b", None)).allowed
    assert not made.rights(olga).may(Reserve("a/b", None)).allowed
    assert made.rights(olga).may(Clear()).allowed
    assert made.rights(carl).may(Presubscribe("z", "b/c", None)).allowed
    assert not made.rights(nobody).may(Presubscribe("z", "b/c", None)).allowed
    assert not made.rights(nobody).may(Clear()).allowed
    made.take(snapshot(2), [Key("right", "r1")])
    assert not made.rights(alice).may(Reserve("a/b", None)).allowed


def test_many_reservations_are_taken_at_once_as_one_by_one() -> None:
    """What is tried out at this gateway goes before them, either way."""
    many = [
        document(Key("reservation", f"t/{n}/#"), allow=[f"p{n % 7}"], prohibit=["x"])
        for n in range(1_500)
    ]
    tried: dict[Key, Document | None] = {
        many[3].key: None,
        many[4].key: document(many[4].key, allow=["mine"]),
        Key("reservation", "mine"): document(Key("reservation", "mine"), allow=["mine"]),
    }
    at_once, one_by_one = rules(), rules()
    for made in (at_once, one_by_one):
        made.try_out(tried)
    whole = snapshot(2, *many)
    held = at_once.engine.subscribe("c", "t/9/x", "p1").subscription
    assert held is not None
    at_once.take(whole, whole.documents)
    for number, one in enumerate(many):
        part = snapshot(2 + number, *many[: number + 1])
        one_by_one.take(part, [one.key])
    assert dict(at_once.engine.reservations.items()) == dict(one_by_one.engine.reservations.items())
    assert at_once.engine.reservations.get("t/3/#") is None
    # Half of them less: the subscription that was made before is judged by what is left.
    fewer = snapshot(9_999, *many[1_400:])
    at_once.take(fewer, whole.documents)
    assert len(at_once.engine.reservations) == 102
    assert at_once.engine.decide("t/9/x", "p1")
    assert not at_once.engine.decide("t/1450/x", "nobody")


def reserved_as(**bodies: int) -> Snapshot:
    documents = [Document("reservation", name, {"value": it}) for name, it in bodies.items()]
    return Snapshot(1, "m", {it.key: it for it in documents})


def test_changes_concern_the_filters_that_are_reserved() -> None:
    keys = [Key("reservation", "a/#"), Key("policy", "p"), Key("reservation", "b")]
    assert concerned_filters(keys) == ("a/#", "b")
    assert concerned_filters([Key("presubscription", "x")]) == ()


def test_settings_purposes_and_very_many_changes_concern_all() -> None:
    assert concerned_filters([Key("purpose", "p")]) is None
    assert concerned_filters([Key("right", "r")]) is None
    assert concerned_filters([Key("purpose-settings", "default")]) is None
    many = [Key("reservation", f"t/{it}") for it in range(COMPARED + 1)]
    assert concerned_filters(many) is None
    assert len(concerned_filters(many[1:]) or ()) == COMPARED


def test_what_differs_is_new_changed_or_gone() -> None:
    found = differing(reserved_as(same=1, changed=1, gone=1), reserved_as(same=1, changed=2, new=1))
    assert {key.name for key in found} == {"changed", "gone", "new"}


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (Document("right", "r", {"subjects": ["user:a", "client:c"]}), True),
        (Document("group", "g", {"members": ["client:c"]}), True),
        (Document("policy", "p", {"subject": "client:c", "filter": "a"}), True),
        (Document("attributes", "client:c", {"values": {}}), True),
        (Document("presubscription", "client:c", {"client": "c", "filter": "a"}), False),
        (Document("policy", "p", {"filter": "a", "when": "client:c"}), False),
    ],
)
def test_definitions_that_give_to_a_client_identifier_are_told(
    document: Document, *, named: bool
) -> None:
    assert list(named_clients(document)) == (["c"] if named else [])


def test_users_are_kept_out_by_definitions() -> None:
    """Those that are blocked; where users have to be defined, also those that are not."""
    users = (Document("user", "ann", {"blocked": True}), Document("user", "bob", {}))
    for defined, out in ((False, {"ann"}), (True, {"ann", "carol"})):
        made = Rules(PurposeSettings(), defined_users=defined)
        first = snapshot(1, *users)
        made.take(first, first.documents)
        assert {it for it in ("ann", "bob", "carol") if made.keeps_out(it)} == out
        assert not made.keeps_out(None)
