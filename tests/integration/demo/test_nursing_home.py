"""The nursing home's demonstration: it tells the truth, and notices when it would not."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.model.document import Document
from penstock_lab.demo.nursing_home import story as nursing_home
from penstock_lab.demo.nursing_home.definitions import read_rules
from penstock_lab.demo.story import DemoFailedError, Story

pytestmark = pytest.mark.needs("mosquitto")


def test_the_story_holds() -> None:
    told = io.StringIO()
    story = Story(Console(file=told, width=120))
    nursing_home.run(story)
    assert story.checked == 17
    text = " ".join(told.getvalue().split())
    assert "time alone has closed it" in text
    assert "✗" not in text


def test_a_policy_that_opens_too_much_fails_the_story(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_loose_rules() -> list[Document]:
        return [
            Document(it.kind, it.name, {k: v for k, v in it.body.items() if k != "situations"})
            if it.name == "external_specialist/read-physiological"
            else it
            for it in read_rules()
        ]

    monkeypatch.setattr(nursing_home, "read_rules", read_loose_rules)
    with pytest.raises(DemoFailedError, match=r"both patients and the physician are warned"):
        nursing_home.run(Story(Console(file=io.StringIO(), width=120)))
