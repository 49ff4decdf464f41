"""What tasks do in a detection: follow one part of the persons through a batch.

Rules that hold here:
- A batch begins with what the commit before it left, and leaves new files of its own: one
  for each part, under a name that no other try of a batch has. They count with the commit.
- A worker keeps the engines that it has used last, each under the name of the batch that it
  is as of: an engine of a batch that was given up has another name, and is never used.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]

from penstock.cep.program import Program
from penstock.cep.spark import PartitionEngine, ResultTable, read_steps
from penstock.cep.state_codec import StateError
from penstock.pipeline import task_process
from penstock.pipeline.detection.plan import load_separation

PART: Final = "part"
KEPT: Final = 8
"""How many engines a worker keeps."""

_kept: OrderedDict[tuple[str, int], tuple[str, PartitionEngine]] = OrderedDict()


def make_task(text: str, folder: str, before: str, token: str) -> Callable[[pa.Table], pa.Table]:
    """Return what takes the rows of one part, and returns what came of them."""

    def follow(table: pa.Table) -> pa.Table:
        task_process.settle()
        part = table[PART][0].as_py()
        program = load_separation(text).keyed
        engine = _take_engine(program, Path(folder), before, part)
        results = ResultTable(program, part)
        for step in read_steps(table, engine):
            for offset, outcome in engine.step(step):
                results.add(offset, outcome)
        save_engine(engine, Path(folder), token, str(part))
        _kept[folder, part] = token, engine
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
        return results.table()

    return follow


def _take_engine(program: Program, folder: Path, before: str, part: int) -> PartitionEngine:
    held = _kept.pop((str(folder), part), None)
    if held is not None and held[0] == before and held[1].program is program:
        return held[1]
    return load_engine(program, folder, before, str(part))


def load_engine(program: Program, folder: Path, token: str, part: str) -> PartitionEngine:
    """Return the engine of a part as of a batch; a new one before the first batch."""
    if not token:
        return PartitionEngine(program)
    try:
        state = (folder / token / part).read_bytes()
    except FileNotFoundError:
        raise StateError(
            f"the state of part {part} of a detection is missing in {folder}",
            fix="restore the folder from a backup; on a cluster, all nodes must see it",
        ) from None
    engine = PartitionEngine.load(program, state)
    assert isinstance(engine, PartitionEngine)  # noqa: S101 - it is made by its own class
    return engine


def save_engine(engine: PartitionEngine, folder: Path, token: str, part: str) -> None:
    """Write an engine down, and when time alone may change something in it.

    A task that is tried again replaces what it wrote.
    """
    timer = engine.next_timer()
    _write(folder / token / part, engine.save())
    _write(folder / token / f"{part}.timer", b"" if timer is None else str(timer).encode())


def find_timer(folder: Path, token: str) -> int | None:
    """Return when time alone may change something in any part."""
    told = [path.read_bytes() for path in (folder / token).glob("*.timer")]
    return min((int(it) for it in told if it), default=None)


def _write(target: Path, content: bytes) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)
