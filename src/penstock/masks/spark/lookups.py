"""Generalization as columns: a hash table that a native column can look into.

Spark looks for a key in a map one entry after the other. So the table is an array of small
maps, and the checksum of the value (CRC-32, the same in Python and Spark) tells which.
"""

from __future__ import annotations

import zlib

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks.fields import TEXTS
from penstock.masks.generalization import Generalization
from penstock.masks.mask import Stage
from penstock.masks.spark.types import write_text
from penstock.masks.spark.workbench import Workbench


def generalize(mask: Generalization, stage: Stage, bench: Workbench) -> dict[str, Column]:
    """Return general values; null where a value is unknown and there is no default."""
    made = {}
    for key in mask.keys:
        target = stage.target(key)
        write = TEXTS[target.field.type]
        table = {write(value): general for value, general in mask.table(target).items()}
        text = write_text(target.field.type, bench.columns[key])
        found = _look_up(table, text, bench)
        if mask.default is not None:
            found = F.when(text.isNotNull(), F.coalesce(found, F.lit(mask.default)))
        made[key] = found
    return made


def _look_up(table: dict[str, str], text: Column, bench: Workbench) -> Column:
    count = max(1, len(table))
    slots: list[list[tuple[str, str]]] = [[] for _ in range(count)]
    for entry in table.items():
        slots[zlib.crc32(entry[0].encode()) % count].append(entry)
    array = bench.constant(slots, pa.map_(pa.string(), pa.string()))
    slot = F.get(array, (F.crc32(text.cast("binary")) % count).cast("int"))
    return F.try_element_at(slot, text)
