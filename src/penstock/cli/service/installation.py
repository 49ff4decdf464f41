"""`penstock init`, `password` and `doctor`: an installation is made, gets users, and is checked."""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, show, table
from penstock.cli.session import ask_new_password, configuration
from penstock.errors import UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.supervisor.checks import Finding

READABLE = 0o644


@click.command("init")
@click.option("--force", is_flag=True, help="Replace an existing file; keys are kept.")
@json_option
@click.pass_context
def init(ctx: click.Context, force: bool, as_json: bool) -> None:
    """Write a commented penstock.yaml and the keys it names.

    Every setting stands in it with its default and its meaning. An existing file is kept
    unless --force is given; an existing key is always kept.
    """
    from penstock.config import FILE_NAME, load

    path = Path(ctx.find_root().obj or FILE_NAME)
    try:
        _write_settings(path, force=force)
        config = load(path)
        made = [str(path), *_make_data(config)]
    except OSError as error:
        raise UnavailableError(
            f"cannot write {quote(error.filename or path)}: {error.strerror}",
            fix="choose another place with --config FILE",
        ) from None

    def render(console: Console) -> None:
        for item in made:
            console.print(Text.assemble(("wrote ", "green"), item))
        console.print(
            "next: set gateway.authentication in it, so that clients can connect; then "
            "`penstock doctor` checks this machine and `penstock up` runs the parts",
            soft_wrap=True,
        )

    show(as_json, {"config": str(path), "data": str(config.data), "wrote": made}, render)


def _write_settings(path: Path, *, force: bool) -> None:
    """Write the file whole, and never over another one unless that is wanted."""
    from penstock.config.catalogue import write_template

    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, READABLE)
            file.write(write_template())
        if force:
            Path(name).replace(path)
            return
        os.link(name, path)
        Path(name).unlink()
    except FileExistsError:
        Path(name).unlink()
        raise UsageError(
            f"{quote(path)} exists already",
            fix="edit it; or --force replaces it, and your settings in it are lost",
        ) from None


def _make_data(config: Config) -> list[str]:
    """Make the data folder and the keys that are missing; return what was made."""
    from penstock.components.mosquitto import generate_password
    from penstock.config import KeyFile
    from penstock.config.secrets import generate_key
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.audit.signatures import Signer
    from penstock.telemetry import configure

    # What follows logs that it made a key; here that is said anyway.
    configure(level="error", style=config.log.format)
    made = []
    if not config.data.exists():
        config.data.mkdir(mode=0o700, parents=True)
        made.append(f"{config.data}/")
    keys = [secret for _, secret in config.secrets() if isinstance(secret, KeyFile)]
    missing = [key.path for key in keys if not key.path.exists()]
    Signer.open(config.audit.signing_key)
    Pseudonyms.open(config.audit.pseudonym_key)
    config.consent.key.read_or_create(generate_key)
    config.broker.key.read_or_create(generate_password)
    config.kafka.key.read_or_create(generate_key)
    config.pipeline.key.read_or_create(generate_key)
    return [*made, *map(str, missing)]


@click.command("password")
@click.argument("user")
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file; else gateway.authentication.passwords of penstock.yaml.",
)
@click.option("--client-ids", default="", metavar="ID,ID*", help="Further client identifiers.")
@click.option("--remove", is_flag=True, help="Remove the user.")
@json_option
def password(user: str, path: Path | None, client_ids: str, remove: bool, as_json: bool) -> None:
    """Set the password of USER; it is asked for, or read from standard input."""
    from argon2 import PasswordHasher

    from penstock.gateway.connection.authentication import check_name

    check_name(user)
    file = path or configuration().gateway.authentication.passwords
    if file is None:
        raise UsageError(
            "no file of passwords is named",
            fix="set gateway.authentication.passwords in penstock.yaml, or use --file",
        )
    lines = file.read_text().splitlines() if file.exists() else []
    kept = [line for line in lines if line.partition(":")[0] != user]
    if remove and len(kept) == len(lines):
        raise UsageError(f"there is no user {quote(user)} in {quote(file)}", fix="check the name")
    if not remove:
        hashed = PasswordHasher().hash(ask_new_password())
        kept.append(f"{user}:{hashed}" + (f":{client_ids}" if client_ids else ""))
    _replace(file, "".join(f"{line}\n" for line in kept))
    action = "removed" if remove else "set"
    show(
        as_json,
        {"user": user, "file": str(file), "action": action},
        lambda out: out.print(f"{action} the password of {user} in {file}", highlight=False),
    )


def _replace(file: Path, content: str) -> None:
    """Put the new content in place at once, readable by its owner alone."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    with os.fdopen(descriptor, "w") as new:
        os.fchmod(descriptor, 0o600)
        new.write(content)
        new.flush()
        os.fsync(descriptor)
    Path(name).replace(file)


@click.command("doctor")
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Report what is installed, what is missing, and how to fix it.

    The exit code is 0 if everything is there that the configured parts need, else 3.
    """
    from penstock.supervisor.checks.installation import run_checks
    from penstock.supervisor.parts import configured_parts
    from penstock.telemetry import configure

    config = configuration()
    configure(level="error", style=config.log.format)
    findings = run_checks(config, configured_parts(config))
    stops = [finding for finding in findings if finding.stops]
    data = {"ok": not stops, "findings": [asdict(finding) for finding in findings]}
    show(as_json, data, lambda console: _render_findings(console, findings))
    if stops:
        ctx.exit(UnavailableError.exit_code)


def _render_findings(console: Console, findings: list[Finding]) -> None:
    from penstock.supervisor.checks import Verdict

    colours = {Verdict.OK: "green", Verdict.WARNING: "yellow"}
    for topic, group in groupby(findings, key=lambda finding: finding.topic):
        made = table("", topic, "")
        for finding in group:
            detail = Text(finding.detail)
            if finding.fix:
                detail.append(f"\n→ {finding.fix}", "cyan")
            colour = colours.get(finding.verdict, "bold red")
            made.add_row(Text(finding.verdict, colour), finding.name, detail)
        console.print(made)
        console.print()
    bad = sum(finding.stops for finding in findings)
    warnings = sum(finding.verdict is Verdict.WARNING for finding in findings)
    if bad:
        console.print(Text(f"{bad} to fix before the parts can run", "bold red"))
    else:
        console.print(Text(f"ready to run; warnings: {warnings}", "green"))
