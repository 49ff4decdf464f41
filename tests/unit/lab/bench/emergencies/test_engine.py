from __future__ import annotations

import random

from penstock.cep.engine import Engine
from penstock_lab.bench.emergencies import contacts, engine


def test_every_packet_of_the_benchmark_is_an_event() -> None:
    detector = Engine(engine.load_program())
    seen: set[str] = set()
    for packet in engine._packets(random.Random(1), engine.START, engine.MIXES["all"]):
        outcome = detector.prepare(packet, engine.START).commit()
        assert outcome.detected
        seen |= {name for name, _ in outcome.detected}
    assert {"Location", "Temperature", "RespiratoryRate", "EstimatedSpO2", "NoSymptom"} <= seen


def test_a_minute_of_samples_is_one_stay_each() -> None:
    (presence,) = Engine(engine.load_program()).presences
    names = [f"patient-{number}" for number in range(contacts.PATIENTS)]
    rooms = [f"room-{number % contacts.ROOMS}" for number in range(contacts.PATIENTS)]
    contacts._move(random.Random(1), rooms, contacts.MEALS[0], 0)
    assert set(rooms) == {"dining-room"}
    contacts._sample_first(presence, names, rooms, contacts.START)
    contacts._sample_rest(presence, names, rooms, contacts.START)
    now = contacts.START + 60_000
    assert [stay.last - stay.first for stay in presence.visits("patient-0", now)] == [59]
    assert len(presence.meetings("patient-0", now)) == contacts.PATIENTS - 1
