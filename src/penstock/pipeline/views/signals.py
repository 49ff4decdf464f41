"""Signals: what the shards of a stateful view are told beside its records, as a source of Spark.

    Spark's driver ── latest ──▶ Signals: who opted out or is erased, the clock, whether all leaves
             offset in Spark's log ◀── what counts from this batch on ◀─────────────┘

Rules that hold here:
- The offset is what is told: it stands in Spark's log with the batch, so that a batch that is done
  again meets the same signals.
- Spark asks before each batch, and the store is asked then: an opt-out that was committed before a
  batch was planned holds in it. Where the store does not answer, there is no batch.
- Nothing new: the offset stays, and a view that is silent costs no batch.
- People are named by numbers: who opted out in a file beside the checkpoint, which its digest names
  and only the owner can read; who is erased, and few are at a time, in the offset.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.errors import UnavailableError
from penstock.hadoop import write_whole
from penstock.pipeline.dataframes.shards import SIGNALS
from penstock.pipeline.sources.driver import TEXT, Offset, read_stream

if TYPE_CHECKING:
    from penstock.pipeline.records.columns import Integers

FOLDER: Final = "signals"
_KEPT: Final = 3
NOTHING: Final[Offset] = {
    "order": 0,
    "opted_out": "",
    "erased": [],
    "clock": 0,
    "flush": False,
}
"""The offset of a view that was told nothing yet; a clock of 0 tells nothing."""

Answer = Callable[[Offset], Offset]
"""Takes the offset that counts, and returns the one from now on."""


class Signals:
    """Tells what is new; a batch has one signal at most."""

    name = "signals"
    reads_files = False

    def __init__(self, folder: Path, answer: Answer) -> None:
        self._folder = folder
        self._answer = answer

    def first(self) -> Offset:
        """Return what counts at the beginning."""
        return NOTHING

    def bound(self) -> None:
        """Nothing is to be kept: it is told what is due, and then nothing more."""

    def latest(self, start: Offset) -> Offset:
        """Return what counts from the next batch on."""
        return self._answer(start)

    def plan(self, start: Offset, end: Offset) -> list[str]:
        """Return what a batch is told, as JSON."""
        if start["order"] == end["order"]:
            return []
        told = {it: end[it] or None for it in ("order", "erased", "clock")}
        told["flush"] = end["flush"]
        if start["opted_out"] != end["opted_out"]:
            told["opted_out"] = load_numbers(self._folder, end["opted_out"])
        return [json.dumps(told)]


def read_signals(spark: SparkSession, signals: Signals) -> DataFrame:
    """Return what is told, as a stream."""
    told = F.from_json(TEXT, SIGNALS).alias("told")
    return read_stream(spark, signals).select(told).select("told.*")


def save_numbers(folder: Path, numbers: Integers) -> str:
    """Keep the numbers of people, and return what names them; empty where there are none."""
    if not numbers.size:
        return ""
    content = numbers.astype("<i8").tobytes()
    digest = hashlib.sha256(content).hexdigest()[:32]
    path = folder / digest
    if not path.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, content)
        # Those of the past are in the state of the shards; one may be needed for a repeat.
        old = sorted(folder.glob("[0-9a-f]*"), key=lambda it: it.stat().st_mtime_ns)
        for it in old[:-_KEPT]:
            it.unlink()
    return digest


def load_numbers(folder: Path, digest: str) -> list[int]:
    """Return the numbers of people that a digest names."""
    if not digest:
        return []
    content = (folder / digest).read_bytes()
    if hashlib.sha256(content).hexdigest()[:32] != digest:
        raise UnavailableError(
            "the list of people who opted out is damaged", fix=f"remove {folder / digest}"
        )
    found: list[int] = np.frombuffer(content, "<i8").tolist()
    return found
