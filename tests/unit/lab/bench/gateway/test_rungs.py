from __future__ import annotations

import pytest

from penstock.definitions import DefinitionSet
from penstock.definitions.authorizer import make_authorizer
from penstock.policy.access.requests import make_request
from penstock_lab.bench.gateway.rungs import LADDER, LADDER_QOS_1, Rung
from penstock_lab.bench.load.plan import topics_of


@pytest.mark.parametrize("rung", LADDER, ids=lambda rung: rung.name)
def test_every_message_of_every_rung_is_allowed(rung: Rung) -> None:
    authorizer = make_authorizer(DefinitionSet.build(rung.documents(251)))
    for number in (0, 249):
        for topic in topics_of(number):
            question = make_request(topic, purpose=rung.purpose)
            assert authorizer.authorize(question).allowed


@pytest.mark.parametrize("rung", [rung for rung in LADDER if rung.rules], ids=lambda r: r.name)
def test_rules_have_something_to_forbid(rung: Rung) -> None:
    authorizer = make_authorizer(DefinitionSet.build(rung.documents(251)))
    for purpose in ("marketing/individualized", "operational/surveillance", None):
        question = make_request(topics_of(3)[0], purpose=purpose)
        assert not authorizer.authorize(question).allowed


def test_the_ladder_begins_with_the_bare_broker_and_the_gateway_without_rules() -> None:
    for ladder in (LADDER, LADDER_QOS_1):
        assert [rung.name for rung in ladder[:2]] == ["direct", "no_rules"]
        assert not ladder[0].gateway
        assert not ladder[1].documents()
    assert {rung.qos for rung in LADDER} == {0}
    assert {rung.qos for rung in LADDER_QOS_1} == {1}


def test_reservations_are_as_many_as_asked_for() -> None:
    documents = LADDER[-1].documents(100)
    assert sum(document.kind == "reservation" for document in documents) == 100
