from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from penstock.cep import steps
from penstock.cep.context import EngineLimits, StateError, decode_snapshot, encode_snapshot
from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.cep.steps import TransitionCause
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from penstock.errors import UsageError
from tests.support.nursing_home.program import START, draw_message, load_program, make_packet

HOUR = 3_600_000
DAY = 24 * HOUR
NURSING_HOME = load_program()


def held_until(engine: Engine, subject: str) -> int | None:
    return engine._instances.require("s").held.get(subject)


def offer(engine: Engine, word: str, at: int, **payload: object) -> list[tuple[object, ...]]:
    """Publish and let actions re-enter; return the transitions."""
    waiting = [(word, dict(payload))]
    found: list[tuple[object, ...]] = []
    while waiting:
        outcome = engine.prepare(make_packet(*waiting.pop(0), at), at).commit()
        found += [(it.scenario, it.subject, it.source, it.target) for it in outcome.transitions]
        waiting += [(it.topic, dict(it.payload)) for it in outcome.publications]
    return found


def test_a_case_from_the_first_symptom_to_the_last_test() -> None:
    engine = Engine(NURSING_HOME)
    for second in range(1000):
        for pid, room in (("ann", "hall"), ("bob", "hall"), ("cid", f"room-{second // 500}")):
            offer(engine, "location", START + second * 1000, pid=pid, location=room)
    at = START + HOUR
    assert offer(engine, "temperature", at, pid="ann", temperature=38.5) == [
        ("covid", "ann", None, "Suspected"),
        ("covid", "bob", None, "Possible"),
    ]
    stale = {"pid": "ann", "testDate": "2027-01-15T10:00:00Z", "reqId": 5, "result": False}
    assert offer(engine, "result", at + 1, **stale) == []
    assert engine.current("covid", "ann") == "Suspected"
    answer = stale | {"reqId": at, "result": True, "testDate": "2027-01-16T10:00:00Z"}
    assert offer(engine, "result", at + HOUR, **answer) == [
        ("covid", "ann", "Suspected", "Symptomatic")
    ]
    assert offer(engine, "respiratory", at + 2 * HOUR, pid="ann", respiratory=35) == [
        ("covid", "ann", "Symptomatic", "Severe"),
        ("pulmonary", "ann", None, "Dyspnea"),
    ]
    for word, value in (("temperature", 37), ("respiratory", 15), ("saturation", 97)):
        offer(engine, word, at + 40 * HOUR, pid="ann", **{word: value})
    assert engine.next_timer() is not None
    outcome = engine.advance(at + 60 * HOUR)
    assert [(it.source, it.target, it.at - at) for it in outcome.transitions] == [
        ("Severe", "Symptomatic", 50 * HOUR),
        ("Symptomatic", "Asymptomatic", 50 * HOUR),
        ("Dyspnea", None, 50 * HOUR),
    ]
    answer |= {"result": False, "testDate": "2027-01-20T10:00:00Z"}
    assert offer(engine, "result", at + 61 * HOUR, **answer) == [
        ("covid", "ann", "Asymptomatic", None)
    ]
    assert engine.current("covid", "bob") == "Possible"


def test_contacts_of_exactly_900_seconds_are_not_close() -> None:
    for seconds, expected in ((900, None), (901, "Possible")):
        engine = Engine(NURSING_HOME)
        for second in range(seconds):
            for pid in ("ann", "bob"):
                offer(engine, "location", START + second * 1000, pid=pid, location="hall")
        offer(engine, "temperature", START + HOUR, pid="ann", temperature=39)
        assert engine.current("covid", "bob") == expected


def test_contacts_are_looked_up_where_an_action_needs_them() -> None:
    engine = Engine(NURSING_HOME)
    for second in range(1000):
        for pid in ("ann", "bob"):
            offer(engine, "location", START + second * 1000, pid=pid, location="hall")
    at = START + HOUR
    told = engine.prepare(make_packet("closecontact", {"pid": "ann"}, at), at).commit()
    assert [it.target for it in told.transitions] == ["Possible"]
    assert "CloseContact" not in dict(told.detected)
    fever = make_packet("temperature", {"pid": "bob", "temperature": 39}, at)
    assert "CloseContact" in dict(engine.prepare(fever, at).commit().detected)


