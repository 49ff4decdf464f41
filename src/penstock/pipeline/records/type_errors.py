"""Says which field of a JSON record is not of its type.

Rules that hold here:
- The answer holds names that the stream declares, and nothing of the record.
- It is asked for records that are wrong already, and costs the others nothing: a few
  expressions, however many fields there are, that Spark can compile with the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks.chain import type_reason
from penstock.masks.fields import Schema

_TEXT: Final = types.StringType()


def explain(
    text: Column, read: Column, schema: Schema, options: Mapping[str, str], path: tuple[str, ...]
) -> Column:
    """Return what is wrong with the first field that is not of its type, or null.

    `read` has the fields as they were read, null where they are wrong. Read once more as
    texts, which anything is, those that are wrong are there.
    """
    shape = types.StructType([types.StructField(name, _TEXT) for name in schema])
    for name in reversed(path):
        shape = types.StructType([types.StructField(name, shape)])
    written = F.from_json(text, shape, dict(options))
    for name in path:
        written = written.getField(name)
    wrong = F.array_except(_present(written), _present(read))
    reasons = [
        F.lit(part)
        for name, field in schema.items()
        for part in (name, type_reason(name, field.type))
    ]
    return F.try_element_at(F.create_map(*reasons), F.get(wrong, F.lit(0)))


def _present(record: Column) -> Column:
    """Return the names of the fields that are not null."""
    return F.json_object_keys(F.to_json(record))
