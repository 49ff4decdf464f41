"""Says which field of a JSON record is not of its type.

Rules that hold here:
- The answer holds names that the stream declares, and nothing of the record.
- It is asked for records that are wrong already. What it costs in a plan does not grow with
  the number of fields: there is one expression per type, over a list of the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.masks.chain import type_reason
from penstock.masks.fields import DATES, FieldType, Schema

_NUMBER: Final = "^(BIGINT|DECIMAL.*|FLOAT|DOUBLE|VOID)$"
# Type → what Spark's variants call its values. Texts may be written as anything.
_KINDS: Final[Mapping[FieldType, str]] = {
    FieldType.INT: "^(BIGINT|VOID)$",
    FieldType.LONG: "^(BIGINT|VOID)$",
    FieldType.FLOAT: _NUMBER,
    FieldType.DOUBLE: _NUMBER,
    FieldType.BOOLEAN: "^(BOOLEAN|VOID)$",
    FieldType.DATE: "^(STRING|VOID)$",
    FieldType.TIMESTAMP: "^(STRING|BIGINT|VOID)$",
}


def explain(text: Column, schema: Schema, root: str, *, numbered: bool) -> Column:
    """Return what is wrong with the first field that is not of its type, or null.

    `root` is the path of the record in the text; `numbered`: dates are numbers in it.
    """
    record = F.try_parse_json(text)
    none = F.lit(None).cast("string")
    found = [none]
    for kind, pattern in _KINDS.items():
        listed = [
            F.struct(
                F.lit(_path(root, name)).alias("path"),
                F.lit(type_reason(name, kind)).alias("reason"),
            )
            for name, field in schema.items()
            if field.type is kind and not ('"' in name and "'" in name)
        ]
        if listed:
            expected = "^(BIGINT|VOID)$" if numbered and kind in DATES else pattern
            found.append(_first_wrong(record, F.array(*listed), kind, expected, numbered=numbered))
    return F.coalesce(*found)


def _first_wrong(
    record: Column, fields: Column, kind: FieldType, pattern: str, *, numbered: bool
) -> Column:
    def is_wrong(field: Column) -> Column:
        path = field["path"]
        value = F.try_variant_get(record, path, "variant")
        called = F.schema_of_variant(value)
        wrong = ~called.rlike(pattern)
        if kind is FieldType.INT:
            wrong |= (called == "BIGINT") & F.try_variant_get(record, path, "int").isNull()
        elif kind in DATES and not numbered:
            read = F.try_variant_get(record, path, "string").try_cast(kind.value)
            wrong |= (called == "STRING") & read.isNull()
        return value.isNotNull() & wrong

    return F.get(F.filter(fields, is_wrong), 0)["reason"]


def _path(root: str, name: str) -> str:
    return f"{root}['{name}']" if '"' in name else f'{root}["{name}"]'
