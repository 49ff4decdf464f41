from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from penstock.definitions import DefinitionSet
from penstock.model.document import Document
from penstock.model.kinds import Stream
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.views.stream_runner import StreamRunner, describe, is_passing

KNOWN = DefinitionSet.build(
    [
        Document("stream", "ward", {"fields": [{"name": "pid", "type": "int"}]}),
        *(Document("view", name, {"stream": "ward"}) for name in ("beds", "meals")),
    ]
)


class _View:
    """What a stream asks of a view before a batch."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.blueprint = Blueprint.find(KNOWN, name)
        self.asked = 0
        self.closed = False

    def ask(self) -> None:
        self.asked += 1

    def open(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def test_a_view_that_is_not_defined_so_any_more_takes_no_part_in_the_next_batch(
    tmp_path: Path,
) -> None:
    changed: set[str] = set()
    runner = StreamRunner(
        cast("Any", None),
        KNOWN.of(Stream)["ward"],
        cast("Any", None),
        tmp_path,
        10,
        is_current=lambda blueprint: blueprint.view.name not in changed,
    )
    views = {name: _View(name) for name in ("beds", "meals")}
    for view in views.values():
        runner.add(cast("Any", view))
    runner._ask(list(runner._views.values()))
    changed.add("beds")
    runner._ask(list(runner._views.values()))
    assert runner.views == ("meals",)
    assert views["beds"].closed
    assert [view.asked for view in views.values()] == [1, 2]
    assert runner.failures == {}, "it did not fail: it is brought back as it is defined now"


@pytest.mark.parametrize(
    "name", ["penstock.errors.UnavailableError", "penstock.store.sqlite_file.FileReplacedError"]
)
def test_a_store_that_tasks_could_not_reach_is_tried_again(name: str) -> None:
    error = RuntimeError(f"PythonException: Traceback … {name}: the database … is not available")
    assert is_passing(error)
    assert describe(error) == "tasks could not reach the store of tokens → check that it runs"
