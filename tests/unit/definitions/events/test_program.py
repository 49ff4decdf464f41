from __future__ import annotations

import pytest

from penstock.cep.program import Aggregate, Refine
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from penstock.errors import InvalidError

BASE = """
kind: vocabulary
name: v
object: {k: string, n: int}
payload: {v: int}
---
kind: event
name: A
attributes: {k: string, v: int}
packet: {filters: [a], set: {k: o.k, v: t.payload.v}}
---
kind: event
name: Asked
attributes: {k: string}
request: {set: {k: r.subject}}
---
"""


def problems_of(text: str) -> str:
    with pytest.raises(InvalidError) as caught:
        DefinitionSet.build(read_text(BASE + text).documents)
    return str(caught.value)


def event(pattern: str, attributes: str = "{k: string}") -> str:
    return f"kind: event\nname: E\nattributes: {attributes}\npattern: {pattern}\n"


SIDE_BY_SIDE = "{sequence: [{event: A, as: a}, {not: {event: A}}, {not: {event: A}, as: b}], "
SIDE_BY_SIDE += "within: 9s}"


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("{event: A}", "the pattern also has 'v'"),
        ("{event: A, set: {v: it.v}}", "does not set 'k'"),
        ("{event: A, where: it.nothing, set: {k: it.k}}", "has no field 'nothing'"),
        ("{event: A, where: it.v, set: {k: it.k}}", "bool is asked for here"),
        ("{event: A, set: {k: it.v}}", "string is asked for here"),
        ("{event: Missing, set: {k: it.k}}", "there is no event 'Missing'"),
        ("{not: {event: A}}", "not stands alone"),
        ("{and: [{event: A, as: a}, {event: A, as: b}], by: [k]}", "is over at once"),
        (
            "{and: [{event: A, window: {last: 1s}}, {event: A, window: {last: 1s}}], by: [k]}",
            "two inputs are called 'it'",
        ),
        ("{and: [{not: {event: A, window: {last: 1s}}}], by: [k]}", "all is negated"),
        ("{and: [{event: A, window: {count: 3}}], by: [k]}", "in a window of time"),
        ("{sequence: [{event: A, as: a}, {event: A, as: b}], by: [k]}", "a sequence has no end"),
        (SIDE_BY_SIDE, "stand side by side"),
        ("{or: [{event: A}, {event: Asked}]}", "the first has record"),
        ("{iterate: {event: A}, by: [k]}", "iterate needs times and within"),
        ("{latest: {event: A}, by: [k]}", "latest needs order"),
        ("{latest: {event: A}, by: [k], order: w}", "'w' tells no order"),
        ("{latest: {event: A}, by: [w], order: v}", "it has no plain attribute 'w'"),
        ("{aggregate: [{event: A}], by: [k]}", "nothing is computed"),
        ("{aggregate: [{event: A}], by: [k], values: {m: median(it.v)}}", "is no aggregate"),
        ("{aggregate: [{event: A}], by: [k], values: {m: sum(it.k)}}", "sum of string"),
        ("{aggregate: [{event: A}], by: [k], values: {k: sum(it.v)}}", "called as a group"),
        (
            "{aggregate: [{event: A}, {event: A, as: b}], by: [k], values: {m: sum(it.v + b.v)}}",
            "looks at 2 inputs",
        ),
        ("{visits: {event: A}, who: k, place: v}", "visits needs who, place, every and within"),
        (
            "{visits: {event: A}, who: k, place: k, every: 7s, within: 1d, request: Asked}",
            "a day is not a multiple",
        ),
        (
            "{visits: {event: A}, who: k, place: v, every: 1s, within: 1d, request: Asked}",
            "'v' is no string",
        ),
        ("{meetings: {event: A}}", "meetings are found among visits"),
        ("{event: A, times: 3}", "event has no times"),
        ("{event: A, or: [{event: A}]}", "one operator, not event, or"),
        ("{aggregate: [{event: A}], window: {last: 1s, count: 2}}", "a window is one of"),
    ],
)
def test_what_is_wrong_with_a_pattern_is_told(pattern: str, reason: str) -> None:
    assert reason in problems_of(event(pattern))


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("packet: {set: {k: o.k, w: o.k}}", "there is no attribute 'w'"),
        ("packet: {set: {}}", "nothing sets it"),
        ("packet: {set: {k: o.n}}", "string is asked for here"),
        ("packet: {set: {k: o.k}, optional: [w]}", "there is no attribute 'w'"),
        ("packet: {set: {k: o.k}, time: o.k}", "it is string"),
        ("packet: {set: {k: o.k}, filters: [a/#/b]}", "continues after '#'"),
        ("packet: {set: {k: o.k}, when: o.n}", "bool is asked for here"),
        ("request: {set: {k: t.topic}}", "unknown name 't'"),
        ("request: {set: {k: r.subject}}\npacket: {set: {k: o.k}}", "an event has one source"),
    ],
)
def test_what_is_wrong_with_a_primitive_event_is_told(definition: str, reason: str) -> None:
    found = problems_of(f"kind: event\nname: P\nattributes: {{k: string}}\n{definition}\n")
    assert reason in found


