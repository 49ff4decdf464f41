"""The car-sharing demonstration: it tells the truth, and notices when it would not."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from penstock_lab.demo import car_sharing
from penstock_lab.demo.story import DemoFailedError, Story

pytestmark = pytest.mark.needs("mosquitto")
EXAMPLE = Path(__file__).parents[3] / "examples" / "car-sharing" / "definitions.yaml"


def test_the_story_holds() -> None:
    told = io.StringIO()
    story = Story(Console(file=told, width=120))
    car_sharing.run(story)
    assert story.checked == 13
    text = " ".join(told.getvalue().split())
    assert "statistics receives vehicle2342/location/city" in text
    assert "for the purpose 'marketing/individualized' was refused: " in text


def test_a_gateway_with_other_rules_fails_the_story(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = "description: Closed until somebody allows a purpose."
    text = car_sharing.definitions_text()
    assert closed in text
    opened = text.replace(closed, "allow: [marketing/statistics]")
    monkeypatch.setattr(car_sharing, "definitions_text", lambda: opened)
    with pytest.raises(DemoFailedError, match=r"statistics receives .* expected"):
        car_sharing.run(Story(Console(file=io.StringIO(), width=120)))


def test_the_example_has_the_definitions_of_the_demonstration() -> None:
    assert EXAMPLE.read_text() == car_sharing.definitions_text()