def test_a_negative_result_of_an_earlier_request_does_not_close_a_newer_case() -> None:
    engine = Engine(NURSING_HOME)
    offer(engine, "closecontact", START, pid="ann")
    result = {"pid": "ann", "testDate": "2027-01-15T10:00:00Z", "reqId": START, "result": False}
    assert offer(engine, "result", START + 1, **result) == [("covid", "ann", "Possible", None)]
    offer(engine, "closecontact", START + 2, pid="ann")
    late = result | {"testDate": "2027-01-16T10:00:00Z"}
    assert offer(engine, "result", START + 3, **late) == []
    late |= {"reqId": START + 2, "testDate": "2027-01-17T10:00:00Z"}
    assert offer(engine, "result", START + 4, **late) == [("covid", "ann", "Possible", None)]


def test_a_dropped_packet_leaves_no_trace() -> None:
    draw = random.Random(1)
    engine, other = Engine(NURSING_HOME), Engine(NURSING_HOME)
    for number in range(500):
        at = START + number * 600_000
        packet = make_packet(*draw_message(draw, []), at)
        engine.prepare(make_packet(*draw_message(draw, []), at + HOUR), at + HOUR)
        engine.prepare(packet, at).commit()
        other.prepare(packet, at).commit()
    assert engine.save() == other.save()


def test_a_snapshot_and_the_records_since_give_the_state_that_was_lost() -> None:
    draw = random.Random(2)
    engine = Engine(NURSING_HOME)
    saved = engine.save()
    log: list[bytes] = []
    for number in range(1500):
        at = START + number * 900_000
        if number % 400 == 399:
            saved, log = engine.save(), []
        if number % 7 == 6:
            engine.advance(at)
            log.append(steps.record_time(at))
        if number % 100 == 50:
            engine.set_situation("covid", "patient-1", "Severe", at)
            log.append(steps.record_set("covid", "patient-1", "Severe", at))
        prepared = engine.prepare(make_packet(*draw_message(draw, [at - HOUR]), at), at)
        prepared.commit()
        log.append(prepared.record())
    repeated = Engine.load(NURSING_HOME, saved)
    for record in log:
        repeated.replay(record)
    assert repeated.save() == engine.save()


def test_damaged_state_is_refused() -> None:
    with pytest.raises(StateError, match="damaged"):
        Engine.load(NURSING_HOME, b"nonsense")
    with pytest.raises(StateError, match="not JSON"):
        Engine(NURSING_HOME).replay(b"{")
    with pytest.raises(StateError, match="another format"):
        Engine(NURSING_HOME).replay(b"{}")


SIMPLE = """
kind: vocabulary
name: v
object: {k: string}
payload: {v: int, at: int, id: string}
---
kind: event
name: A
attributes: {k: string, v: int}
packet: {filters: [a], set: {k: o.k, v: t.payload.v}, time: t.payload.at, lateness: 5s,
         id: t.payload.id}
---
kind: event
name: Ping
attributes: {k: string, v: int}
packet: {filters: [ping/#], set: {k: o.k, v: t.payload.v}, optional: [v]}
---
kind: event
name: High
attributes: {k: string, v: int}
pattern: {event: A, where: it.v > 9}
---
kind: event
name: Asked
attributes: {k: string, scenario: string, at: int}
request: {set: {k: r.subject, scenario: r.scenario, at: r.at}}
---
kind: action
name: tell
event: Asked
topic: told/{k}
payload: {when: it.at, what: it.scenario}
---
kind: plan
name: p
situations: [{id: On, level: 1}]
evolutions:
  - {event: High, to: On, actions: [tell]}
  - {event: Ping, from: On}
---
kind: scenario
name: s
plan: p
attribute: k
subjects: [x, y/z]
"""
PROGRAM = compile_program(DefinitionSet.build(read_text(SIMPLE).documents).definitions)


def send(
    engine: Engine,
    at: int,
    v: int = 10,
    *,
    k: str = "x",
    happened: int | None = None,
    own: str = "",
    packet_id: str | None = None,
) -> int:
    payload = {"v": v, "at": at if happened is None else happened, "id": own or f"{at}-{v}"}
    packet = Packet("a", {"topic": "a", "payload": payload}, {}, {"k": k}, {}, packet_id)
    return len(engine.prepare(packet, at).commit().detected)


