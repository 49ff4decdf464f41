from __future__ import annotations

import json

import pytest

from penstock.errors import UsageError
from penstock.model.topics import matches
from penstock_lab.bench.load.plan import LoadPlan, fan_out, filters_of, mesh, pairs, topics_of


@pytest.mark.parametrize("plan", [mesh(7), mesh(250), pairs(20), fan_out(30)])
def test_every_topic_reaches_exactly_the_receivers_of_the_plan(plan: LoadPlan) -> None:
    everyone = list(zip(plan.parties, plan.source, strict=True))
    for number, publisher in enumerate(plan.parties[:5]):
        for topic in publisher.topics:
            reached = [
                source
                for party, source in everyone
                if any(matches(text, topic) for text in party.filters)
            ]
            assert reached == [number] * plan.receivers


@pytest.mark.parametrize("plan", [mesh(250), pairs(1000), fan_out(1000)])
def test_topics_have_one_length_and_clients_one_name_each(plan: LoadPlan) -> None:
    assert len({len(topic) for party in plan.parties for topic in party.topics}) == 1
    assert len({party.client_id for party in plan.parties}) == len(plan.parties)


def test_nobody_in_a_mesh_listens_to_itself() -> None:
    assert all(source != number for number, source in enumerate(mesh(251).source))
    with pytest.raises(UsageError, match="mesh of 1"):
        mesh(1)


def test_each_filter_of_a_vehicle_matches_one_of_its_topics() -> None:
    for text, topic in zip(filters_of(3), topics_of(3), strict=True):
        assert [t for t in topics_of(3) if matches(text, t)] == [topic]


def test_a_purpose_makes_the_filters_subscriptions_for_it() -> None:
    assert filters_of(3, "billing")[2] == "!AP/country1/area3/vehicle00003/usage/#{billing}"


def test_a_plan_survives_json() -> None:
    plan = pairs(3, "billing")
    assert LoadPlan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
