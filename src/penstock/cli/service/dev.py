"""`penstock dev`: servers for development on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from penstock.cli.output import console, json_option, show
from penstock.cli.session import configuration
from penstock.errors import UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from penstock.components import KafkaCluster

PIDS = "pids.json"

folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it keeps its data; else dev-kafka in the data folder.",
)


@click.group("dev")
def command() -> None:
    """Run servers for development on this machine."""


@command.group("kafka")
def kafka() -> None:
    """Run a Kafka cluster with users and ACLs, on loopback."""


@kafka.command("start")
@folder_option
@click.option("--brokers", type=click.IntRange(1, 9), default=1, show_default=True)
@json_option
def start(folder: Path | None, brokers: int, as_json: bool) -> None:
    """Start a cluster in the background, and wait until it is ready.

    What it holds stays in its folder: start it again to go on.
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
    """End the cluster in order; what it holds stays."""
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
