"""What the driver and a stateful step tell each other: commands, rows and outcomes.

    steps/commands/NUMBER.json   what the step is to do, one command for each commit of the view
    steps/rows/NUMBER/in-*       the rows it is to take in, as tasks wrote them
    steps/rows/NUMBER/out-*      what left it: rows, dead letters, counts of persons
    steps/checkpoint/            Spark's: which commands were obeyed, and the state

Rules that hold here:
- A command has the number of the commit that its outcome becomes. It is written once, after
  its rows, and stays as it is until Spark has noted that it was obeyed: to obey it again
  from the state before leads to the same state.
- Everything here may hold values that were never published: only the owner may read it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql import DataFrame

from penstock.pipeline.anonymizers.stateful import DeadLetter, StepOutcome
from penstock.pipeline.records.columns import NO_TIME, OFFSET, SUBJECT, Integers
from penstock.pipeline.session import freeze_loaded
from penstock.store.opt_outs import number_of

FEED: Final = "feed"
FLUSH: Final = "flush"
REASON: Final = "penstock:rejected"
"""Why a row was refused by a mask before the step, where it was."""
_DIGITS: Final = 12
_DEAD: Final = pa.schema([(OFFSET, pa.int64()), (REASON, pa.string())])


@dataclass(frozen=True, slots=True)
class Command:
    """What a step is to do."""

    number: int
    action: str
    plan: str
    """Names the definitions that the step goes by."""
    next: int
    """The first offset that the view has not seen then."""
    now: int = NO_TIME
    """What the clock says; for windows only, once all rows that arrived before are there."""
    files: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a command."""
        data: dict[str, Any] = json.loads(text)
        data["files"] = tuple(data["files"])
        return cls(**data)

    def to_json(self) -> str:
        """Write the command down."""
        return json.dumps(asdict(self), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a command, in numbers."""

    number: int
    read: int
    held: int
    due: int | None
    loss: float
    trouble: str | None
    """Why the step could not obey; then nothing counts."""


REPORT: Final = "number long, read long, held long, due long, loss double, trouble string"


class CommandFolder:
    """The folder in which the driver and the step of one view hand things to each other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self._commands = folder / "commands"
        self._rows = folder / "rows"

    def prepare(self) -> None:
        """Make the folders, and drop what was never given."""
        for folder in (self.folder, self._commands, self._rows, self.checkpoint):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._commands.glob("*.partial"):
            path.unlink()

    @property
    def has_state(self) -> bool:
        """Whether Spark has a state here."""
        return (self.checkpoint / "state").exists()

    def path(self, number: int) -> Path:
        """Return where a command stands."""
        return self._commands / f"{number:0{_DIGITS}}.json"

    def rows(self, number: int) -> Path:
        """Return the folder for what goes in and out with a command."""
        return self._rows / f"{number:0{_DIGITS}}"

    def find(self, number: int) -> Command | None:
        """Return a command, if it was given."""
        path = self.path(number)
        return Command.from_json(path.read_text(encoding="utf-8")) if path.exists() else None

    def give(self, command: Command) -> None:
        """Give a command; from now on it will be obeyed, whatever happens."""
        path = self.path(command.number)
        partial = path.with_suffix(".partial")
        write_bytes(partial, command.to_json().encode())
        partial.replace(path)

    def begin(self, number: int) -> Path:
        """Return an empty folder for the rows of a command that was not given yet."""
        folder = self.rows(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return folder

    def clear(self, before: int) -> None:
        """Remove what belongs to commands before a number: they are done for good."""
        for path in self._commands.iterdir():
            if int(path.stem) < before:
                path.unlink()
        for path in self._rows.iterdir():
            if int(path.name) < before:
                shutil.rmtree(path)


def stage_rows(frame: DataFrame, folder: Path) -> tuple[str, ...]:
    """Write rows for a step to a folder, in Spark's tasks; return the names of the files."""
    target, names = str(folder), frame.columns

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded()
        return _write_task((batch.rename_columns(names) for batch in batches), target)

    # Spark takes a dot in a name for a way into a field here, so that names travel beside.
    plain = frame.toDF(*(f"c{place}" for place in range(len(names))))
    answer = plain.mapInArrow(write, "file string").toArrow()
    return tuple(sorted(answer["file"].to_pylist()))


def _write_task(batches: Iterable[pa.RecordBatch], folder: str) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("this runs in a task of Spark only")
    # The attempt stands in the name: a task that is done again meets no file of its own.
    name = f"in-{context.partitionId():05}-{context.taskAttemptId()}"
    made = _write_batches(Path(folder) / name, iter(batches))
    yield pa.record_batch({"file": pa.array([name] if made else [], pa.string())})


def _write_batches(path: Path, batches: Iterator[pa.RecordBatch]) -> bool:
    first = next(batches, None)
    if first is None:
        return False
    with open(path, "wb", opener=_open_own) as file, pa.ipc.new_stream(file, first.schema) as made:
        made.write_batch(first)
        for batch in batches:
            made.write_batch(batch)
    return True


def load_rows(folder: Path, files: Iterable[str], schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
    """Return the rows for a step, in the order of their offsets, and those refused before."""
    tables = [_read(folder / name) for name in files]
    if not tables:
        return schema.empty_table(), _DEAD.empty_table()
    table = pa.concat_tables(tables).sort_by(OFFSET)
    reasons = table[REASON]
    fine = table.filter(reasons.is_null()) if reasons.null_count < table.num_rows else table
    return fine.drop_columns(REASON), table.filter(reasons.is_valid()).select(_DEAD.names)


def save_outcome(folder: Path, outcome: StepOutcome, refused: pa.Table) -> None:
    """Write what left a step, together with the rows that were refused before it."""
    letters = pa.table(
        [[it.offset for it in outcome.dead], [it.reason for it in outcome.dead]], schema=_DEAD
    )
    _write(folder / "out-rows", outcome.rows)
    _write(folder / "out-dead", pa.concat_tables([refused.cast(_DEAD), letters]))
    if outcome.groups is not None:
        _write(folder / "out-groups", outcome.groups)


def load_outcome(folder: Path, report: Report) -> StepOutcome:
    """Read what left a step."""
    dead = _read(folder / "out-dead")
    letters = [
        DeadLetter(offset, reason)
        for offset, reason in zip(dead[OFFSET].to_pylist(), dead[REASON].to_pylist(), strict=True)
    ]
    groups = folder / "out-groups"
    found = _read(groups) if groups.exists() else None
    return StepOutcome(_read(folder / "out-rows"), letters, report.loss, found)


def save_opted_out(folder: Path, refusing: frozenset[str]) -> None:
    """Write who is to be forgotten, of those that are held back."""
    _write_people(folder / "forget", {number_of(mark) for mark in refusing})


def load_opted_out(folder: Path) -> Integers:
    """Read who is to be forgotten."""
    return _read_people(folder / "forget")


def save_erased(folder: Path, people: Iterable[int]) -> None:
    """Write who is erased: forgotten of what is held now, and not of what comes."""
    _write_people(folder / "erased", people)


def load_erased(folder: Path) -> Integers:
    """Read who is erased."""
    return _read_people(folder / "erased")


def _write_people(path: Path, numbers: Iterable[int]) -> None:
    _write(path, pa.table({SUBJECT: pa.array(sorted(set(numbers)), pa.int64())}))


def _read_people(path: Path) -> Integers:
    if not path.exists():
        return np.empty(0, dtype=np.int64)
    found: Integers = _read(path)[SUBJECT].to_numpy()
    return found


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file for the owner alone, and bring it to the disk."""
    with open(path, "wb", opener=_open_own) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _write(path: Path, table: pa.Table) -> None:
    """Write a table; a file of an earlier attempt is replaced as a whole."""
    partial = path.with_suffix(".partial")
    with (
        open(partial, "wb", opener=_open_own) as file,
        pa.ipc.new_stream(file, table.schema) as made,
    ):
        made.write_table(table)
    partial.replace(path)


def _read(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        return reader.read_all()


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
