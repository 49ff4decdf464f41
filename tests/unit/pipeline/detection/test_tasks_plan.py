from __future__ import annotations

import random
from typing import Any

from penstock.definitions import DefinitionSet
from penstock.model.document import Document
from penstock.pipeline.detection.tasks import DetectionPlan
from penstock_lab.demo.nursing_home.definitions import read_rules

STREAM = Document("stream", "house", {"fields": [{"name": "topic", "type": "string"}]})


def shuffle(value: Any, draw: random.Random) -> Any:
    """Write maps in another order; the order of lists counts."""
    if isinstance(value, dict):
        items = [(name, shuffle(it, draw)) for name, it in value.items()]
        draw.shuffle(items)
        return dict(items)
    return [shuffle(it, draw) for it in value] if isinstance(value, list) else value


def test_the_order_in_which_definitions_are_written_does_not_matter() -> None:
    draw = random.Random(3)
    kinds = {"vocabulary", "event", "action", "plan", "scenario"}
    written = [*(it for it in read_rules() if it.kind in kinds), STREAM]
    plan = DetectionPlan.find(DefinitionSet.build(written), "house")
    for _ in range(5):
        documents = [Document(it.kind, it.name, shuffle(dict(it.body), draw)) for it in written]
        draw.shuffle(documents)
        other = DetectionPlan.find(DefinitionSet.build(documents), "house")
        assert other.signature == plan.signature
        texts = [it.text for it in other.program.operators]
        assert texts == [it.text for it in plan.program.operators]
        assert other.separation.key == "pid"
