from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy.engine import make_url

from penstock.config.brokers import (
    BrokerSettings,
    KafkaSettings,
    KafkaTokenSettings,
)
from penstock.config.catalogue import Config, settings_of
from penstock.config.gateway import GatewaySettings, RecordingSettings
from penstock.config.installation import StoreSettings, SupervisorSettings
from penstock.config.listeners import ListenerSettings, ServerListenerSettings
from penstock.config.rights import ServerSettings
from penstock.config.secrets import SecretVariable
from penstock.config.settings import Settings


def conflicts(model: type[Settings], **settings: Any) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        model(**settings)
    return [
        conflict.setting
        for error in caught.value.errors()
        for conflict in error["ctx"]["conflicts"]
    ]


def test_every_setting_says_what_it_means() -> None:
    for setting in settings_of(Config):
        assert setting.description.endswith("."), setting.name


@pytest.mark.parametrize(
    ("written", "loaded"),
    [
        ("postgresql://me@host/db", "postgresql+psycopg://me@host/db"),
        ("postgres://host:5433/db", "postgresql+psycopg://host:5433/db"),
        ("postgresql:///db?host=/run/pg", "postgresql+psycopg:///db?host=/run/pg"),
        ("sqlite:////var/a.db", "sqlite:////var/a.db"),
        ("sqlite:///a b%20c.db", "sqlite:////data/a b%20c.db"),
    ],
)
def test_store_urls_are_complete(written: str, loaded: str) -> None:
    context = {"base": Path("/"), "data": Path("/data")}
    assert StoreSettings.model_validate({"url": written}, context=context).url == loaded


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://host/a.db",
        "sqlite:///a?b",
        "sqlite:///a#b",
        "a.db",
        "postgresql://host",
        "postgresql://host:port/db",
        "mysql://host/db",
        "postgresql+asyncpg://host/db",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        StoreSettings(url=url)


@pytest.mark.parametrize("url", ["postgresql://me@host/db", "postgresql://host/db"])
@pytest.mark.parametrize("password", ["plain", "a/b@c:d %41?#ü"])
def test_the_password_reaches_the_database_as_it_is(
    url: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", password)
    store = StoreSettings(url=url, password=SecretVariable("DB_PASSWORD"))
    parsed = make_url(store.connection_url())
    assert parsed.password == password
    assert (parsed.host, parsed.database) == ("host", "db")
    assert StoreSettings(url=url).connection_url() == StoreSettings(url=url).url


def test_the_embedded_broker_has_nothing_of_an_external_one() -> None:
    secret = SecretVariable("X")
    found = conflicts(
        BrokerSettings, host="10.0.0.1", username="me", password=secret, tls={"enabled": True}
    )
    assert found == ["host", "username", "password", "tls"]
    assert conflicts(BrokerSettings, mode="external", password=secret) == ["port", "password"]
    BrokerSettings.model_validate(
        {"mode": "external", "host": "b", "port": 8883, "username": "me", "tls": {"enabled": True}}
    )


def test_a_certificate_and_its_key_go_together() -> None:
    external = {"mode": "external", "port": 1}
    assert conflicts(BrokerSettings, **external, tls={"certificate": "c"}) == ["key"]
    assert conflicts(BrokerSettings, **external, tls={"key": "k"}) == ["certificate"]


@pytest.mark.parametrize("transport", ["tls", "websocket-tls"])
def test_an_encrypted_listener_needs_certificate_and_key(transport: str) -> None:
    assert conflicts(ListenerSettings, transport=transport) == ["certificate", "key"]
    listener = ListenerSettings.model_validate(
        {"transport": transport, "certificate": "c", "key": "k"}
    )
    assert listener.encrypted


def test_a_plain_listener_takes_no_certificate() -> None:
    assert conflicts(ListenerSettings, certificate="c", client_ca="d") == [
        "certificate",
        "client_ca",
    ]


def test_origins_are_for_websockets() -> None:
    given = {"origins": ["https://ward.example.org", "http://10.0.0.1:8080", "null", "*"]}
    assert conflicts(ListenerSettings, **given) == ["origins"]
    ListenerSettings.model_validate({"transport": "websocket", **given})


@pytest.mark.parametrize(
    "origin",
    ["ward.example.org", "https://", "https://Ward.example", "https://a/b", "https://a b", "**"],
)
def test_what_no_browser_would_send_is_no_origin(origin: str) -> None:
    with pytest.raises(ValidationError, match="origins"):
        ListenerSettings.model_validate({"transport": "websocket", "origins": [origin]})


def test_two_listeners_do_not_share_an_address() -> None:
    same = {"a": {"port": 5}, "b": {"port": 5}, "c": {"port": 5, "host": "0.0.0.0"}}  # noqa: S104
    assert conflicts(GatewaySettings, listeners=same) == ["listeners.b.port"]
    GatewaySettings.model_validate({"listeners": {"a": {"port": 0}, "b": {"port": 0}}})


def test_the_wait_before_a_restart_can_grow() -> None:
    assert conflicts(SupervisorSettings, backoff="2s", backoff_limit="1s") == ["backoff_limit"]


SECRET = SecretVariable("X")


@pytest.mark.parametrize("written", ["a:1", "a:1, b:65535", "[::1]:9092", "10.0.0.1:9092,k.x:1"])
def test_addresses_are_taken(written: str) -> None:
    settings = KafkaSettings(bootstrap=written, password=SECRET)
    assert settings.bootstrap == written.replace(" ", "")


@pytest.mark.parametrize("written", ["a", "a:", ":1", "a:0", "a:65536", "a:1,", "a:x", "[]:1"])
def test_other_addresses_are_refused(written: str) -> None:
    with pytest.raises(ValidationError, match="not an address of a broker"):
        KafkaSettings(bootstrap=written, password=SECRET)


def test_a_cluster_needs_a_password_and_a_ca_needs_encryption() -> None:
    with pytest.raises(ValidationError) as caught:
        KafkaSettings.model_validate({"bootstrap": "a:1", "security": "sasl_plaintext", "ca": "c"})
    (error,) = caught.value.errors()
    assert [conflict.setting for conflict in error["ctx"]["conflicts"]] == ["password", "ca"]


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"mechanism": "PLAIN"}, ["password"]),
        ({"mechanism": "OAUTHBEARER"}, ["token", "token"]),
        ({"security": "ssl"}, ["certificate"]),
        ({"security": "ssl", "certificate": "c"}, ["certificate_key"]),
        ({"security": "sasl_plaintext", "password": {"env": "X"}, "certificate": "c"},
         ["certificate"]),
        ({"security": "ssl", "certificate": "c", "certificate_key": "k"}, []),
        ({"mechanism": "OAUTHBEARER",
          "token": {"url": "https://login.example/token", "secret": {"env": "X"}}}, []),
    ],
)  # fmt: skip
def test_each_way_to_log_in_needs_what_it_shows(given: dict[str, object], wrong: list[str]) -> None:
    try:
        KafkaSettings.model_validate({"bootstrap": "a:1", **given})
    except ValidationError as caught:
        found = [it.setting for it in caught.errors()[0]["ctx"]["conflicts"]]
    else:
        found = []
    assert found == wrong


