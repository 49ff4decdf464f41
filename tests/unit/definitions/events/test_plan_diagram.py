from __future__ import annotations

from itertools import combinations, pairwise
from xml.etree import ElementTree as ET

import pytest

from penstock.definitions import DefinitionSet
from penstock.definitions.events.plan_diagram import draw_plan, lay_out
from penstock.model.kinds import Plan
from penstock_lab.demo.nursing_home.definitions import read_people, read_rules

SVG = "{http://www.w3.org/2000/svg}"
PLANS = DefinitionSet.build([*read_rules(), *read_people()]).of(Plan)
NAMES = sorted(PLANS)


def make_plan(name: str, evolutions: list[dict[str, str]], situations: list[str]) -> Plan:
    return Plan.model_validate(
        {
            "name": name,
            "description": 'Steps & <more> "steps".',
            "situations": [{"id": it, "level": at} for at, it in enumerate(situations, 1)],
            "evolutions": evolutions,
        }
    )


def parse(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - our own text


def texts(root: ET.Element, kind: str) -> list[str]:
    return [it.text or "" for it in root.iter(f"{SVG}text") if it.get("class") == kind]


@pytest.mark.parametrize("name", NAMES)
def test_a_diagram_names_every_situation_and_every_evolution(name: str) -> None:
    plan = PLANS[name]
    root = parse(draw_plan(plan))
    assert texts(root, "title") == [name]
    assert sorted(texts(root, "name")) == sorted(["⊥", *(it.id for it in plan.situations)])
    assert sorted(texts(root, "label")) == sorted(it.cause for it in plan.evolutions)
    told = {it.text for it in root.iter(f"{SVG}title")}
    for it in plan.evolutions:
        start = f"{it.event}: {it.source or 'inactive'} → {it.target or 'inactive'}"
        assert any(text is not None and text.startswith(start) for text in told)
    assert len([it for it in root.iter(f"{SVG}path") if it.get("class") == "arrow"]) == len(
        plan.evolutions
    )


@pytest.mark.parametrize("name", NAMES)
def test_arrows_never_share_a_piece_of_a_lane_and_labels_fit_in(name: str) -> None:
    layout = lay_out(PLANS[name])
    for one, other in combinations(layout.arrows, 2):
        if (one.rises, one.lane) == (other.rises, other.lane):
            (low, high), (begin, end) = one.reach(), other.reach()
            assert high <= begin or end <= low
    ports = [
        x for arrow in layout.arrows for x in ((arrow.start, arrow.rises), (arrow.end, arrow.rises))
    ]
    assert len(set(ports)) == len(ports)
    for arrow in layout.arrows:
        assert min(arrow.start, arrow.end) <= arrow.label <= max(arrow.start, arrow.end)
        assert 0 < arrow.y < layout.height
    for left, right in pairwise(layout.boxes):
        assert left.x + left.width < right.x
    assert all(box.x + box.width < layout.width for box in layout.boxes)


def test_boxes_stand_by_level_with_inactive_first() -> None:
    boxes = lay_out(PLANS["covid-19"]).boxes
    assert [box.situation for box in sorted(boxes, key=lambda it: it.x)] == [
        None,
        "Possible",
        "Suspected",
        "Asymptomatic",
        "Symptomatic",
        "Severe",
    ]


def test_occupied_situations_are_marked_with_numbers() -> None:
    root = parse(draw_plan(PLANS["covid-19"], {"Severe": 1200}))
    marked = [it for it in root.iter(f"{SVG}g") if it.get("class") == "here"]
    assert [texts(it, "name") for it in marked] == [["Severe"]]
    assert texts(marked[0], "level") == ["level 5 · 1,200 here"]
    assert 'class="here"' not in draw_plan(PLANS["covid-19"])


def test_loops_and_strange_texts_are_drawn() -> None:
    plan = make_plan(
        "a/b",
        [
            {"event": "Again", "from": "Only", "to": "Only"},
            {"event": "In", "to": "Only"},
            {"event": "Out", "from": "Only"},
        ],
        ["Only"],
    )
    root = parse(draw_plan(plan))
    assert sorted(texts(root, "label")) == ["Again", "In", "Out"]
    assert texts(root, "soft") == ['Steps & <more> "steps".']
