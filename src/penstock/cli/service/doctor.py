"""`penstock doctor`: report what is installed, what is missing, and how to fix it."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, show, table
from penstock.cli.session import configuration
from penstock.errors import UnavailableError

if TYPE_CHECKING:
    from penstock.supervisor.checks import Finding

COLOURS = {"ok": "green", "warning": "yellow", "missing": "bold red", "wrong": "bold red"}


@click.command("doctor")
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Report what is installed, what is missing, and how to fix it.

    The exit code is 0 if everything is there that the configured parts need, else 3.
    """
    from penstock.supervisor.checks import run_checks
    from penstock.supervisor.parts import configured_parts
    from penstock.telemetry import configure

    config = configuration()
    configure(level="error", style=config.log.format)
    findings = run_checks(config, configured_parts(config))
    stops = [finding for finding in findings if finding.stops]
    data = {"ok": not stops, "findings": [asdict(finding) for finding in findings]}
    show(as_json, data, lambda console: _render(console, findings))
    if stops:
        ctx.exit(UnavailableError.exit_code)


def _render(console: Console, findings: list[Finding]) -> None:
    from penstock.supervisor.checks import Verdict

    for topic, group in groupby(findings, key=lambda finding: finding.topic):
        made = table("", topic, "")
        for finding in group:
            detail = Text(finding.detail)
            if finding.fix:
                detail.append(f"\n→ {finding.fix}", "cyan")
            made.add_row(Text(finding.verdict, COLOURS[finding.verdict]), finding.name, detail)
        console.print(made)
        console.print()
    bad = sum(finding.stops for finding in findings)
    warnings = sum(finding.verdict is Verdict.WARNING for finding in findings)
    if bad:
        console.print(Text(f"{bad} to fix before the parts can run", "bold red"))
    else:
        console.print(Text(f"ready to run; warnings: {warnings}", "green"))
