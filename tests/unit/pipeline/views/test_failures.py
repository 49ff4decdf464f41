"""What is said of a failure, and whether it is worth another try."""

from __future__ import annotations

import pytest

from penstock.errors import PenstockError, UnavailableError
from penstock.pipeline.views.failures import (
    OperatorEndedError,
    describe,
    explain,
    is_passing,
    is_slow_start,
)


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
    assert explain(error) is error


def test_python_processes_that_start_late_are_tried_again() -> None:
    error = RuntimeError("SparkException: Python worker failed to connect back.")
    assert is_slow_start(error)
    assert is_passing(error)
    assert explain(error) is error
    assert not is_slow_start(UnavailableError("connect back"))


def test_python_processes_that_were_ended_are_tried_again() -> None:
    error = RuntimeError("SparkException: Python worker exited unexpectedly (crashed)")
    assert is_passing(error)
    assert not is_slow_start(error)
    assert "memory" in describe(error)


def test_words_of_sparks_are_not_passed_on() -> None:
    error = ValueError("the record {'name': 'Ada'}")
    assert describe(error) == "ValueError"
    ended = explain(error)
    assert isinstance(ended, OperatorEndedError)
    assert is_passing(ended)
    assert "Ada" not in str(ended)
    own = PenstockError("a reason")
    assert explain(own) is own
