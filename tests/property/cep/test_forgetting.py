"""A person's events forgotten: the engine goes on as one that never knew them.

The reference is an engine that got the packets of everybody else alone, at the same times. From
the moment on at which one forgets, both detect the same. The patterns are those of all operators
(`test_algebra`), in groups by person; where people have to do with each other, nothing of the
state may name the person any more.
"""

from __future__ import annotations

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cep.context import decode_snapshot
from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from tests.property.cep.test_algebra import PROGRAM, collect
from tests.support.nursing_home.program import (
    PATIENTS,
    START,
    draw_message,
    draw_outbreak,
    load_program,
    make_packet,
)
from tests.support.scale import scaled

steps = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["x", "y"]),
        st.integers(0, 3),
        st.sampled_from([0, 0, 1, 500, 2_500, 5_000, 10_000]),
        st.sampled_from([0, 0, 0, -1_000, -4_999]),
        st.booleans(),
    ),
    max_size=40,
)


@settings(max_examples=scaled(250), deadline=None)
@given(steps, st.integers(0, 40))
def test_what_is_forgotten_was_never_there(
    given_steps: list[tuple[str, str, int, int, int, bool]], when: int
) -> None:
    engine, other = Engine(PROGRAM), Engine(PROGRAM)
    clock = 1_000_000
    for number, (topic, k, v, passing, skew, again) in enumerate(given_steps):
        if number == when:
            engine.forget(["x"], ["k"])
            assert '"x"' not in json.dumps(decode_snapshot(engine.save())["nodes"])
            if again:
                engine = Engine.load(PROGRAM, engine.save())
        clock += passing
        payload = {"v": v, "at": clock + skew}
        packet = Packet(topic, {"topic": topic, "payload": payload}, {}, {"k": k})
        found = collect(engine.advance(clock)) + collect(engine.prepare(packet, clock).commit())
        expected = collect(other.advance(clock))
        if k != "x" or number >= when:
            expected += collect(other.prepare(packet, clock).commit())
        if number >= when:
            assert found == expected


def test_where_people_meet_nobody_is_named_any_more() -> None:
    draw, program, gone = random.Random(7), load_program(), PATIENTS[0]
    engine, at, forgotten = Engine(program), START, 0
    for _ in range(scaled(6)):
        for word, payload, moment in draw_outbreak(draw, at):
            at = max(at, moment)
            engine.prepare(make_packet(word, payload, moment), at).commit()
        for _ in range(100):
            at += draw.randrange(60_000)
            engine.prepare(make_packet(*draw_message(draw, []), at), at).commit()
        before = decode_snapshot(engine.save())
        forgotten += engine.forget([gone], [])[gone]
        after = decode_snapshot(engine.save())
        assert f'"{gone}"' not in json.dumps(after["nodes"])
        # A case ends by what happens, and by nothing that is forgotten.
        assert after["scenarios"] == before["scenarios"]
        for pid in PATIENTS[1:]:
            still = f'"{pid}"' in json.dumps(after["nodes"])
            assert still == (f'"{pid}"' in json.dumps(before["nodes"]))
        loaded = Engine.load(program, engine.save())
        for pid in PATIENTS:
            for mine, theirs in zip(engine.presences, loaded.presences, strict=True):
                days = [(day, sorted(them)) for day, them in mine.contacts(pid, at)]
                assert days == [(day, sorted(them)) for day, them in theirs.contacts(pid, at)]
                assert gone not in {who for _, them in days for who, _ in them}
        engine = loaded
    assert forgotten > 0


DISTINCT = """
kind: vocabulary
name: test
object: {room: string, pid: string}
---
kind: event
name: Seen
attributes: {room: string, pid: string}
packet: {filters: [seen], set: {room: o.room, pid: o.pid}}
---
kind: event
name: Crowd
attributes: {room: string, people: int, first: string, last: string}
pattern: {aggregate: [{event: Seen}], by: [room], window: {last: 10s},
          values: {people: distinct(it.pid), first: first(it.pid), last: last(it.pid)}}
"""


def test_a_person_is_taken_out_of_what_others_are_counted_in() -> None:
    program = compile_program(DefinitionSet.build(read_text(DISTINCT).documents).definitions)
    engine = Engine(program)

    def see(room: str, pid: str, at: int) -> dict[str, object]:
        packet = Packet("seen", {"topic": "seen"}, {}, {"room": room, "pid": pid})
        (row,) = [
            it for name, it in engine.prepare(packet, at).commit().detected if name == "Crowd"
        ]
        return row.values

    see("hall", "ann", 1_000)
    # A room that is called as the person is stays: a text elsewhere says nothing.
    see("ann", "bob", 1_000)
    see("hall", "bob", 1_001)
    assert engine.forget(["ann", "nobody"], ["pid"]) == {"ann": 1}
    assert see("hall", "cid", 1_002) == {
        "room": "hall", "people": 2, "first": "bob", "last": "cid",
    }  # fmt: skip
    assert see("ann", "cid", 1_003)["people"] == 2
    assert not engine.forget(["ann"], ["pid"])
