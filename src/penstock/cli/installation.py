"""`penstock init`, `password`, `doctor` and `dev`: an installation is made, gets users, is checked.

`dev` runs servers for development on this machine.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import console, counted, json_option, show, table
from penstock.cli.session import ask_new_password, configuration
from penstock.errors import UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from penstock.components import KafkaCluster
    from penstock.config import Config
    from penstock.supervisor.checks import Finding

PIDS = "pids.json"

folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it keeps its data; default: dev-kafka in the data folder.",
)


@click.group("dev")
def dev() -> None:
    """Run servers for development on this machine."""


@dev.group("kafka")
def kafka() -> None:
    """Run a Kafka cluster with users and ACLs, on loopback."""


@kafka.command("start")
@folder_option
@click.option("--brokers", type=click.IntRange(1, 9), default=1, show_default=True)
@json_option
def start(folder: Path | None, brokers: int, as_json: bool) -> None:
    """Start a cluster in the background, and wait until it is ready.

    Its data stays in its folder: start it again to go on.
    """
    from penstock.components import KafkaCluster

    place = _place(folder)
    if _running(place):
        raise UsageError(
            f"the cluster of {quote(place)} runs already", fix="`penstock dev kafka status`"
        )
    cluster = KafkaCluster(place, brokers=brokers)
    if not as_json:
        console(errors=True).print(f"starting {_count(brokers)} …", style="dim")
    cluster.start()
    (place / PIDS).write_text(json.dumps(cluster.pids))
    show(as_json, _describe(cluster), lambda target: _render(target, cluster))


@kafka.command("stop")
@folder_option
@json_option
def stop(folder: Path | None, as_json: bool) -> None:
    """Stop the cluster in order; its data is kept."""
    from penstock.components.kafka import end_processes

    place = _place(folder)
    running = _running(place)
    if not running:
        raise UnavailableError(
            f"no cluster of {quote(place)} runs", fix="`penstock dev kafka start` starts one"
        )
    end_processes(running)
    (place / PIDS).unlink(missing_ok=True)
    show(
        as_json,
        {"stopped": sorted(running)},
        lambda out: out.print(f"stopped {_count(len(running))}"),
    )


@kafka.command("status")
@folder_option
@json_option
def status(folder: Path | None, as_json: bool) -> None:
    """Say whether the cluster runs, where, and who administers it."""
    from penstock.components import KafkaCluster
    from penstock.components.kafka import answers

    place = _place(folder)
    running = _running(place)
    if not running:
        raise UnavailableError(
            f"no cluster of {quote(place)} runs", fix="`penstock dev kafka start` starts one"
        )
    held = json.loads((place / "cluster.json").read_text())
    cluster = KafkaCluster(place, brokers=len(held["nodes"]))
    nodes = {
        node.number: "ready" if node.number in running and answers(node.client) else "down"
        for node in cluster.nodes
    }

    def render(target: Console) -> None:
        target.print(", ".join(f"node {number} {state}" for number, state in nodes.items()))
        _render(target, cluster)

    show(as_json, {**_describe(cluster), "nodes": nodes}, render)


def _count(nodes: int) -> str:
    return f"{nodes} node{'' if nodes == 1 else 's'} of Kafka"


def _place(folder: Path | None) -> Path:
    return (folder or configuration().data / "dev-kafka").absolute()


def _running(place: Path) -> dict[int, int]:
    """Return the process ids of the nodes that run."""
    from penstock.components.kafka import is_node

    try:
        held = json.loads((place / PIDS).read_text())
    except FileNotFoundError:
        return {}
    return {int(number): pid for number, pid in held.items() if is_node(pid)}


def _describe(cluster: KafkaCluster) -> dict[str, Any]:
    return {
        "bootstrap": cluster.bootstrap,
        "security": "sasl_plaintext",
        "user": "admin",
        "password_file": str(cluster.admin_password_file),
        "properties": str(cluster.admin_properties_file),
        "folder": str(cluster.folder),
    }


def _render(target: Console, cluster: KafkaCluster) -> None:
    said = _describe(cluster)
    target.print("for penstock.yaml:", style="dim")
    # Not wrapped: a path must stay whole, so that it can be copied.
    for line in (
        "kafka:",
        f"  bootstrap: {said['bootstrap']}",
        f"  security: {said['security']}",
        f"  user: {said['user']}",
        f"  password: {{file: {said['password_file']}}}",
    ):
        target.print(line, soft_wrap=True, markup=False)
    target.print(f"for Kafka's own tools: {said['properties']}", style="dim", soft_wrap=True)


READABLE = 0o644


@click.command("init")
@click.option("--force", is_flag=True, help="Replace an existing file; keys are kept.")
@json_option
@click.pass_context
def init(ctx: click.Context, force: bool, as_json: bool) -> None:
    """Write a commented penstock.yaml and the keys it names.

    The file lists every setting with its default and its meaning. An existing file is kept
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
    from penstock.trust.keys import open_key

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
    open_key(config.trust.key)
    return [*made, *map(str, missing)]


@click.command("password")
@click.argument("user")
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The password file; default: gateway.authentication.passwords of penstock.yaml.",
)
@click.option("--client-ids", default="", metavar="ID,ID*", help="Further client identifiers.")
@click.option("--remove", is_flag=True, help="Remove the user.")
@json_option
def password(user: str, path: Path | None, client_ids: str, remove: bool, as_json: bool) -> None:
    """Set the password of USER; it is asked for, or read from standard input."""
    from penstock.gateway.connection.authentication import (
        check_name,
        remove_password,
        write_password,
    )

    check_name(user)
    file = path or configuration().gateway.authentication.passwords
    if file is None:
        raise UsageError(
            "no file of passwords is named",
            fix="set gateway.authentication.passwords in penstock.yaml, or use --file",
        )
    if not remove:
        write_password(file, user, ask_new_password(), client_ids)
    elif not remove_password(file, user):
        raise UsageError(f"there is no user {quote(user)} in {quote(file)}", fix="check the name")
    action = "removed" if remove else "set"
    show(
        as_json,
        {"user": user, "file": str(file), "action": action},
        lambda out: out.print(f"{action} the password of {user} in {file}", highlight=False),
    )


@click.command("doctor")
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Report what is installed, what is missing, and how to fix it.

    The exit code is 0 if everything that the configured parts need is there, else 3.
    """
    from penstock.supervisor.installation_checks import run_checks
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
        console.print(
            Text(f"{counted(bad, 'problem')} to fix before the parts can run", "bold red")
        )
    else:
        console.print(Text(f"ready to run, {counted(warnings, 'warning')}", "green"))
