"""`penstock clients`: who is connected, at all gateways of a store."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from penstock.components import MosquittoServer, PostgresServer
from penstock.mqtt import Disconnect, ReasonCode
from penstock.store.database import Database
from penstock.store.enforcement_points import answers_table, requests_table
from tests.support.commands import run_command
from tests.support.gateway.harness import GatewayProcess, make_process, share
from tests.support.gateway.raw import RawClient
from tests.support.store import postgres_databases

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def gateways(
    request: pytest.FixtureRequest,
    broker: MosquittoServer,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: PostgresServer,
) -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
    folder = tmp_path_factory.mktemp("clients")
    shared = share(folder)
    with ExitStack() as stack:
        if request.param == "postgresql":
            lent = postgres_databases.lend(postgres_server, request.node.nodeid)
            shared["store"] = {"url": stack.enter_context(lent)}
        made = [make_process(folder / name, broker.port, **shared) for name in ("a", "b")]
        yield stack.enter_context(made[0]), stack.enter_context(made[1])


def ask(
    gateway: GatewayProcess, *words: str, verb: str = "clients"
) -> subprocess.CompletedProcess[str]:
    file = gateway.config.file
    assert file is not None
    named = "--config", str(file), verb
    return run_command(file.parent, *named, *words, env={"COLUMNS": "300"})


def told(gateway: GatewayProcess, *words: str) -> dict[str, Any]:
    found = ask(gateway, *words, "--json")
    assert found.returncode == 0, found.stderr
    data: dict[str, Any] = json.loads(found.stdout)
    return data


def test_clients_of_all_gateways_are_listed_shown_and_ended(
    gateways: tuple[GatewayProcess, GatewayProcess], topic: str
) -> None:
    first, second = gateways
    with RawClient(first.port) as near, RawClient(second.port, version=4) as far:
        near.connect("near")
        far.connect("far")
        near.publish(f"!RESERVE/{topic}/HASH{{billing}}", qos=1)
        far.subscribe(f"!AP/{topic}/HASH{{billing}}", qos=1)
        far.subscribe(f"{topic}/plain", qos=1)
        listed = told(first, "list")
        assert (listed["count"], listed["gateways"], listed["answered"]) == (2, 2, 2)
        named = {it["client"]: it for it in listed["clients"]}
        assert (named["near"]["mqtt"], named["far"]["mqtt"]) == ("5", "3.1.1")
        assert named["near"]["gateway"] != named["far"]["gateway"]
        near.publish(f"{topic}/plain", b"x", qos=1)
        far.settle()
        shown = told(first, "show", "far")
        filters = {(it["filter"], it["purpose"]) for it in shown["filters"]}
        assert filters == {(f"{topic}/#", "billing"), (f"{topic}/plain", None)}
        people = ask(first, "show", "far")
        assert f"{topic}/plain" in people.stdout
        assert told(second, "kick", "near")["ended"]
        assert near.expect(Disconnect).reason == ReasonCode.ADMINISTRATIVE_ACTION
        assert [it["client"] for it in told(second, "list")["clients"]] == ["far"]
        assert told(first, "kick", "far")["ended"]
        far.wait_closed()
        gone = ask(first, "show", "near")
        assert (gone.returncode, "'near'" in gone.stderr) == (1, True)


def test_no_client_hides_or_ends_what_is_shown_by_the_names_it_chose(
    gateways: tuple[GatewayProcess, GatewayProcess], topic: str
) -> None:
    first, _ = gateways
    name = "[conceal]mallory[/x]"
    with RawClient(first.port) as mallory:
        mallory.connect(name)
        mallory.subscribe(f"{topic}/[/b]/#")
        mallory.publish(f"!RESERVE/{topic}/[/]{{billing}}", qos=1)
        for words, shown in ((("list",), name), (("show", name), f"{topic}/[/b]/#")):
            found = ask(first, *words)
            assert (found.returncode, shown in found.stdout) == (0, True), found.stderr
        found = ask(first, "reservation", verb="get")
        assert (found.returncode, f"{topic}/[/]" in found.stdout) == (0, True), found.stderr


def test_no_client_hides_by_the_length_of_what_it_chose(
    gateways: tuple[GatewayProcess, GatewayProcess], topic: str
) -> None:
    """Long names made an answer too long: nobody was listed, and whoever was long was nobody."""
    first, _ = gateways
    with ExitStack() as stack:
        for number in range(80):
            crowd = stack.enter_context(RawClient(first.port))
            assert not crowd.connect(f"{number:02}" + "\u4e00" * 12_000).reason
        mallory = stack.enter_context(RawClient(first.port))
        assert not mallory.connect("mallory-" + "x" * 5_000).reason
        long = "\u4e00" * 1_300
        for start in range(0, 600, 100):
            mallory.subscribe(*(f"{topic}/{it}/{long}" for it in range(start, start + 100)))
        listed = told(first, "list")
        assert listed["count"] >= 81
        assert len(listed["clients"]) == listed["count"]
        (name,) = (it["client"] for it in listed["clients"] if it["client"].startswith("mallory-"))
        shown = told(first, "show", name)
        assert (shown["subscriptions"], len(shown["filters"])) == (600, 600)
        assert told(first, "kick", name)["ended"]
        mallory.wait_closed()


def test_nothing_that_was_asked_stays_in_the_store(
    gateways: tuple[GatewayProcess, GatewayProcess],
) -> None:
    first, _ = gateways
    told(first, "list")
    with (
        Database.open(first.config.store.connection_url()) as database,
        database.read() as connection,
    ):
        for table in (requests_table, answers_table):
            assert connection.execute(table.select()).all() == []


def test_a_gateway_that_does_not_answer_is_told(
    gateways: tuple[GatewayProcess, GatewayProcess],
) -> None:
    first, second = gateways
    second.kill()
    try:
        found = ask(first, "list", "--json")
        assert "1 of 2 gateways did not answer" in found.stderr
        assert json.loads(found.stdout)["answered"] == 1
    finally:
        second.start()
