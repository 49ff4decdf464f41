"""The server over gRPC: the same answers as over REST, and the same refusals."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.client.privacy import GrpcTransport, RejectedError, UnreachableError
from penstock.client.privacy import privacy_pb2 as messages
from penstock.components import processes
from tests.support.gateway.certificates import Authority
from tests.support.server.installation import ServerInstallation

ROOT = Path(__file__).parents[3]
Install = Callable[..., ServerInstallation]
Code = grpc.StatusCode


class Caller:
    """Calls procedures with whatever it is given."""

    def __init__(self, server: ServerInstallation) -> None:
        self.server = server
        self.channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")

    def call(
        self,
        procedure: str,
        body: bytes,
        *,
        user: str | None = "portal",
        metadata: tuple[tuple[str, str], ...] = (),
        timeout: float = 20,
    ) -> bytes:
        proof: tuple[tuple[str, str], ...] = ()
        if user is not None:
            proof = (("authorization", f"Bearer {self.server.tokens[user]}"),)
        called = self.channel.unary_unary(f"/penstock.v1.PrivacyRequests/{procedure}")
        return bytes(called(body, metadata=(*proof, *metadata), timeout=timeout))

    def refused(self, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        with pytest.raises(grpc.RpcError) as caught:
            self.call(*arguments, **options)
        error: Any = caught.value
        told = dict(error.trailing_metadata() or ())
        problem = messages.Problem.FromString(told.get("penstock-problem-bin", b""))
        return error.code(), problem


@pytest.fixture(scope="module")
def caller(server: ServerInstallation) -> Iterator[Caller]:
    made = Caller(server)
    yield made
    made.channel.close()


def submission(**changed: Any) -> bytes:
    given = {"publisher": "portal", "key": "grpc", "control": "forget", "action": "delete",
             "subject": "grpc-person"} | changed  # fmt: skip
    return bytes(messages.Submission(**given).SerializeToString())


def test_a_request_is_handed_in_listed_shown_and_completed(caller: Caller) -> None:
    made = messages.Accepted.FromString(caller.call("Submit", submission(key="way")))
    again = messages.Accepted.FromString(caller.call("Submit", submission(key="way")))
    assert (again.request, again.repeated) == (made.request, True)
    batch = messages.Batch(
        requests=[messages.Submission.FromString(submission(key=f"b{it}")) for it in range(3)]
    )
    taken = messages.AcceptedBatch.FromString(caller.call("SubmitBatch", batch.SerializeToString()))
    listed = messages.Requests.FromString(
        caller.call("List", messages.ListRequest(publisher="portal").SerializeToString())
    )
    assert {it.request for it in taken.requests} | {made.request} <= {
        it.request for it in listed.requests
    }
    answer = messages.Answer(request=made.request, subscriber="crm").SerializeToString()
    for procedure, status in (("Acknowledge", "ACKNOWLEDGED"), ("Complete", "COMPLETED")):
        said = messages.Answered.FromString(caller.call(procedure, answer, user="crm"))
        assert said.status == status
    query = messages.StatusRequest(request=made.request).SerializeToString()
    shown = messages.RequestStatus.FromString(caller.call("Status", query))
    assert (shown.status, shown.progress[0].status) == ("COMPLETED", "COMPLETED")
    assert b"grpc-person" not in shown.SerializeToString()


def test_requests_of_others_look_like_none_at_all(caller: Caller) -> None:
    made = messages.Accepted.FromString(caller.call("Submit", submission(key="theirs")))
    answers = [
        caller.refused("Status", messages.StatusRequest(request=it).SerializeToString(), user="app")
        for it in (made.request, "0" * 32)
    ]
    answers += [
        caller.refused(
            "Complete",
            messages.Answer(request=made.request, subscriber="crm").SerializeToString(),
            user=user,
        )
        for user in ("segments", "portal", "nobody")
    ]
    assert {code for code, _ in answers} == {Code.NOT_FOUND}
    assert len({str(problem) for _, problem in answers}) == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (submission(publisher="app"), Code.NOT_FOUND),
        (submission(control="nothing"), Code.INVALID_ARGUMENT),
        (submission(subject=""), Code.INVALID_ARGUMENT),
        (submission(subject="x" * 251), Code.INVALID_ARGUMENT),
        (submission(key="a b"), Code.INVALID_ARGUMENT),
        (b"", Code.INVALID_ARGUMENT),
        (b"\xff\xff\xff", Code.INVALID_ARGUMENT),
        (b"\x0a\x02\xff\xfe", Code.INVALID_ARGUMENT),
        (submission(subject="x" * 300_000), Code.RESOURCE_EXHAUSTED),
    ],
)
def test_what_is_wrong_is_refused_with_the_fix(caller: Caller, body: bytes, code: Any) -> None:
    found, problem = caller.refused("Submit", body)
    assert found is code
    assert problem.fix or code is Code.RESOURCE_EXHAUSTED
    assert "grpc-person" not in str(problem)


def test_a_key_that_names_another_request_exists_already(caller: Caller) -> None:
    caller.call("Submit", submission(key="taken"))
    code, problem = caller.refused("Submit", submission(key="taken", subject="other"))
    assert (code, problem.code) == (Code.ALREADY_EXISTS, "key-reused")


def test_who_is_not_known_gets_nothing_whatever_is_sent(caller: Caller) -> None:
    good = caller.server.tokens["portal"]
    proofs: list[tuple[tuple[str, str], ...]] = [
        (),
        (("authorization", "Bearer x"),),
        (("authorization", f"Bearer {good}x"),),
        (("authorization", f"Bearer {good}"), ("authorization", f"Bearer {good}")),
        (("x-forwarded-user", "portal"),),
    ]
    for proof in proofs:
        for body in (submission(), b"\xff"):
            code, problem = caller.refused("Submit", body, user=None, metadata=proof)
            assert (code, problem.code) == (Code.UNAUTHENTICATED, "unauthenticated")
    assert caller.refused("Nothing", b"")[0] is Code.UNIMPLEMENTED


def test_a_deadline_ends_a_call(caller: Caller) -> None:
    assert caller.refused("Submit", submission(), timeout=0.000001)[0] is Code.DEADLINE_EXCEEDED


def test_strangers_that_say_nothing_keep_nobody_out(install: Install) -> None:
    server = install(limits={"connections": 20})
    server.start()
    transport = GrpcTransport(f"127.0.0.1:{server.grpc_port}", server.tokens["portal"], plain=True)
    assert transport.call("publisher", {"publisher": "portal"})["retries"] == 3
    with ExitStack() as stack:
        for number in range(60):
            it = stack.enter_context(socket.create_connection(("127.0.0.1", server.grpc_port), 20))
            it.sendall(b"PRI * HTTP/2.0\r\n" if number % 2 else b"GET / HTTP/1.1\r\n\r\n")
        assert transport.call("publisher", {"publisher": "portal"})["retries"] == 3
        rest = server.call("GET", "/v1/publishers/portal")
        assert rest.status == 200
    transport.close()


def test_certificates_name_users_and_everybody_has_to_show_one(
    install: Install, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("server")
    port = processes.free_port()
    listener = {
        "protocol": "grpc", "transport": "tls", "port": port, "certificate": str(certificate),
        "key": {"file": str(key)}, "client_ca": str(authority.path),
    }  # fmt: skip
    server = install(listeners={"tls": listener})
    server.start()

    def ask(issuer: Authority | None, name: str, token: str | None = None) -> Any:
        shown = None
        if issuer is not None:
            chain, secret = issuer.issue(name)
            shown = (chain.read_bytes(), secret.read_bytes())
        transport = GrpcTransport(
            f"127.0.0.1:{port}", token, roots=authority.path.read_bytes(), certificate=shown
        )
        try:
            return transport.call("publisher", {"publisher": "portal"})
        finally:
            transport.close()

    assert ask(authority, "portal")["publisher"] == "portal"
    with pytest.raises(RejectedError, match="no such publisher"):
        ask(authority, "app", server.tokens["portal"])  # the certificate says who calls
    with pytest.raises(UnreachableError):
        ask(None, "", server.tokens["portal"])
    with pytest.raises(UnreachableError):
        ask(Authority(tmp_path / "other"), "portal")


def test_the_generated_module_is_that_of_the_messages(tmp_path: Path) -> None:
    made = [
        sys.executable, "-m", "grpc_tools.protoc", "-Isrc", f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}", "src/penstock/client/privacy/privacy.proto",
    ]  # fmt: skip
    subprocess.run(made, check=True, cwd=ROOT, timeout=60)
    for suffix in ("py", "pyi"):
        name = f"penstock/client/privacy/privacy_pb2.{suffix}"
        assert (tmp_path / name).read_text() == (ROOT / "src" / name).read_text(), "`make proto`"