def test_a_secret_for_tokens_does_not_travel_in_clear() -> None:
    assert conflicts(KafkaTokenSettings, url="http://login.example/token") == ["url"]
    assert KafkaTokenSettings(url="http://127.0.0.1:80/token").url


@pytest.mark.parametrize(
    ("own", "users"),
    [
        ("PLAIN", "SCRAM-SHA-512"),
        ("SCRAM-SHA-256", "SCRAM-SHA-256"),
        ("OAUTHBEARER", "SCRAM-SHA-512"),
    ],
)
def test_users_log_in_with_what_the_cluster_keeps_of_passwords(own: str, users: str) -> None:
    settings = KafkaSettings.model_validate({"mechanism": own})
    assert settings.scram == settings.for_users().mechanism == users


def test_what_is_promised_is_not_shed() -> None:
    with pytest.raises(ValidationError) as caught:
        RecordingSettings(acknowledge="recorded", overflow="shed-all")
    (conflict,) = caught.value.errors()[0]["ctx"]["conflicts"]
    assert conflict.setting == "overflow"


@pytest.mark.parametrize("overflow", ["wait", "shed"])
def test_what_is_promised_may_wait(overflow: str) -> None:
    made = RecordingSettings.model_validate({"acknowledge": "recorded", "overflow": overflow})
    assert made.overflow == overflow


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "penstock.example"])  # noqa: S104
def test_the_server_takes_no_tokens_in_clear_from_a_network(host: str) -> None:
    assert conflicts(ServerListenerSettings, host=host) == ["transport"]
    assert conflicts(ServerListenerSettings, host=host, transport="tls") == ["certificate", "key"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_the_server_may_do_without_tls_on_this_machine(host: str) -> None:
    assert not ServerListenerSettings(host=host).encrypted
    assert conflicts(ServerListenerSettings, host=host, client_ca="a") == ["client_ca"]


def test_listeners_of_the_server_do_not_share_an_address() -> None:
    two = {"rest": {}, "grpc": {"protocol": "grpc"}}
    assert conflicts(ServerSettings, listeners=two) == ["listeners.grpc.port"]
