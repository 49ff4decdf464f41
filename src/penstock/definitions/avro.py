"""Avro: fields of streams and views as schemas.

Rules that hold here:
- Avro's names have letters, digits and _ only. Other characters become _, and a number keeps
  two names apart that would then be one; what a field is called otherwise stands in `doc`.
- A field that may be null is the union of null and its type, in this order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.masks.fields import FieldType, Schema

TYPES: Final[Mapping[FieldType, Any]] = {
    FieldType.STRING: "string",
    FieldType.INT: "int",
    FieldType.LONG: "long",
    FieldType.FLOAT: "float",
    FieldType.DOUBLE: "double",
    FieldType.BOOLEAN: "boolean",
    FieldType.DATE: {"type": "int", "logicalType": "date"},
    FieldType.TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
}


def avro_names(names: Iterable[str]) -> dict[str, str]:
    """Return a name for each field that Avro takes."""
    made: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
        plain = f"_{plain}" if plain[:1].isdigit() else plain
        chosen, number = plain, 2
        while chosen in made.values():
            chosen, number = f"{plain}_{number}", number + 1
        made[name] = chosen
    return made


def avro_schema(schema: Schema, title: str = "Record") -> dict[str, Any]:
    """Return the schema of records with these fields."""
    fields = []
    for (name, field), called in zip(schema.items(), avro_names(schema).values(), strict=True):
        kind = TYPES[field.type]
        made = {"name": called, "type": ["null", kind] if field.optional else kind}
        fields.append(made if called == name else {**made, "doc": name})
    return {"type": "record", "name": title, "namespace": "penstock", "fields": fields}
