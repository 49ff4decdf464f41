"""Schemas of the kinds: JSON Schema for editors, and the reference in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
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


NAMES = {"object": "map", "string": "text", "boolean": "`true` or `false`"}


def write_reference() -> str:
    """Return one section per kind: what it is, and a table of its fields."""
    return "\n".join(line for kind in sorted(KINDS) for line in _section(kind))


def _section(kind: str) -> Iterator[str]:
    schema = schema_of(kind)
    yield f"## `{kind}`\n"
    yield f"{KINDS[kind].summary}\n"
    yield "| Field | Value | Default | Meaning |"
    yield "| --- | --- | --- | --- |"
    for name, field in schema["properties"].items():
        if name != "kind":
            yield f"| `{name}` | {_value(field)} | {_default(field)} | {field['description']} |"
    yield ""


def _value(field: dict[str, Any]) -> str:
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " or ".join(f"`{choice}`" for choice in field["enum"])
    kind: str = field.get("type", "any value")
    if kind == "array":
        return f"list of {_value(field.get('items', {}))}"
    return NAMES.get(kind, kind)


def _default(field: dict[str, Any]) -> str:
    if "default" not in field or field["default"] == "":
        return ""
    default = field["default"]
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"