def test_late_events_count_up_to_the_allowed_lateness() -> None:
    engine = Engine(PROGRAM)
    assert send(engine, 100_000, 1) == 1
    assert send(engine, 100_000, 2, happened=95_000) == 1
    assert send(engine, 100_000, 3, happened=94_999) == 0
    assert engine.counts == {"late": 1}


def test_events_ahead_of_time_happen_now() -> None:
    engine = Engine(PROGRAM)
    assert send(engine, 100_000, 1, happened=200_000) == 1
    assert engine.now == 100_000
    assert engine.counts == {"ahead": 1}


def test_events_far_ahead_of_time_do_not_come_about() -> None:
    engine = Engine(PROGRAM)
    assert send(engine, 100_000, 1, happened=100_000 + DAY) == 1
    assert send(engine, 100_000, 2, happened=100_001 + DAY, own="far") == 0
    assert send(engine, 100_000, 3, happened=2**63 - 1) == 0
    # What was refused has used up no identifier.
    assert send(engine, 100_000, 2, own="far") == 1
    assert engine.now == 100_000
    assert engine.counts == {"ahead": 1, "far_ahead": 2}


def test_how_far_ahead_events_may_be_changes_no_name_of_saved_state() -> None:
    changed = SIMPLE.replace("lateness: 5s", "lateness: 5s, ahead: 1m")
    program = compile_program(DefinitionSet.build(read_text(changed).documents).definitions)
    assert [it.text for it in program.operators] == [it.text for it in PROGRAM.operators]
    assert send(Engine(program), 100_000, 1, happened=160_001) == 0


AGO = """
kind: vocabulary
name: v
payload: {at: timestamp}
---
kind: event
name: Told
attributes: {}
packet: {filters: [a], set: {}, time: %s, lateness: 1h}
"""


@pytest.mark.parametrize(
    ("time", "payload"),
    [
        ("t.payload.at", {"at": datetime(2027, 1, 15, 10, 59, tzinfo=UTC)}),
        ("e.time - duration('60s')", {}),
    ],
)
def test_times_that_events_tell_are_moved_to_a_clock_that_is_ahead(
    time: str, payload: dict[str, datetime]
) -> None:
    documents = read_text(AGO % time).documents
    engine = Engine(compile_program(DefinitionSet.build(documents).definitions))
    wall = datetime(2027, 1, 15, 11, tzinfo=UTC)
    for ahead in (0, 5 * HOUR):
        moment = wall + timedelta(milliseconds=ahead)
        now = round(moment.timestamp() * 1000)
        packet = Packet("a", {"topic": "a", "payload": payload}, e={"time": moment}, ahead=ahead)
        ((_, row),) = engine.prepare(packet, now).commit().detected
        assert row.at == now - 60_000
    assert engine.counts == {}


def test_repeated_events_and_packets_change_nothing() -> None:
    engine = Engine(PROGRAM)
    assert send(engine, 100_000, 1, own="one") == 1
    assert send(engine, 100_001, 1, own="one") == 0
    assert send(engine, 100_002, 1, packet_id="client/7") == 1
    assert send(engine, 100_003, 2, packet_id="client/7") == 0
    assert engine.counts == {"duplicates": 2}


def test_identifiers_are_remembered_up_to_a_limit() -> None:
    engine = Engine(PROGRAM, EngineLimits(ids=2))
    for own in ("one", "two", "three"):
        send(engine, 100_000, own=own)
    assert send(engine, 100_000, own="one") == 2


def test_time_never_goes_back() -> None:
    engine = Engine(PROGRAM)
    engine.advance(100_000)
    outcome = engine.advance(50_000)
    assert outcome.at == engine.now == 100_000
    assert engine.counts == {"clock_back": 1}


def test_incomplete_events_do_not_come_about() -> None:
    engine = Engine(PROGRAM)
    packet = Packet("a", {"topic": "a", "payload": {"v": "text", "at": 1, "id": "i"}})
    assert engine.prepare(packet, 100_000).commit().detected == []
    assert engine.counts == {"incomplete": 1}
    ping = Packet("ping/me", {"topic": "ping/me", "payload": {}}, {}, {"k": "x"})
    assert [name for name, _ in engine.prepare(ping, 100_000).commit().detected] == ["Ping"]


