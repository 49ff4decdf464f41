from __future__ import annotations

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.cep.partition_engine import ResultTable
from penstock.cep.spark import list_packets, partition_program
from penstock.cep.steps import StepResult, Transition, TransitionCause
from penstock.pipeline.detection.tasks import JointEngine
from tests.support.nursing_home.program import START, load_program


def test_a_case_that_ends_for_a_limit_asks_for_nothing(tmp_path: Path) -> None:
    separation = partition_program(load_program())
    assert separation.joint is not None
    outcome = StepResult(START, 0, 1)
    outcome.add_transition(
        Transition("covid", "patient-1", "Severe", None, START, cause=TransitionCause.LIMIT)
    )
    results = ResultTable(separation.keyed, 0)
    results.add(7, outcome)
    pyarrow.parquet.write_table(results.table(), tmp_path / "results")
    columns = {"offset": pa.int64(), "at": pa.int64()}
    columns |= dict.fromkeys(list_packets(separation.joint), pa.null())
    joint = JointEngine(separation, tmp_path, "")
    found = joint.follow(
        pa.schema(list(columns.items())).empty_table(), tmp_path / "results", START + 1
    )
    assert found.num_rows == 0
