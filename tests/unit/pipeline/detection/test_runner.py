from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError
from penstock.model.document import Document
from penstock.model.kinds import Stream
from penstock.pipeline.detection.runner import DetectionRunner, run_detection
from penstock.pipeline.detection.tasks import DetectionPlan
from penstock_lab.demo.nursing_home.definitions import read_rules

RULES = [
    *(it for it in read_rules() if it.kind in {"vocabulary", "event", "action", "plan"}),
    Document("stream", "house", {"fields": [{"name": "topic", "type": "string"}]}),
]
FIRST = DefinitionSet.build(RULES)


def _with(*documents: Document) -> DefinitionSet:
    return FIRST.change(put=documents)


class _Runner:
    """What is asked of a runner, and a note of it."""

    def __init__(self, definitions: DefinitionSet, notes: list[str]) -> None:
        self.plan = DetectionPlan(definitions, definitions.of(Stream)["house"])
        self._notes = notes
        notes.append("open")

    def catch_up(self) -> None:
        self._notes.append("batch")

    def advance(self, at: int) -> None:
        assert at > 0

    def close(self) -> None:
        self._notes.append("close")


def _run(*rounds: Callable[[], DefinitionSet]) -> list[str]:
    """Return what is done while the store answers so, round by round."""
    notes: list[str] = []
    told = threading.Event()
    answers = iter((lambda: FIRST, *rounds))

    def definitions() -> DefinitionSet:
        answer = next(answers, None)
        if answer is None:
            told.set()
            return FIRST
        return answer()

    def begin(now: DefinitionSet) -> DetectionRunner:
        return cast("DetectionRunner", _Runner(now, notes))

    run_detection(begin, definitions, 0.0, told)
    return notes[:-2]  # the last round


def _fail() -> DefinitionSet:
    raise UnavailableError("the store is away")


def test_a_changed_event_holds_from_the_next_batch_on() -> None:
    event = next(it for it in RULES if it.kind == "event")
    body = {**event.body, "description": "told anew"}
    changed = _with(Document("event", event.name, body))
    found = _run(lambda: FIRST, lambda: changed, lambda: changed, lambda: FIRST)
    assert found == ["open", "batch", "close", "open", "batch", "batch", "close", "open", "batch"]


def test_a_changed_stream_holds_from_the_next_batch_on() -> None:
    fields = [{"name": name, "type": "string"} for name in ("topic", "more")]
    changed = _with(Document("stream", "house", {"fields": fields}))
    assert _run(lambda: changed)[:3] == ["open", "close", "open"]


def test_what_detection_does_not_read_disturbs_nothing() -> None:
    other = _with(Document("purpose", "care", {}))
    assert _run(lambda: other, lambda: FIRST) == ["open", "batch", "batch"]


def test_nothing_is_detected_while_the_definitions_cannot_be_read() -> None:
    assert _run(_fail, _fail, lambda: FIRST) == ["open", "batch"]