def test_actions_publish_what_requests_bring_about() -> None:
    engine = Engine(PROGRAM)
    packet = Packet(
        "a", {"topic": "a", "payload": {"v": 10, "at": 5, "id": "i"}}, {}, {"k": "x"}, {}, None, 3
    )
    outcome = engine.prepare(packet, 5).commit()
    (told,) = outcome.publications
    assert (told.topic, told.payload, told.depth) == ("told/x", {"when": 5, "what": "s"}, 4)
    assert [name for name, _ in outcome.detected] == ["A", "High", "Asked"]


def test_a_topic_takes_no_further_levels_from_an_event() -> None:
    engine = Engine(PROGRAM)
    packet = Packet("a", {"topic": "a", "payload": {"v": 10, "at": 5, "id": "i"}}, {}, {"k": "y/z"})
    outcome = engine.prepare(packet, 5).commit()
    assert not outcome.publications
    assert engine.counts == {"refused_topics": 1}


def test_only_its_subjects_are_in_a_scenario() -> None:
    engine = Engine(PROGRAM)
    send(engine, 5, k="somebody")
    assert engine.current("s", "somebody") is None
    assert list(engine.situations()) == []
    assert engine.current("no such scenario", "x") is None


def test_a_situation_can_be_set_by_hand() -> None:
    engine = Engine(PROGRAM)
    (entered,) = engine.set_situation("s", "x", "On", 7).transitions
    assert (entered.source, entered.target, entered.event) == (None, "On", None)
    assert list(engine.situations()) == [("s", "x", "On", 7)]
    (left,) = engine.set_situation("s", "x", None, 8).transitions
    assert (left.source, left.target) == ("On", None)
    for scenario, subject, situation, reason in (
        ("t", "x", "On", "no scenario 't'"),
        ("s", "somebody", "On", "is not a subject"),
        ("s", "x", "Off", "no situation 'Off'"),
    ):
        with pytest.raises(UsageError, match=reason):
            engine.set_situation(scenario, subject, situation, 9)


def test_who_is_held_by_hand_is_moved_by_no_event_and_ends_when_the_time_is_over() -> None:
    engine = Engine(PROGRAM)
    ping = Packet("ping/me", {"topic": "ping/me", "payload": {}}, {}, {"k": "x"})
    engine.set_situation("s", "x", "On", 1000, 60_000)
    assert (engine.next_deadline(), engine.next_timer()) == (61_000, 61_000)
    told = engine.prepare(ping, 60_999).commit()
    assert [name for name, _ in told.detected] == ["Ping"]
    assert list(told.transitions) == []
    engine = Engine.load(PROGRAM, engine.save())
    assert held_until(engine, "x") == engine.next_deadline() == 61_000
    (ended,) = engine.prepare(ping, 70_000).commit().transitions
    assert (ended.source, ended.target, ended.at, ended.cause) == (
        "On",
        None,
        61_000,
        TransitionCause.TIME,
    )
    assert held_until(engine, "x") is None
    engine.set_situation("s", "x", "On", 80_000, 60_000)
    (ended,) = engine.set_situation("s", "x", None, 90_000).transitions
    assert ended.cause is TransitionCause.HAND
    engine.set_situation("s", "x", "On", 100_000)
    assert list(engine.advance(140_000).transitions) == []
    (ended,) = engine.prepare(ping, 140_001).commit().transitions
    assert ended.cause is TransitionCause.EVENT


@pytest.mark.parametrize(
    ("situation", "hold", "reason"),
    [(None, 1, "cannot be held"), ("On", -1, "'-1 ms'"), ("On", 7 * 24 * HOUR + 1, "ms'")],
)
def test_what_cannot_be_held_is_refused(situation: str | None, hold: int, reason: str) -> None:
    engine = Engine(PROGRAM)
    engine.set_situation("s", "x", "On", 1)
    with pytest.raises(UsageError, match=reason):
        engine.set_situation("s", "x", situation, 2, hold)
    assert engine.current("s", "x") == "On"


def test_a_snapshot_of_an_earlier_version_holds_nobody() -> None:
    engine = Engine(PROGRAM)
    engine.set_situation("s", "x", "On", 1)
    state = decode_snapshot(engine.save())
    del state["held"]
    older = Engine.load(PROGRAM, encode_snapshot(state))
    assert older.save() == engine.save()


