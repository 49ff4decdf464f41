"""Writes the reference of metrics and log fields in Markdown, from their declarations.

Metrics are declared by the parts that count; whoever calls this imports those first.
"""

from __future__ import annotations

from penstock.telemetry import fields, metrics


def write_reference() -> str:
    """Return the tables of all metrics declared so far and of all log fields."""
    lines = ["## Metrics\n", "| Metric | Type | Labels | Meaning |", "| --- | --- | --- | --- |"]
    for one in metrics.catalogue():
        if not one.module.startswith("penstock."):
            continue  # declared by a test
        labels = "; ".join(f"`{name}`: {', '.join(values)}" for name, values in one.labels.items())
        lines.append(f"| `{one.name}` | {one.type} | {labels} | {one.help} |")
    lines += ["", "## Log fields\n", "| Field | Shape |", "| --- | --- |"]
    lines += [f"| `{name}` | {shape} |" for name, shape in fields.allowed().items()]
    return "\n".join([*lines, ""])
