"""Controls, front ends and services are registered over the network, by those alone who may."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from penstock.client.privacy import privacy_pb2 as messages
from penstock.model.document import Key
from penstock.store.definitions.history import Definitions
from tests.support.server.installation import ServerInstallation

SERVICE = {
    "subjects": ["user:mail"], "control": "forget", "uri": "https://mail.example/privacy",
    "time_to_honor": "10d",
}  # fmt: skip
Said = tuple[Any, dict[str, Any]]
"""A status, 200 for success, and what was said."""
_STATUSES = {grpc.StatusCode.NOT_FOUND: 404, grpc.StatusCode.INVALID_ARGUMENT: 422}


class OverRest:
    """Asks by REST."""

    def __init__(self, server: ServerInstallation) -> None:
        self.server = server

    def call(
        self, what: str, kind: str, name: str, body: Any = None, user: str = "officer"
    ) -> Said:
        method = {"show": "GET", "define": "PUT", "undefine": "DELETE"}[what]
        content = {"body": body} if what == "define" else None
        made = self.server.call(method, f"/v1/definitions/{kind}/{name}", content, user=user)
        return made.status, made.content


class OverGrpc(OverRest):
    """Asks by gRPC."""

    def call(
        self, what: str, kind: str, name: str, body: Any = None, user: str = "officer"
    ) -> Said:
        procedure = {"show": "ShowDefinition", "define": "Define", "undefine": "Undefine"}[what]
        given: Any = messages.DefinitionName(kind=kind, name=name)
        if what == "define":
            given = messages.Definition(kind=kind, name=name, json_text=json.dumps(body))
        proof = (("authorization", f"Bearer {self.server.tokens[user]}"),)
        with grpc.insecure_channel(f"127.0.0.1:{self.server.grpc_port}") as channel:
            called = channel.unary_unary(f"/penstock.v1.PrivacyRequests/{procedure}")
            try:
                made = called(given.SerializeToString(), metadata=proof, timeout=60)
            except grpc.RpcError as raised:
                error: Any = raised
                told = dict(error.trailing_metadata())["penstock-problem-bin"]
                problem = messages.Problem.FromString(told)
                said = {"places": list(problem.places), "fix": problem.fix}
                return _STATUSES[error.code()], said
        if what == "show":
            found = messages.Definition.FromString(made)
            return 200, {"body": json.loads(found.json_text)}
        change = messages.DefinitionChange.FromString(made)
        return 200, {"epoch": change.epoch, "changed": change.changed}


@pytest.fixture(params=[OverRest, OverGrpc])
def over(request: pytest.FixtureRequest, server: ServerInstallation) -> Iterator[OverRest]:
    made: Callable[[ServerInstallation], OverRest] = request.param
    asked = made(server)
    yield asked
    asked.call("undefine", "control-subscriber", "mail")


def epoch(server: ServerInstallation) -> int:
    with server.open_database() as database:
        return Definitions(database).snapshot().epoch


def test_a_service_is_registered_changed_told_and_deleted(over: OverRest) -> None:
    where = ("control-subscriber", "mail")
    assert over.call("show", *where)[0] == 404
    status, made = over.call("define", *where, SERVICE)
    assert (status, made["changed"]) == (200, True)
    status, again = over.call("define", *where, SERVICE)
    assert (status, again["changed"], again["epoch"]) == (200, False, made["epoch"])
    assert over.call("show", *where)[1]["body"] == SERVICE
    # From the answer on, it is concerned.
    request = over.server.submit(key=f"{type(over).__name__}-1").content["request"]
    shown = over.server.call("GET", f"/v1/requests/{request}").content["progress"]
    assert {it["subscriber"] for it in shown} == {"crm", "mail"}
    with over.server.open_database() as database:
        (newest,) = Definitions(database).history(Key(*where), 1)
        assert newest.actor == "officer"
    assert over.call("undefine", *where)[0] == 200
    assert over.call("undefine", *where)[0] == 404


@pytest.mark.parametrize(
    ("kind", "name", "body", "words"),
    [
        ("control-subscriber", "mail", SERVICE | {"time_to_honor": "99d"}, "time_to_honor"),
        ("control-subscriber", "mail", SERVICE | {"uri": "https://u:p@mail.example/"}, "password"),
        ("control-subscriber", "mail", SERVICE | {"control": "none"}, "none"),
        ("control-subscriber", "mail", SERVICE | {"more": 1}, "more"),
        ("control-publisher", "portal", {"subjects": ["user:portal"]}, "controls"),
        ("control", "forget", {"stateful": True, "operation": "delete"}, "operation"),
    ],
)
def test_what_is_wrong_is_refused_with_every_problem(
    over: OverRest, kind: str, name: str, body: dict[str, Any], words: str
) -> None:
    before = epoch(over.server)
    status, said = over.call("define", kind, name, body)
    assert status == 422
    assert any(words in it for it in said["places"]), said
    assert epoch(over.server) == before


def test_what_others_name_stays(over: OverRest) -> None:
    status, said = over.call("undefine", "control", "forget")
    assert status == 422
    assert any("portal" in it for it in said["places"]), said


@pytest.mark.parametrize("user", ["portal", "crm", "nobody"])
def test_nobody_else_sees_or_changes_any(over: OverRest, user: str) -> None:
    before = epoch(over.server)
    mine = SERVICE | {"subjects": [f"user:{user}"]}
    for what in ("show", "define", "undefine"):
        for name in ("crm", "none"):
            assert over.call(what, "control-subscriber", name, mine, user)[0] == 404
    assert epoch(over.server) == before


def test_no_other_kind_can_be_named(over: OverRest) -> None:
    before = epoch(over.server)
    body = {"subjects": ["user:portal"], "administer": True}
    for what in ("show", "define", "undefine"):
        assert over.call(what, "right", "officers", body)[0] == 422
    assert epoch(over.server) == before
