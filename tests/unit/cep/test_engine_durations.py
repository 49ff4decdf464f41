"""Situations with a longest duration, and plans that count days of a time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.cep.steps import StepResult, TransitionCause
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from penstock.errors import InvalidError
from penstock.lang.scalars import Days
from tests.support.nursing_home.program import load_program, make_packet

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1000
SOURCE = """
{kind: vocabulary, name: v, object: {k: string}, payload: {v: int, day: string}}
---
{kind: event, name: Up, attributes: {k: string}, packet: {filters: [up], set: {k: o.k}}}
---
{kind: event, name: Asked, attributes: {k: string, since: string},
 request: {set: {k: r.subject, since: r.situation}, optional: [since]}}
---
{kind: action, name: Tell, event: Asked, topic: "told/{k}", payload: {k: it.k, to: it.since}}
---
kind: plan
name: p
situations: [{id: Low, level: 1}, {id: Stale, level: 2}]
evolutions:
  - {event: Up, to: Low}
  - {after: 10s, from: Low, to: Stale, actions: [Tell]}
  - {after: 5s, from: Stale}
---
{kind: scenario, name: s, plan: p, attribute: k}
"""


def load(source: str) -> Engine:
    return Engine(compile_program(DefinitionSet.build(read_text(source).documents).definitions))


def send(engine: Engine, topic: str, at: int, who: str = "ann", **payload: Any) -> StepResult:
    packet = Packet(
        topic,
        {"topic": topic, "payload": payload},
        {},
        {"k": who},
        {"time": EPOCH + timedelta(milliseconds=at)},
    )
    return engine.prepare(packet, at).commit()


def test_a_situation_is_left_when_its_longest_duration_is_over() -> None:
    engine = load(SOURCE)
    send(engine, "up", 0)
    assert engine.next_deadline() == 10 * SECOND
    outcome = engine.advance(60 * SECOND)
    assert [
        (it.source, it.target, it.at, it.cause, it.evolution) for it in outcome.transitions
    ] == [
        ("Low", "Stale", 10 * SECOND, TransitionCause.DURATION, 1),
        ("Stale", None, 15 * SECOND, TransitionCause.DURATION, 2),
    ]
    assert [(it.topic, it.payload) for it in outcome.publications] == [
        ("told/ann", {"k": "ann", "to": "Stale"})
    ]
    assert engine.next_deadline() is None


def test_a_shorter_duration_holds_for_cases_that_are_open_already() -> None:
    engine = load(SOURCE)
    send(engine, "up", 0)
    engine.advance(8 * SECOND)
    shorter = load(SOURCE.replace("after: 10s", "after: 3s")).program
    again = Engine.load(shorter, engine.save())
    outcome = again.advance(9 * SECOND)
    assert [(it.target, it.at) for it in outcome.transitions] == [("Stale", 8 * SECOND)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("{event: Up, to: Low}", "{to: Low}"), "one of event and after"),
        (("{event: Up, to: Low}", "{event: Up, after: 1s, to: Low}"), "one of event and after"),
        (("{event: Up, to: Low}", "{after: 1s, to: Low}"), "name from beside after"),
        (
            ("{after: 5s, from: Stale}", "{after: 5s, from: Stale, to: Low}"),
            "time alone",
        ),
        (("{after: 5s, from: Stale}", "{after: 5s, from: Low}"), "a longest duration"),
        (("after: 5s", "after: soon"), "after"),
    ],
)
def test_what_makes_no_sense_is_refused(change: tuple[str, str], told: str) -> None:
    with pytest.raises(InvalidError, match=told):
        load(SOURCE.replace(*change))


def test_an_action_of_time_alone_needs_a_type_over_requests() -> None:
    source = SOURCE.replace("event: Asked, topic", "event: Up, topic").replace("to: it.since", "")
    with pytest.raises(InvalidError, match="would never publish"):
        load(source.replace("payload: {k: it.k, }", "payload: {k: it.k}"))


DAYS = """
{kind: vocabulary, name: v, object: {k: string}, payload: {v: int, day: string}}
---
{kind: event, name: Seen, attributes: {k: string, until: timestamp, date: int},
 packet: {filters: [up], set: {k: o.k, until: 'timestamp(t.payload.day, e.zone)',
                               date: e.time.date(e.zone)}}}