def test_all_problems_are_told_at_once() -> None:
    found = problems_of(
        event("{and: [{event: A, as: a, where: a.x}, {event: A, as: b, where: b.y}], by: [k]}")
    )
    assert "'x'" in found
    assert "'y'" in found


def test_events_that_are_made_of_each_other_are_refused() -> None:
    found = problems_of(
        "kind: event\nname: X\nattributes: {k: string}\npattern: {event: Y}\n---\n"
        "kind: event\nname: Y\nattributes: {k: string}\npattern: {event: X}\n"
    )
    assert "refers to itself: X → Y → X" in found


PLAN = """
kind: plan
name: p
situations: [{id: On, level: 1}]
evolutions:
  - {event: A, to: On, actions: [%s]}
---
kind: action
name: ask
event: Asked
topic: asked/{k}
---
kind: action
name: other
event: A2
topic: %s
payload: {v: %s}
---
kind: event
name: A2
attributes: {k: string, v: int}
pattern: {event: A}
---
kind: scenario
name: s
plan: p
attribute: %s
"""


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (("other", "t", "it.v", "k"), "'other' would never publish"),
        (("ask", "t/{v}", "it.v", "k"), "'v' is no string of A2"),
        (("ask", "t/#", "it.v", "k"), "contains a wildcard"),
        (("ask", "t", "it.w", "k"), "has no field 'w'"),
        (("nothing", "t", "it.v", "k"), "there is no action 'nothing'"),
        (("ask", "t", "it.v", "v"), "the event 'A' has no string 'v'"),
    ],
)
def test_what_is_wrong_with_actions_plans_and_scenarios_is_told(
    parts: tuple[str, str, str, str], reason: str
) -> None:
    assert reason in problems_of(PLAN % parts)


@pytest.mark.parametrize(
    ("evolutions", "reason"),
    [
        ("[{event: A, to: On}, {event: A, to: On}]", "have the same source"),
        ("[{event: A, to: Off}]", "there is no situation 'Off'"),
        ("[{event: A}]", "leads from nowhere to nowhere"),
    ],
)
def test_plans_are_well_formed(evolutions: str, reason: str) -> None:
    text = f"kind: plan\nname: p\nsituations: [{{id: On, level: 1}}]\nevolutions: {evolutions}\n"
    assert reason in problems_of(text)


def test_a_scenario_follows_the_users_of_a_group() -> None:
    text = BASE + PLAN % ("ask", "t", "it.v", "k")
    text += "group: patients\n---\nkind: group\nname: patients\nmembers: [user:ann, client:c]\n"
    text += "includes: [ward]\n---\nkind: group\nname: ward\nmembers: [user:bob]\n"
    program = compile_program(DefinitionSet.build(read_text(text).documents).definitions)
    assert program.scenarios["s"].subjects == frozenset({"ann", "bob"})


def test_types_that_look_at_the_same_window_share_it() -> None:
    pattern = "{aggregate: [{event: A}], by: [k], window: {last: 1s}, values: {n: count()}, "
    text = BASE + event(pattern + "where: it.n > 3, set: {k: it.k}}")
    text += "---\n" + event(pattern + "where: it.n < 3, set: {k: it.k}}").replace("E", "F")
    program = compile_program(DefinitionSet.build(read_text(text).documents).definitions)
    assert sum(isinstance(operator, Aggregate) for operator in program.operators) == 1
    assert sum(isinstance(operator, Refine) for operator in program.operators) == 2
