from __future__ import annotations

import pytest

from penstock.pipeline.views.checkpoints import Owner
from penstock.pipeline.views.stream_runner import describe, is_passing, is_replaced


@pytest.mark.parametrize(
    "name", ["penstock.errors.UnavailableError", "penstock.store.sqlite_file.FileReplacedError"]
)
def test_a_store_that_tasks_could_not_reach_is_tried_again(name: str) -> None:
    error = RuntimeError(f"PythonException: Traceback … {name}: the database … is not available")
    assert is_passing(error)
    assert describe(error) == "tasks could not reach the store of tokens → check that it runs"


def test_records_that_kafka_has_no_more_are_not_waited_for() -> None:
    error = RuntimeError("org.apache.spark.sql.kafka010: … set the option failOnDataLoss to false")
    assert not is_passing(error)
    assert "has forgotten records" in describe(error)


def test_a_topic_that_was_made_again_is_known() -> None:
    before = Owner("ward", "kafka:ward:1")
    assert is_replaced(before, Owner("ward", "kafka:ward:2"))
    assert not is_replaced(before, before)
    assert not is_replaced(before, Owner("ward", "kafka:other:2"))
    assert not is_replaced(Owner("ward", "files:csv:/a"), Owner("ward", "files:csv:/b"))