---
{kind: event, name: Daily, attributes: {k: string, n: int},
 pattern: {aggregate: [{event: Seen}], by: [k], window: {each: 1d}, values: {n: count()},
           where: it.n >= 2}}
---
kind: plan
name: p
zone: ZONE
situations: [{id: Low, level: 1}]
evolutions: [{event: Daily, to: Low}]
---
{kind: scenario, name: s, plan: p, attribute: k}
"""


def moment(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("zone", "until", "date", "daily"),
    [
        ("UTC", "2026-03-29T00:00:00Z", 20260328, [2]),
        ("Europe/Rome", "2026-03-28T23:00:00Z", 20260328, []),  # midnight lies between
        ("Pacific/Auckland", "2026-03-28T11:00:00Z", 20260329, [2]),
    ],
)
def test_days_are_those_of_the_zone_that_the_plan_names(
    zone: str, until: str, date: int, daily: list[int]
) -> None:
    engine = load(DAYS.replace("ZONE", zone))
    first = send(engine, "up", moment("2026-03-28T22:59:00Z"), day="2026-03-28")
    seen = dict(first.detected)["Seen"].values
    assert seen == {"k": "ann", "until": datetime.fromisoformat(until), "date": date}
    second = send(engine, "up", moment("2026-03-28T23:01:00Z"), day="2026-03-28")
    assert [row.values["n"] for name, row in second.detected if name == "Daily"] == daily


def test_a_zone_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidError, match="no such time zone"):
        load(DAYS.replace("ZONE", "Europe/Atlantis"))
    with pytest.raises(InvalidError, match="is no time zone"):
        load(DAYS.replace("ZONE", "UTC").replace("e.zone", '"Europe/Atlantis"'))


def test_plans_of_different_zones_share_no_event_that_counts_days() -> None:
    other = """
---
kind: plan
name: q
zone: Europe/Rome
situations: [{id: Low, level: 1}]
evolutions: [{event: Daily, to: Low}]
"""
    with pytest.raises(InvalidError, match="several time zones"):
        load(DAYS.replace("ZONE", "UTC") + other)
    load(DAYS.replace("ZONE", "Europe/Rome") + other)


def test_a_day_with_a_change_of_the_clock_is_counted_as_one() -> None:
    days = Days("Europe/Rome")
    begin = moment("2026-10-25T00:00:00+02:00")
    day = days.number(begin)
    assert days.date(day) == 20261025
    assert days.begin(day) == begin
    assert days.begin(day + 1) - begin == 25 * 3600 * SECOND
    assert days.number(begin - 1) == day - 1
    assert days.number(begin + 25 * 3600 * SECOND - 1) == day
    assert days.number(begin + 25 * 3600 * SECOND) == day + 1


def test_contacts_are_summed_up_by_days_of_the_plans_zone() -> None:
    """Two stretches together, each side of midnight in Rome: one day in UTC, two there."""
    zoned = "zone: Europe/Rome\ndescription: A case of COVID-19"
    told = {}
    for text in ("description: A case of COVID-19", zoned):
        engine = Engine(load_program(replace=("description: A case of COVID-19", text)))
        for second in range(-500, 500):
            at = moment("2026-06-01T22:00:00Z") + second * SECOND
            for pid in ("ann", "bob"):
                packet = make_packet("location", {"pid": pid, "location": "hall"}, at)
                engine.prepare(packet, at).commit()
        at = moment("2026-06-01T22:30:00Z")
        fever = make_packet("temperature", {"pid": "ann", "temperature": 39.0}, at)
        topics = [it.topic for it in engine.prepare(fever, at).commit().publications]
        told[text] = "closecontact" in topics
    assert list(told.values()) == [True, False]
