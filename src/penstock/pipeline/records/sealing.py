"""Sealed values of streams with `erasure: shred`, opened on the way into the parser.

    value ──▶ tasks ask for the keys of a batch ──▶ the value, or that it was erased

Rules that hold here:
- Who runs Spark says once where keys are (`use_person_keys`). Without that, a sealed stream is not
  read at all: to set all its records aside would lose them.
- Keys come to the tasks that open values, and stand in no plan: tasks get an address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from penstock.config import Config
from penstock.errors import UnavailableError, quote
from penstock.model.kinds import Stream
from penstock.pipeline.records.columns import VALUE
from penstock.pipeline.session import freeze_loaded
from penstock.store.person_keys import PersonKeyAddress

_known: list[PersonKeyAddress] = []


def use_person_keys(config: Config) -> None:
    """Read under the keys of an installation all that this process reads from now on."""
    key = config.consent.key
    known = key.path.exists()
    _known[:] = [PersonKeyAddress(config.store.connection_url(), key.read())] if known else []


def open_sealed(frame: DataFrame, stream: Stream) -> DataFrame:
    """Return records with their values opened, where the stream has them sealed."""
    if stream.erasure != "shred":
        return frame
    if not _known:
        raise UnavailableError(
            f"the records of {quote(stream.name)} are sealed, and no keys are at hand",
            fix="read the stream with `penstock views run` and the settings of the installation",
        )
    address, topic = _known[0], stream.topic

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded()
        for batch in batches:
            values = address.open(topic, batch[VALUE].to_pylist())
            opened = pa.array(values, pa.binary())
            columns = [opened if name == VALUE else batch[name] for name in batch.schema.names]
            yield pa.record_batch(columns, names=batch.schema.names)

    return frame.mapInArrow(run, frame.schema)
