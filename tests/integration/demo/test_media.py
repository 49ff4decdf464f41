"""The media demonstration: it tells the truth, and notices when it would not."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock_lab.demo import media
from penstock_lab.demo.story import DemoFailedError, Story

pytestmark = pytest.mark.needs("mosquitto")


def test_the_story_holds() -> None:
    told = io.StringIO()
    story = Story(Console(file=told, width=120))
    media.run(story)
    assert story.checked == 15
    assert "ads-by-age receives bob" in told.getvalue()


def test_a_stream_that_names_nobody_fails_the_story(monkeypatch: pytest.MonkeyPatch) -> None:
    text = media.definitions_text().replace("subject: account\n", "")
    monkeypatch.setattr(media, "definitions_text", lambda: text)
    with pytest.raises(DemoFailedError, match=r"ads-by-age receives bob.*expected"):
        media.run(Story(Console(file=io.StringIO(), width=120)))
