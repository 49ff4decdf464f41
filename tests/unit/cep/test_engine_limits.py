"""What happens where a limit is reached: the oldest goes, and it is counted."""

from __future__ import annotations

from penstock.cep.context import EngineLimits
from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program

BASE = """
kind: vocabulary
name: v
object: {k: string}
payload: {v: int}
---
kind: event
name: A
attributes: {k: string, v: int}
packet: {filters: [a], set: {k: o.k, v: t.payload.v}}
---
kind: event
name: B
attributes: {k: string, v: int}
packet: {filters: [b], set: {k: o.k, v: t.payload.v}}
---
kind: event
name: E
attributes: {k: string}
pattern: %s
"""


def start(pattern: str, limits: EngineLimits) -> Engine:
    documents = read_text(BASE % pattern).documents
    return Engine(compile_program(DefinitionSet.build(documents).definitions), limits)


def send(engine: Engine, topic: str, k: str, v: int, at: int) -> list[str]:
    packet = Packet(topic, {"topic": topic, "payload": {"v": v}}, {}, {"k": k})
    return [name for name, _ in engine.prepare(packet, at).commit().detected]


def test_groups_of_an_aggregate() -> None:
    engine = start(
        "{aggregate: [{event: A}], by: [k], window: {last: 1h}, values: {n: count()}, "
        "where: it.n >= 2, set: {k: it.k}}",
        EngineLimits(keys=2),
    )
    for k in ("one", "two", "three"):
        send(engine, "a", k, 1, 1000)
    assert engine.counts == {"dropped_groups": 1}
    assert send(engine, "a", "three", 1, 1001) == ["A", "E"]
    assert send(engine, "a", "one", 1, 1002) == ["A"]


def test_values_of_an_aggregate() -> None:
    engine = start(
        "{aggregate: [{event: A}], by: [k], window: {last: 9h}, values: {n: max(it.v)}, "
        "where: it.n >= 2000, set: {k: it.k}}",
        EngineLimits(samples=100),
    )
    # Each is less than the one before, so that all could still become the greatest.
    for v in range(1024):
        send(engine, "a", "x", 3000 - v, 1000 + v)
    assert engine.counts == {"dropped_samples": 924}
    assert send(engine, "a", "x", 0, 5000) == ["A", "E"]


def test_groups_of_latest_and_of_iterate() -> None:
    for pattern in (
        "{latest: {event: A}, by: [k], order: v, set: {k: it.k}}",
        "{iterate: {event: A}, by: [k], times: 2, within: 1h, set: {k: it.k}}",
        "{and: [{event: A, window: {last: 1h}}], by: [k]}",
    ):
        engine = start(pattern, EngineLimits(keys=2))
        for k in ("one", "two", "three"):
            send(engine, "a", k, 1, 1000)
        assert engine.counts == {"dropped_groups": 1}


def test_rows_and_matches_of_a_join() -> None:
    pattern = "{and: [{event: A, as: a, window: {last: 1h}}, {event: B, window: {last: 1h}}], "
    engine = start(pattern + "by: [k]}", EngineLimits(rows=3))
    for v in range(5):
        send(engine, "a", "x", v, 1000 + v)
    assert engine.counts == {"dropped_rows": 2}
    assert send(engine, "b", "x", 0, 2000).count("E") == 3
    engine = start(pattern + "by: [k]}", EngineLimits(matches=2))
    for v in range(5):
        send(engine, "a", "x", v, 1000 + v)
    assert send(engine, "b", "x", 0, 2000).count("E") == 2
    assert engine.counts["dropped_matches"] == 1


def test_remembered_topics() -> None:
    engine = start("{event: A, set: {k: it.k}}", EngineLimits(topics=1))
    assert send(engine, "a", "x", 1, 1) == ["A", "E"]
    assert send(engine, "b", "x", 1, 1) == ["B"]
    assert send(engine, "a", "x", 1, 1) == ["A", "E"]


def test_state_outlives_a_change_of_other_definitions() -> None:
    engine = start(
        "{iterate: {event: A}, by: [k], times: 3, within: 1h, set: {k: it.k}}", EngineLimits()
    )
    send(engine, "a", "x", 1, 1000)
    send(engine, "a", "x", 1, 1001)
    saved = engine.save()
    more = "\n---\nkind: event\nname: F\nattributes: {k: string, v: int}\npattern: {event: B}\n"
    text = BASE % "{iterate: {event: A}, by: [k], times: 3, within: 1h, set: {k: it.k}}" + more
    changed = compile_program(DefinitionSet.build(read_text(text).documents).definitions)
    assert send(Engine.load(changed, saved), "a", "x", 1, 1002) == ["A", "E"]
    text = text.replace("times: 3", "times: 4")
    changed = compile_program(DefinitionSet.build(read_text(text).documents).definitions)
    assert send(Engine.load(changed, saved), "a", "x", 1, 1002) == ["A"]
