"""Reads what a view has published."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.eventlog import Topic
from penstock.pipeline.sinks.commits import ViewFolder

CHUNK: Final = 10_000


def read_published(folder: ViewFolder) -> Iterator[dict[str, Any]]:
    """Yield the published records, those of the newest files first."""
    if folder.data.is_dir():
        for path in sorted(folder.data.iterdir(), reverse=True):
            # A Delta table has a folder of its own there.
            if path.is_file():
                yield from read_file(path)


def read_topic(topic: Topic) -> Iterator[dict[str, Any]]:
    """Yield the records of a view's topic, the newest first."""
    end, first = topic.next_offset, topic.first_offset
    while end > first:
        start = max(first, end - CHUNK)
        for record in reversed(list(topic.read(start, end - start))):
            yield json.loads(record.value)
        end = start


def read_file(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of one file."""
    if path.suffix == ".parquet":
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    elif path.suffix == ".json":
        with path.open("rb") as lines:
            for line in lines:
                yield json.loads(line)
    elif path.suffix == ".avro":
        with path.open("rb") as file:
            reader: Iterator[Any] = fastavro.reader(file)
            yield from reader
    else:
        with path.open(encoding="utf-8", newline="") as text:
            yield from csv.DictReader(text)