def test_a_packet_takes_effect_once() -> None:
    prepared = Engine(PROGRAM).prepare(Packet("a", {"topic": "a"}), 1)
    prepared.commit()
    with pytest.raises(UsageError, match="already"):
        prepared.commit()


def test_active_subjects_are_limited_and_who_is_dropped_is_told() -> None:
    engine = Engine(NURSING_HOME, EngineLimits(subjects=2))
    for number in range(2):
        offer(engine, "closecontact", START, pid=f"p-{number}")
    contact = make_packet("closecontact", {"pid": "p-2"}, START)
    entered, dropped = engine.prepare(contact, START).commit().transitions
    assert (entered.subject, entered.target, entered.cause) == (
        "p-2",
        "Possible",
        TransitionCause.EVENT,
    )
    assert (dropped.subject, dropped.source, dropped.target) == ("p-0", "Possible", None)
    assert (dropped.at, dropped.event, dropped.cause) == (START, None, TransitionCause.LIMIT)
    assert engine.current("covid", "p-0") is None
    assert engine.current("covid", "p-2") == "Possible"
    assert engine.counts == {"dropped_subjects": 1}
    by_hand, dropped = engine.set_situation("covid", "p-3", "Severe", START).transitions
    assert (by_hand.cause, dropped.cause, dropped.subject) == (
        TransitionCause.HAND,
        TransitionCause.LIMIT,
        "p-1",
    )


ENDLESS = """
kind: plan
name: endless
situations: [{id: On, level: 1}, {id: Off, level: 1}]
evolutions:
  - {event: High, to: On, actions: [tell]}
  - {event: Asked, from: On, to: Off, actions: [tell]}
  - {event: Asked, from: Off, to: On, actions: [tell]}
---
kind: scenario
name: endless
plan: endless
attribute: k
"""


def test_requests_that_bring_about_each_other_come_to_an_end() -> None:
    documents = read_text(SIMPLE + "---\n" + ENDLESS).documents
    program = compile_program(DefinitionSet.build(documents).definitions)
    engine = Engine(program, EngineLimits(rounds=5))
    packet = Packet("a", {"topic": "a", "payload": {"v": 10, "at": 5, "id": "i"}}, {}, {"k": "x"})
    outcome = engine.prepare(packet, 5).commit()
    assert engine.counts == {"rounds": 1}
    assert [it.target for it in outcome.transitions if it.scenario == "endless"][:3] == [
        "On",
        "Off",
        "On",
    ]


WINDOW = """
kind: vocabulary
name: v
object: {k: string}
payload: {v: double}
---
kind: event
name: A
attributes: {k: string, v: double}
packet: {filters: [a], set: {k: o.k, v: t.payload.v}}
"""
ABOVE = """
---
kind: event
name: %s
attributes: {k: string}
pattern: {aggregate: [{event: A}], by: [k], window: {last: 1h}, values: {high: max(it.v)},
          where: it.high > %s, set: {k: it.k}}
"""


def test_what_a_window_knows_outlives_conditions_that_come_and_go() -> None:
    def load(**levels: float) -> Engine:
        text = WINDOW + "".join(ABOVE % (name, level) for name, level in levels.items())
        documents = read_text(text).documents
        return Engine(compile_program(DefinitionSet.build(documents).definitions))

    def offer(engine: Engine, value: float, at: int) -> list[str]:
        message = {"topic": "a", "payload": {"v": value}}
        outcome = engine.prepare(Packet("a", message, {}, {"k": "ann"}, {}), at).commit()
        return [name for name, _ in outcome.detected]

    engine = load(Hot=38.0, Low=30.0)
    assert offer(engine, 40.0, START) == ["A", "Hot", "Low"]
    # Another name comes first now, one condition is gone, and two are new.
    later = load(Boiling=39.0, Warm=38.0, Cooking=90.0).program
    engine = Engine.load(later, engine.save())
    # What is new holds without a further event, and is raised at once; what held is not.
    outcome = engine.advance(START + 1000)
    assert [name for name, _ in outcome.detected] == ["Boiling"]
    assert offer(engine, 20.0, START + 2000) == ["A", "Boiling", "Warm"]
    assert offer(engine, 20.0, START + HOUR + 2000) == ["A"]
