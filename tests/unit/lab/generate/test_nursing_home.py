from __future__ import annotations

from itertools import groupby, islice, pairwise

import pytest

from penstock_lab.generate.nursing_home import DAY_MS, HOUR, House, People
from penstock_lab.generate.nursing_home_courses import SCRIPTS, SPREAD, Course, Phase, Signs


def test_the_same_seed_gives_the_same_messages() -> None:
    one, same, other = (House(30, 1, seed, rooms_every=60_000) for seed in (5, 5, 6))
    messages = list(one.messages())
    assert messages == list(same.messages())
    assert messages != list(other.messages())


def test_messages_come_in_order_of_time_with_the_answers_among_them() -> None:
    house = House(20, 2, 1, rooms_every=60_000)
    house.warn("patient-1", 77, house.start)
    house.warn("patient-2", 78, house.start)
    house.warn("a stranger", 79, house.start)
    messages = list(house.messages())
    assert all(before.at <= after.at for before, after in pairwise(messages))
    results = [it for it in messages if it.topic == "result"]
    assert [(it.payload["reqId"], it.payload["result"]) for it in results] == [
        (77, True),
        (78, False),
    ]
    assert results[0].at == house.start + 12 * HOUR


def test_the_infected_are_tested_again_until_they_are_negative() -> None:
    house = House(10, 12, 1, rooms_every=600_000)
    house.warn("patient-3", 5, house.start)
    tests = [it for it in house.messages() if it.topic in {"prescription", "result"}]
    assert [it.topic for it in tests] == [
        "result",
        "prescription",
        "result",
        "prescription",
        "result",
    ]
    outcomes = [it.payload["result"] for it in tests if it.topic == "result"]
    assert outcomes == [True, True, False]
    requests = [it.payload["reqId"] for it in tests]
    assert requests[1] == requests[2] != requests[3] == requests[4]
    assert all(it.user in house.people.treated for it in tests if it.topic == "prescription")


def test_rooms_are_sampled_once_a_second_while_somebody_is_there() -> None:
    house = House(20, 1, 3)
    stays = house.stays(0)
    samples = [it for it in islice(house.messages(), 20_000) if it.topic == "location"]
    by_patient = {
        name: [it.at for it in found]
        for name, found in groupby(
            sorted(samples, key=lambda it: (it.payload["pid"], it.at)),
            key=lambda it: it.payload["pid"],
        )
    }
    assert by_patient
    for name, times in by_patient.items():
        first = next(stay for stay in stays if stay.patient == name)
        assert times[0] == first.first
        until = min(times[-1], first.last - 1000)
        assert times[: (until - first.first) // 1000 + 1] == list(
            range(first.first, until + 1, 1000)
        )


def test_nobody_is_in_two_rooms_and_the_first_group_keeps_to_itself() -> None:
    house = House(60, 3, 9)
    for day in range(3):
        for _, stays in groupby(
            sorted(house.stays(day), key=lambda it: (it.patient, it.first)),
            key=lambda it: it.patient,
        ):
            assert all(before.last <= after.first for before, after in pairwise(stays))
        for stay in house.stays(day):
            first_group = int(stay.patient.rpartition("-")[2]) <= 10
            assert stay.room.endswith("-1") is first_group
            assert house.start + day * DAY_MS <= stay.first < stay.last
            assert not house.course(stay.patient).secluded


@pytest.mark.parametrize(
    ("patients", "staff", "relatives", "specialists"), [(300, 60, 60, 6), (10, 2, 2, 1)]
)
def test_people_are_as_many_as_the_case_study_has(
    patients: int, staff: int, relatives: int, specialists: int
) -> None:
    people = People.settle(patients)
    assert len(people.treated) == staff
    assert len(people.relatives) == relatives
    assert len(people.specialists) == specialists
    for name in people.patients:
        assert sum(name in held for held in people.treated.values()) == 2
    assert len(set(people.publishers())) == len(people.publishers())


def test_signs_come_on_slowly_and_are_the_worst_of_all_phases() -> None:
    ill = Signs(39.0, 20.0, 97.0)
    gasping = Signs(37.0, 36.0, 90.0)
    course = Course((Phase(10, 30, ill, onset=4), Phase(20, 25, gasping)), infected=(5, 15))
    assert course.signs(9).temperature < course.signs(12).temperature < course.signs(14).temperature
    assert course.signs(22) == Signs(39.0, 36.0, 90.0)
    assert course.signs(30) == course.signs(0)
    assert [course.is_infected(hour) for hour in (4, 5, 14, 15)] == [False, True, True, False]


def test_scripted_signs_lie_clear_of_the_thresholds() -> None:
    for course in SCRIPTS:
        for hour in range(24 * 12):
            signs = course.signs(hour)
            # Half a breath more: sensors round.
            for value, spread, thresholds in zip(
                signs,
                (SPREAD.temperature, SPREAD.respiratory + 0.5, SPREAD.saturation),
                ((38.0,), (25.0,), (95.0,)),
                strict=True,
            ):
                assert all(abs(value - it) > spread for it in thresholds)
