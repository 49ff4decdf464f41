"""A house through ten days, in process: every evolution of both plans is gone along."""

from __future__ import annotations

import pytest

from penstock.errors import DeniedError
from penstock.model.document import Document
from penstock_lab.demo.nursing_home.definitions import (
    make_documents,
    read_people,
    read_rules,
    set_pace,
)
from penstock_lab.generate.nursing_home import House, TimedMessage
from penstock_lab.simulation.in_process import InProcess
from penstock_lab.simulation.nursing_home import SCRIPTED, Simulation, Step

MINUTE = 60_000


def simulate(patients: int, days: int, seed: int) -> Simulation:
    house = House(patients, days, seed, rooms_every=MINUTE)
    people = make_documents(house.people.documents())
    carrier = InProcess(set_pace([*read_rules(), *people], rooms_every=MINUTE))
    simulation = Simulation(house, carrier)
    simulation.run()
    return simulation


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return simulate(20, 10, 1)


@pytest.mark.parametrize("seed", [1, 2])
def test_every_evolution_of_both_figures_is_gone_along(seed: int) -> None:
    transitions = simulate(10, 10, seed).tally.transitions
    assert len(transitions) == 8 + 15  # figures 2 and 5
    assert [step for step, times in transitions.items() if times == 0] == []


@pytest.mark.parametrize("days", [1, 2, 5, 7, 9])
def test_what_fewer_days_are_too_few_for_is_known(days: int) -> None:
    tally = simulate(10, days, 3).tally
    unseen = {step for step, times in tally.transitions.items() if not times}
    assert tally.missing(days) == []
    assert tally.not_yet(days).keys() == unseen  # among the scripted patients, nobody is early
    assert tally.transitions.keys() == SCRIPTED.keys()


def test_the_same_seed_gives_the_same_tally(simulation: Simulation) -> None:
    assert simulate(20, 10, 1).tally.as_dict() == simulation.tally.as_dict()


def test_specialists_are_shown_something_and_not_all(simulation: Simulation) -> None:
    tally = simulation.tally
    readings = sum(it for topic, it in tally.messages.items() if topic.startswith("phys"))
    assert readings == 20 * 10 * 24 * 3
    assert 0 < tally.shown["specialist"] < tally.hidden["specialist"]
    assert tally.shown["specialist"] + tally.hidden["specialist"] == readings


def test_relatives_get_bulletins_while_a_case_is_open(simulation: Simulation) -> None:
    tally = simulation.tally
    assert tally.messages["bulletin"] == 20 * 10
    assert 0 < tally.shown["relative"] < tally.hidden["relative"]
    assert tally.shown["relative"] + tally.hidden["relative"] == 4 * 10


def test_the_first_case_warns_the_others_of_its_group(simulation: Simulation) -> None:
    contact = Step("covid", None, "ContactNotice", "Possible")
    # Five of the first group meet others; the other four keep to their rooms.
    assert simulation.tally.transitions[contact] >= 4
    assert simulation.tally.published["closecontact"] >= 4


def test_a_message_that_is_denied_ends_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(10, 1, 1, rooms_every=MINUTE)
    people = make_documents(house.people.documents())
    simulation = Simulation(house, InProcess([*read_rules(), *people]))
    stray = TimedMessage(house.start, "specialist-1", "result", {"pid": "patient-1"})
    monkeypatch.setattr(house, "messages", lambda: iter([stray]))
    with pytest.raises(DeniedError, match="specialist-1 may not publish to result"):
        simulation.run()


def test_definitions_take_another_pace() -> None:
    by_name = {it.key: it for it in set_pace(read_rules(), speed=86_400, rooms_every=60_000)}

    def pattern(name: str) -> dict[str, object]:
        found: Document = next(it for key, it in by_name.items() if key.name == name)
        body: dict[str, object] = dict(found.body["pattern"])
        return body

    assert pattern("Symptom")["window"] == {"last": "2000ms"}
    assert pattern("VisitedRoom")["every"] == "1ms"
    assert pattern("VisitedRoom")["within"] == "10000ms"
    assert pattern("CloseContact")["where"] == "it.duration > 0.010417"
    InProcess([*by_name.values(), *read_people()])
