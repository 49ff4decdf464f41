"""The demonstration of the police: three organisations, one broker, and what each can read."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock_lab.demo import police
from penstock_lab.demo.story import Story

pytestmark = pytest.mark.needs("mosquitto")


def test_the_story_holds() -> None:
    told = io.StringIO()
    story = Story(Console(file=told, width=120))
    police.run(story)
    assert story.checked == 8
    text = " ".join(told.getvalue().split())
    assert "smith │ numberplate=AB12 CDE, location=gate 3" in text
    assert "jones │ nothing" in text
