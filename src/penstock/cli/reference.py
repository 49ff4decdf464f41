"""Writes the reference in Markdown: of the command line, and of metrics and log fields.

Metrics are declared by the parts that count; whoever calls this imports those first.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from penstock.cli.entry import VERBS, penstock
from penstock.telemetry import metrics, redaction


def write_commands() -> str:
    """Return one section per verb: how it is called, what it does, its options."""
    context = click.Context(penstock, info_name="penstock")
    lines = ["| Verb | What it does |", "| --- | --- |"]
    lines += [f"| [`{name}`](#penstock-{name}) | {verb.about} |" for name, verb in VERBS.items()]
    lines.append("")
    for name in VERBS:
        command = penstock.get_command(context, name)
        if command is not None:
            lines += _section(command, click.Context(command, context, name), level=2)
    return "\n".join(lines)


def _section(command: click.Command, context: click.Context, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{context.command_path}`\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```\n"
    text = (command.help or "").replace("\b", "")
    yield "\n".join(line.strip() for line in text.splitlines()) + "\n"
    rows = [
        record
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context)) and "--help" not in record[0]
    ]
    if rows:
        yield "| Option | Meaning |"
        yield "| --- | --- |"
        for names, meaning in rows:
            shown = names.replace("|", "\\|")
            yield f"| `{shown}` | {' '.join(meaning.split())} |"
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _section(below, click.Context(below, context, name), level=level + 1)


def write_metrics() -> str:
    """Return the tables of all metrics declared so far and of all log fields."""
    lines = ["## Metrics\n", "| Metric | Type | Labels | Meaning |", "| --- | --- | --- | --- |"]
    for one in metrics.catalogue():
        if not one.module.startswith("penstock."):
            continue  # declared by a test
        labels = "; ".join(f"`{name}`: {', '.join(values)}" for name, values in one.labels.items())
        lines.append(f"| `{one.name}` | {one.type} | {labels} | {one.help} |")
    lines += ["", "## Log fields\n", "| Field | Shape |", "| --- | --- |"]
    lines += [f"| `{name}` | {shape} |" for name, shape in redaction.allowed().items()]
    return "\n".join([*lines, ""])
