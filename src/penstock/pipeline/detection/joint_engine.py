"""What joins persons, in one place: told of all that it needs in the order of one engine.

Rules that hold here:
- A transition is taken up right after the record that brought it about, and one that time
  brought about before every record of that time: as an engine that sees everything would.
- Only transitions with actions ask for anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.cep.spark import (
    PartitionedProgram,
    PartitionEngine,
    PartitionStep,
    ResultTable,
    read_steps,
)
from penstock.cep.step_result import Transition
from penstock.pipeline.detection.tasks import load_engine, save_engine

NAME: Final = "joint"
PART: Final = -1
"""The part that its results are told as."""
_BEFORE: Final = -1


class Joint:
    """The engine of what joins persons."""

    def __init__(self, separation: PartitionedProgram, engines: Path, token: str) -> None:
        if separation.joint is None:
            raise TypeError("nothing joins persons")
        self._program = separation.joint
        self._names = separation.results
        self._engines = engines
        self._engine: PartitionEngine = load_engine(separation.joint, engines, token, NAME)

    def follow(self, samples: pa.Table, results: Path, clock: int) -> pa.Table:
        """Take in a batch, with what came of its parts; return what came of it here."""
        # What happens, by time, record, and place in the results of that record.
        line: list[tuple[int, int, tuple[int, ...], PartitionStep | Transition]] = [
            (step.at, step.offset or 0, (), step) for step in read_steps(samples, self._engine)
        ]
        line += self._read_transitions(results)
        line.sort(key=lambda item: item[:3])
        found = ResultTable(self._program, PART, self._names)
        for _, offset, _, item in line:
            if isinstance(item, PartitionStep):
                for told, outcome in self._engine.step(item):
                    found.add(told, outcome)
            else:
                found.add(None if offset == _BEFORE else offset, self._engine.ask(item))
        for told, outcome in self._engine.step(PartitionStep(None, clock, [])):
            found.add(told, outcome)
        return found.table()

    def save(self, token: str) -> None:
        """Write the state down."""
        save_engine(self._engine, self._engines, token, NAME)

    def _read_transitions(
        self, results: Path
    ) -> list[tuple[int, int, tuple[int, ...], PartitionStep | Transition]]:
        """Return the transitions that ask for something, with their places."""
        table = pyarrow.parquet.read_table(results, filters=[("kind", "=", "transition")])
        return [
            (
                row["at"],
                _BEFORE if row["offset"] is None else row["offset"],
                (row["part"], row["step"], row["place"]),
                _transition(row),
            )
            for row in table.to_pylist()
            if self._asks(row)
        ]

    def _asks(self, row: dict[str, Any]) -> bool:
        if row["evolution"] is None:
            return False  # no event brought it about
        plan = self._program.plans[self._program.scenarios[row["name"]].plan]
        return bool(plan.evolutions[row["evolution"]].actions)


def _transition(row: dict[str, Any]) -> Transition:
    return Transition(
        row["name"],
        row["subject"],
        row["source"],
        row["target"],
        row["at"],
        row["event"],
        None,
        row["evolution"],
    )
