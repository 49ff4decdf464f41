"""How Penstock logs in at Kafka besides SCRAM: by password, by token, by certificate; and users
with certificates.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError
from pyspark.sql import SparkSession
from typing_extensions import override

from penstock.components import KafkaCluster
from penstock.components.processes import free_port
from penstock.config.brokers import (
    KafkaSettings,
    KafkaTokenSettings,
    KafkaUserLoginSettings,
)
from penstock.config.secrets import SecretFile
from penstock.errors import PenstockError, UnavailableError
from penstock.eventlog.kafka import KafkaLog
from penstock.kafka import Cluster
from penstock.kafka.credentials import LoginRefusedError
from penstock.model.document import Document
from penstock.pipeline.sources.kafka import connector_options
from tests.support.gateway.certificates import Authority
from tests.support.gateway.tokens import TokenIssuer
from tests.support.kafka.officers import Officer, open_officer, settings_for, stream, view

pytestmark = pytest.mark.needs("java", "jars")

SECRET = "the secret of the client"  # noqa: S105 - of this test
PASSWORD = "plain-password"  # noqa: S105 - of this test
VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class OpenCluster(KafkaCluster):
    """A broker with a listener for each way to log in."""

    def __init__(self, authority: Authority, issuer: TokenIssuer) -> None:
        self.ports = {name: free_port() for name in ("PLAIN", "TOKEN", "CERTIFICATE")}
        self._authority = authority
        self._issuer = issuer
        super().__init__()

    @override
    def _format_missing(self) -> None:
        super()._format_missing()
        file = self.folder / "node-1" / "server.properties"
        held = dict(line.split("=", 1) for line in file.read_text().splitlines())
        certificate, key = self._authority.issue("broker")
        store = self.folder / "broker.pem"
        store.write_text(key.read_text() + certificate.read_text())
        places = [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        kinds = {"PLAIN": "SASL_SSL", "TOKEN": "SASL_PLAINTEXT", "CERTIFICATE": "SSL"}
        more: dict[str, Any] = {
            "listeners": ",".join([held["listeners"], *places]),
            "advertised.listeners": ",".join([held["advertised.listeners"], *places]),
            "listener.security.protocol.map": ",".join(
                [held["listener.security.protocol.map"], *(f"{k}:{v}" for k, v in kinds.items())]
            ),
            "super.users": held["super.users"] + ";User:CN=penstock;User:plain;User:token",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self._authority.path,
            "listener.name.certificate.ssl.client.auth": "required",
            "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.plain.plain.sasl.jaas.config": f'{PLAIN} user_plain="{PASSWORD}";',
            "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.token.oauthbearer.sasl.jaas.config": OAUTH,
            "listener.name.token.oauthbearer.sasl.server.callback.handler.class": VALIDATOR,
            "listener.name.token.sasl.oauthbearer.jwks.endpoint.url": self._issuer.path.as_uri(),
            "listener.name.token.sasl.oauthbearer.expected.audience": "kafka",
        }
        # What comes later in such a file counts.
        with file.open("a") as target:
            target.writelines(f"{name}={value}\n" for name, value in more.items())


@contextmanager
def serve_tokens(issuer: TokenIssuer) -> Iterator[str]:
    """Give the address of a log-in service that knows one client."""

    class Endpoint(BaseHTTPRequestHandler):
        @override
        def log_message(self, *_: object) -> None: ...

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            known = self.headers["Authorization"] == _basic("penstock", SECRET)
            answer: dict[str, Any] = {"error": "invalid_client"}
            if known and "grant_type=client_credentials" in form:
                token = issuer.issue(
                    "token", scope="kafka", iat=issuer.claims("token")["exp"] - 600
                )
                answer = {"access_token": token, "token_type": "bearer", "expires_in": 600}
            body = json.dumps(answer).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _basic(user: str, password: str) -> str:
    import base64  # noqa: PLC0415 - here alone

    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def secret(folder: Path, text: str) -> SecretFile:
    file = folder / f"secret-{len(list(folder.iterdir()))}"
    file.touch(mode=0o600)
    file.write_text(text + "\n")
    return SecretFile(file)


class Ways:
    """The cluster, and settings for each way to log in at it."""

    def __init__(self, cluster: OpenCluster, authority: Authority, tokens: str, at: Path) -> None:
        self.cluster, self.authority, self.tokens, self.folder = cluster, authority, tokens, at

    def settings(self, name: str, **more: Any) -> KafkaSettings:
        plain = settings_for(self.cluster, self.folder)
        certificate, key = self.authority.issue("penstock")
        own: dict[str, dict[str, Any]] = {
            "PLAIN": {
                "security": "sasl_ssl",
                "mechanism": "PLAIN",
                "user": "plain",
                "ca": self.authority.path,
                "password": secret(self.folder, PASSWORD),
            },
            "TOKEN": {
                "mechanism": "OAUTHBEARER",
                "user": "token",
                "password": None,
                "token": KafkaTokenSettings(url=self.tokens, secret=secret(self.folder, SECRET)),
            },
            "CERTIFICATE": {
                "security": "ssl",
                "ca": self.authority.path,
                "password": None,
                "certificate": certificate,
                "certificate_key": SecretFile(key),
                "user_logins": KafkaUserLoginSettings(
                    bootstrap=self.cluster.bootstrap, security="sasl_plaintext"
                ),
            },
        }
        at = {"bootstrap": f"127.0.0.1:{self.cluster.ports[name]}"}
        return plain.model_copy(update={**at, **own[name], **more})


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    folder = tmp_path_factory.mktemp("logins")
    authority = Authority(folder / "authority")
    issuer = TokenIssuer(folder / "keys.json", audience="kafka")
    patch = pytest.MonkeyPatch()
    # Brokers of Kafka 4 read keys from addresses alone that are allowed on their command line.
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.path.as_uri()}"
    patch.setenv("KAFKA_JVM_PERFORMANCE_OPTS", f"-XX:+UseSerialGC {allowed}")
    with patch.context(), serve_tokens(issuer) as url, OpenCluster(authority, issuer) as cluster:
        yield Ways(cluster, authority, url, folder)
    patch.undo()


@pytest.mark.parametrize("name", ["PLAIN", "TOKEN", "CERTIFICATE"])
def test_each_way_administers_appends_reads_and_feeds_spark(
    ways: Ways, spark: SparkSession, name: str
) -> None:
    settings = ways.settings(name)
    with Cluster(settings) as cluster:
        assert "admin" in cluster.users()
        assert cluster.brokers()
    log = KafkaLog(settings)
    topic = log.topic(f"from-{name.lower()}")
    assert log.make_topic(topic.name)
    topic.append([b"one", b"two"])
    assert [record.value for record in topic.read()] == [b"one", b"two"]
    options = {**connector_options(log), "subscribe": topic.name, "startingOffsets": "earliest"}
    rows = spark.read.format("kafka").options(**options).load().select("value").collect()
    assert sorted(bytes(row.value) for row in rows) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("PLAIN", lambda it: {"password": secret(it.folder, "another")}, "does not let 'plain' in"),
        (
            "TOKEN",
            lambda it: {
                "token": KafkaTokenSettings(url=it.tokens, secret=secret(it.folder, "another"))
            },
            "log-in service gave no token.*401",
        ),
        (
            "CERTIFICATE",
            lambda it: dict(
                zip(
                    ("certificate", "certificate_key"),
                    _strange_certificate(it.folder),
                    strict=True,
                )
            ),
            "cannot be reached.*broke off",
        ),
    ],
)
def test_who_is_not_let_in_hears_why(
    ways: Ways, name: str, wrong: Callable[[Ways], dict[str, Any]], said: str
) -> None:
    settings = ways.settings(name, **wrong(ways))
    with pytest.raises((UnavailableError, LoginRefusedError), match=f"(?s){said}"):
        Cluster(settings)
    with pytest.raises(PenstockError):
        KafkaLog(settings.model_copy(update={"timeout": 5})).greet()


def _strange_certificate(folder: Path) -> tuple[Path, SecretFile]:
    certificate, key = Authority(folder / "strange").issue("penstock")
    return certificate, SecretFile(key)


def test_who_shows_a_certificate_has_the_acls_of_its_user(ways: Ways, tmp_path: Path) -> None:
    with open_officer(ways.cluster, tmp_path) as officer:
        officer.settings = ways.settings("CERTIFICATE")
        officer.does = officer.open()
        officer.apply(stream("shifts"), view("shifts", "ward", "nurse"))
        officer.does.add_role("nurse")
        topic = "shifts-ward"
        KafkaLog(officer.settings).make_topic(topic)
        officer.does.add_user("anna", None, ["nurse"], certificate="CN=anna")
        assert officer.does.user_status("anna").login == "certificate"
        assert officer.does.reconciler.compare().is_empty
        assert _may_read(ways, "anna", topic)

        officer.does.remove_role("anna", "nurse")
        assert not _may_read(ways, "anna", topic)

        officer.does.assign_role("anna", "nurse")
        assert _may_read(ways, "anna", topic)
        _give_certificate(officer, "CN=anna-2")
        assert not _may_read(ways, "anna", topic)
        assert _may_read(ways, "anna-2", topic)
        officer.does.block_user("anna")
        assert not _may_read(ways, "anna-2", topic)
        officer.does.block_user("anna", blocked=False)
        officer.does.delete_user("anna")
        assert not _may_read(ways, "anna-2", topic)
        with Cluster(officer.settings) as cluster:
            assert not any("anna" in principal for principal, _ in cluster.acls())


def test_users_log_in_with_passwords_where_penstock_shows_a_certificate(
    ways: Ways, tmp_path: Path
) -> None:
    with open_officer(ways.cluster, tmp_path) as officer:
        officer.settings = ways.settings("CERTIFICATE")
        officer.does = officer.open()
        officer.apply(stream("rooms"), view("rooms", "plan", "nurse"))
        officer.does.add_role("nurse")
        officer.does.add_user("rosa", "password of rosa", ["nurse"])
        KafkaLog(officer.settings).make_topic("rooms-plan")
        assert "rooms-plan" in KafkaLog(officer.settings, "rosa", "password of rosa").topics()


def _give_certificate(officer: Officer, name: str) -> None:
    officer.apply(Document("user", "anna", {"roles": ["nurse"], "certificate": name}))
    officer.does.reconciler.follow_up()


def _may_read(ways: Ways, name: str, topic: str) -> bool:
    certificate, key = ways.authority.issue(name)
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{ways.cluster.ports['CERTIFICATE']}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(ways.authority.path),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
            "group.id": "anna:ward",
            "log_level": 0,
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=30).topics[topic]
    finally:
        consumer.close()
    assert found.error is None or found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    return found.error is None
