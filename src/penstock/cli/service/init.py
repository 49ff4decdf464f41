"""`penstock init`: write a commented penstock.yaml, the data folder and the keys."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, show
from penstock.errors import UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from penstock.config import Config

READABLE = 0o644


@click.command("init")
@click.option("--force", is_flag=True, help="Replace an existing file; keys are kept.")
@json_option
@click.pass_context
def command(ctx: click.Context, force: bool, as_json: bool) -> None:
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
    from penstock.config.reference import write_template

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
