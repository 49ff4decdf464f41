"""Signals: what the shards of a stateful view are told beside its records, as a source of Spark.

    Spark ─ latestOffset ─▶ SignalReader ─ socket ─▶ SignalServer (driver) ─▶ who opted out, clock
             offset in Spark's log ◀── what counts from this batch on ◀──────────┘

Rules that hold here:
- The offset is what is told: it stands in Spark's log with the batch, so that a batch that is done
  again meets the same signals.
- Spark asks before each batch, and the driver asks the store then: an opt-out that was committed
  before a batch was planned holds in it. Where the store does not answer, there is no batch.
- Nothing new: the offset stays, and a view that is silent costs no batch.
- Who opted out is named by numbers, in a file beside the checkpoint that its digest names; readable
  by the owner alone, as the socket is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from typing_extensions import override

from penstock.errors import UnavailableError

if TYPE_CHECKING:
    from penstock.pipeline.records.columns import Integers

FORMAT: Final = "penstock_signals"
FOLDER: Final = "signals"
SECONDS: Final = 120.0
"""So long Spark's process waits for an answer of the driver's."""
MOST_BYTES: Final = 1 << 16
_KEPT: Final = 3
_ROWS: Final = pa.schema(
    [
        ("order", pa.int64()),
        ("opted_out", pa.list_(pa.int64())),
        ("clock", pa.int64()),
        ("flush", pa.bool_()),
    ]
)
NOTHING: Final[dict[str, Any]] = {"order": 0, "opted_out": "", "clock": 0, "flush": False}
"""The offset of a view that was told nothing yet; a clock of 0 tells nothing."""

Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes the offset that counts, and returns the one from now on."""


class SignalServer:
    """Answers Spark's question on the driver, where store and definitions are known."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        # A short path of its own: the name of a socket has about a hundred letters at most.
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-"))
        self.address = str(self._folder / "signals")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen()
        threading.Thread(target=self._serve, name="signals", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        while True:
            try:
                asked, _ = self._socket.accept()
            except OSError:
                return  # closed
            with asked, asked.makefile("rwb") as stream:
                made: dict[str, Any]
                try:
                    made = {"offset": self._answer(json.loads(stream.readline(MOST_BYTES)))}
                except Exception as error:  # noqa: BLE001 - the query ends by it, and tells why
                    made = {"error": type(error).__name__}
                stream.write(json.dumps(made).encode() + b"\n")


class SignalSource(DataSource):
    """`spark.readStream.format("penstock_signals")`; options: address, folder."""

    @classmethod
    @override
    def name(cls) -> str:
        return FORMAT

    @override
    def schema(self) -> str:
        # Loaded here: the process that Spark asks before each batch needs little, and starts soon.
        from penstock.pipeline.dataframes.shards import SIGNALS  # noqa: PLC0415

        return SIGNALS

    @override
    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return SignalReader(self.options)


class SignalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Asks the driver what is new; a batch has one signal at most."""

    def __init__(self, options: Any) -> None:
        self._address = str(options["address"])
        self._folder = str(options["folder"])

    @override
    def initialOffset(self) -> dict[str, Any]:
        return NOTHING

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing is to be kept: the driver tells what is due, and then nothing more."""

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(SECONDS)
            asking.connect(self._address)
            with asking.makefile("rwb") as stream:
                stream.write(json.dumps(start).encode() + b"\n")
                stream.flush()
                made: dict[str, Any] = json.loads(stream.readline(MOST_BYTES))
        if "error" in made:
            raise UnavailableError(f"the driver tells no signals: {made['error']}")
        found: dict[str, Any] = made["offset"]
        return found

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start["order"] == end["order"]:
            return []
        numbers = None
        if start["opted_out"] != end["opted_out"]:
            numbers = load_numbers(Path(self._folder), end["opted_out"])
        return [InputPartition((end["order"], numbers, end["clock"], end["flush"]))]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        order, numbers, clock, flush = partition.value
        row = {"order": order, "opted_out": numbers, "clock": clock or None, "flush": flush}
        yield pa.RecordBatch.from_pylist([row], schema=_ROWS)


def read_signals(spark: SparkSession, address: str, folder: Path) -> DataFrame:
    """Return what is told, as a stream."""
    spark.dataSource.register(SignalSource)
    reader = spark.readStream.format(FORMAT).option("address", address)
    return reader.option("folder", str(folder)).load()


def save_numbers(folder: Path, numbers: Integers) -> str:
    """Keep the numbers of people, and return what names them; empty where there are none."""
    if not numbers.size:
        return ""
    content = numbers.astype("<i8").tobytes()
    digest = hashlib.sha256(content).hexdigest()[:32]
    path = folder / digest
    if not path.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        partial = folder / f".{digest}"
        with open(partial, "wb", opener=_open_own) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
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


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
