"""A stateful step inside Spark: obeys commands, and keeps what it knows in the state store.

Rules that hold here:
- The state is one value: the name of the definitions, and everything the step knows. It is
  read and written once for each command, however many rows that has.
- The same command with the same state leads to the same state. What left the step may carry
  other noise then; the driver publishes one of the two at most.
- A step that cannot obey says why, without what rows said, and leaves the state as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from typing_extensions import override

from penstock.errors import PenstockError
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.anonymizers.stateful import StatefulStep, split_off
from penstock.pipeline.records.columns import OFFSET, PERSON, SUBJECT, TIME, arrow_schema
from penstock.pipeline.records.opt_outs import ERASED, REFUSED
from penstock.pipeline.views.operator.commands import (
    FLUSH,
    Command,
    CommandFolder,
    load_erased,
    load_opted_out,
    load_rows,
    save_outcome,
)

STATE: Final = StructType([StructField("plan", StringType()), StructField("step", BinaryType())])


class StepProcessor(StatefulProcessor):
    """The stateful step of one view."""

    def __init__(self, folder: Path, plans: Path, secret: bytes) -> None:
        self._folder = str(folder)
        self._plans = str(plans)
        self._secret = secret
        self._state: Any = None

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("step", STATE)

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield self._obey(Command.from_json(row["command"]))

    @override
    def close(self) -> None:
        """Nothing is kept open."""

    def _obey(self, command: Command) -> Row:
        try:
            return self._work(command)
        except PenstockError as error:
            return _report(command, trouble=str(error))
        except Exception as error:  # noqa: BLE001 - its text may quote rows
            return _report(command, trouble=f"its stateful step failed: {type(error).__name__}")

    def _work(self, command: Command) -> Row:
        folder = CommandFolder(Path(self._folder)).rows(command.number)
        blueprint = read_plan(self._plans, command.plan)
        step = self._load(blueprint, command.plan)
        schema = arrow_schema(blueprint.plan.middle, OFFSET, PERSON, TIME, SUBJECT)
        rows, refused = load_rows(folder, command.files, schema)
        opted_out = load_opted_out(folder)
        forgotten = step.forget(opted_out, REFUSED) + step.forget(load_erased(folder), ERASED)
        read = rows.num_rows + refused.num_rows
        # Who opted out since the rows were written: a kill came between.
        rows, late = split_off(rows, opted_out, REFUSED)
        outcome = step.flush() if command.action == FLUSH else step.feed(rows, command.now)
        outcome.dead += forgotten + late
        save_outcome(folder, outcome, refused)
        self._state.update((command.plan, step.save()))
        return _report(command, read=read, held=step.held, due=step.due, loss=outcome.loss)

    def _load(self, blueprint: Blueprint, plan: str) -> StatefulStep:
        saved = self._state.get() if self._state.exists() else None
        if saved is None:
            return _make(blueprint, self._secret)
        if saved[0] == plan:
            return _make(blueprint, self._secret, bytes(saved[1]))
        # The definitions changed; what was held went before. Budgets are taken over.
        before = _make(read_plan(self._plans, saved[0]), self._secret, bytes(saved[1]))
        return _make(blueprint, self._secret, earlier=before)


@lru_cache(maxsize=16)
def read_plan(folder: str, name: str) -> Blueprint:
    """Return definitions by their name; what stands under a name never changes."""
    return Blueprint.from_json((Path(folder) / f"{name}.json").read_text(encoding="utf-8"))


def _make(
    blueprint: Blueprint,
    secret: bytes,
    saved: bytes | None = None,
    earlier: StatefulStep | None = None,
) -> StatefulStep:
    step = blueprint.make_step(secret, saved, earlier)
    if step is None:
        raise TypeError(f"{blueprint.view.name} has no stateful step")
    return step


def _report(command: Command, **known: Any) -> Row:
    blank = {"read": 0, "held": 0, "due": None, "loss": 0.0, "trouble": None}
    return Row(number=command.number, **(blank | known))
