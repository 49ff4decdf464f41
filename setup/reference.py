"""Writes the generated parts of the reference anew: settings, kinds, commands, metrics.

Each page has a head that people wrote, a mark, and what follows from the models.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

import penstock
from penstock.cli.entry import VERBS
from penstock.cli.entry import penstock as verbs
from penstock.config.catalogue import ANY_NAME, Config, Setting, keys_at, show
from penstock.definitions.documents import schema_of
from penstock.model.kinds import KINDS
from penstock.telemetry import metrics, redaction
from penstock.yaml_text import Steps, dotted

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
MARK = "<!-- What follows is written by `make docs`. -->\n"
SOURCES = Path(penstock.__file__).parent


def import_what_counts() -> None:
    """Import all modules that log or count: that is what makes their metrics and fields known."""
    for path in sorted(SOURCES.rglob("*.py")):
        if "penstock.telemetry" in path.read_text():
            parts = path.relative_to(SOURCES.parent).with_suffix("").parts
            importlib.import_module(".".join(it for it in parts if it != "__init__"))


def write_settings() -> str:
    """Return one table per group: each setting, its values, its default, its meaning."""
    return "\n".join(_tables((), Config.__doc__ or ""))


def _tables(path: Steps, text: str) -> Iterator[str]:
    settings = list((keys_at(Config, path) or {}).values())
    yield f"## {f'`{dotted(path)}`' if path else 'Top level'}\n"
    yield f"{text}\n"
    rows = [_setting_row(setting) for setting in settings if setting.group is None]
    if rows:
        yield "| Setting | Value | Default | Meaning |"
        yield "| --- | --- | --- | --- |"
        yield from rows
        yield ""
    for setting in settings:
        if setting.group is not None:
            yield from _tables(setting.path, setting.description)
        elif setting.named_group is not None:
            yield from _tables((*setting.path, ANY_NAME), setting.named_group.__doc__ or "")


def _setting_row(setting: Setting) -> str:
    value = setting.kind + (f" ({setting.bounds})" if setting.bounds else "")
    default = "" if setting.default is None else f"`{show(setting.default)}`"
    meaning = f"{setting.description}<br>`{setting.variable}`"
    return f"| `{setting.path[-1]}` | {value} | {default} | {meaning} |"


NAMES = {"object": "map", "string": "text", "boolean": "`true` or `false`"}


def write_kinds() -> str:
    """Return one section per kind: what it is, and a table of its fields."""
    return "\n".join(line for kind in sorted(KINDS) for line in _kind_section(kind))


def _kind_section(kind: str) -> Iterator[str]:
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


def write_commands() -> str:
    """Return one section per verb: how it is called, what it does, its options."""
    context = click.Context(verbs, info_name="penstock")
    lines = ["| Verb | What it does |", "| --- | --- |"]
    lines += [f"| [`{name}`](#penstock-{name}) | {verb.about} |" for name, verb in VERBS.items()]
    lines.append("")
    for name in VERBS:
        command = verbs.get_command(context, name)
        if command is not None:
            lines += _command_section(command, click.Context(command, context, name), level=2)
    return "\n".join(lines)


def _command_section(
    command: click.Command, context: click.Context, *, level: int
) -> Iterator[str]:
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
                yield from _command_section(
                    below, click.Context(below, context, name), level=level + 1
                )


def write_metrics() -> str:
    """Return the tables of all metrics and of all log fields."""
    import_what_counts()
    lines = ["## Metrics\n", "| Metric | Type | Labels | Meaning |", "| --- | --- | --- | --- |"]
    for one in metrics.catalogue():
        if not one.module.startswith("penstock."):
            continue  # declared by a test
        labels = "; ".join(f"`{name}`: {', '.join(values)}" for name, values in one.labels.items())
        lines.append(f"| `{one.name}` | {one.type} | {labels} | {one.help} |")
    lines += ["", "## Log fields\n", "| Field | Shape |", "| --- | --- |"]
    lines += [f"| `{name}` | {shape} |" for name, shape in redaction.allowed().items()]
    return "\n".join([*lines, ""])


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": write_settings,
    "definitions.md": write_kinds,
    "command-line.md": write_commands,
    "metrics-and-logs.md": write_metrics,
}


def make_page(name: str) -> str:
    """Return the page as it should be."""
    head, mark, _ = (FOLDER / name).read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise SystemExit(f"docs/reference/{name} has lost its mark: {MARK.strip()}")
    return f"{head}{MARK}\n{PAGES[name]()}"


if __name__ == "__main__":
    for page in PAGES:
        (FOLDER / page).write_text(make_page(page), encoding="utf-8")
        print(f"docs/reference/{page}")
