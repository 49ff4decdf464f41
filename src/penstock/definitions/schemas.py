"""JSON Schema of the kinds: what editors use to complete and check definitions."""

from __future__ import annotations

from typing import Any

from penstock.model.kinds import KINDS

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(kind: str) -> dict[str, Any]:
    """Return the schema of a document of this kind."""
    model = KINDS[kind]
    schema = model.model_json_schema(by_alias=True)
    fields = {
        "kind": {"const": kind, "description": "What this document defines."},
        **schema.pop("properties", {}),
    }
    required = ["kind", *schema.pop("required", [])]
    if "name" not in required:
        required.insert(1, "name")
    return {
        "$schema": DIALECT,
        "title": kind,
        **{name: value for name, value in schema.items() if name != "title"},
        "properties": fields,
        "required": required,
    }


def schema_of_all() -> dict[str, Any]:
    """Return one schema that accepts a document of any kind."""
    return {
        "$schema": DIALECT,
        "title": "definition",
        "oneOf": [schema_of(k) for k in sorted(KINDS)],
    }
