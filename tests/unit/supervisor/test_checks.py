from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from penstock.components import COMPONENTS, Component
from penstock.components.finders import find_master_trouble
from penstock.config import Config, SecretVariable, load
from penstock.config.loader import check, read_text
from penstock.errors import UnavailableError
from penstock.store.database import Database
from penstock.store.migrations import VERSION_TABLE, code_version
from penstock.supervisor import checks as network
from penstock.supervisor import installation_checks as installation
from penstock.supervisor.checks import Finding, Verdict, check_access
from penstock.supervisor.installation_checks import run_checks
from penstock.supervisor.parts import PARTS, Part
from tests.support.gateway.certificates import Authority

Settings = Callable[..., Config]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    def make(text: str = "", **environ: str) -> Config:
        return check(read_text(text.encode(), "penstock.yaml"), environ, base=tmp_path)

    return make


def part(name: str, *needs: str) -> Part:
    return Part(name, command=lambda _: ["true"], needs=needs)


def by_name(findings: Any) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


class TestPrograms:
    def test_the_packages_of_each_extra_are_known(self) -> None:
        extras = installation.packages_by_extra()
        assert "pydantic" in extras["gateway"]
        assert "psycopg" in extras["postgres"]
        assert extras.keys().isdisjoint({"dev", "all"})
        assert "penstock" not in {name for names in extras.values() for name in names}

    def test_what_is_installed_is_fine(self, settings: Settings) -> None:
        findings = by_name(installation.check_programs(settings(), []))
        assert findings["python"].verdict is Verdict.OK
        assert findings["gateway"].verdict is Verdict.OK
        assert f"click {metadata.version('click')}" in findings["gateway"].detail

    @pytest.mark.parametrize(
        ("url", "verdict"),
        [("sqlite:///a.db", Verdict.WARNING), ("postgresql://h/d", Verdict.MISSING)],
    )
    def test_a_missing_package_matters_where_it_is_needed(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch, url: str, verdict: Verdict
    ) -> None:
        monkeypatch.setattr(
            metadata,
            "requires",
            lambda _: ["click>=8; extra == 'gateway'", "no-such>=1; extra == 'postgres'"],
        )
        findings = by_name(installation.check_programs(settings(f"store: {{url: '{url}'}}"), []))
        assert findings["postgres"].verdict is verdict
        assert findings["postgres"].detail == "not installed: no-such"
        assert findings["postgres"].fix == "pip install 'penstock[postgres]'"

    def test_a_missing_program_matters_where_it_is_needed(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def find(name: str) -> Component:
            return Component(name, None, None, f"install {name}", "something")

        monkeypatch.setattr(installation, "find", find)
        findings = by_name(installation.check_programs(settings(), [part("broker", "mosquitto")]))
        assert set(COMPONENTS) <= findings.keys()
        assert findings["mosquitto"].verdict is Verdict.MISSING
        assert findings["mosquitto"].fix == "install mosquitto"
        assert findings["chromium"].verdict is Verdict.WARNING


class TestFolders:
    def test_nothing_there_yet_is_fine(self, settings: Settings, tmp_path: Path) -> None:
        findings = by_name(installation.check_folders(settings(), []))
        assert findings["file"].verdict is Verdict.WARNING
        assert findings["data folder"].verdict is Verdict.OK
        assert "made at the first use" in findings["data folder"].detail
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_open_to_others_is_a_warning(self, settings: Settings) -> None:
        config = settings()
        config.data.mkdir()
        config.data.chmod(0o755)
        finding = by_name(installation.check_folders(config, []))["data folder"]
        assert (finding.verdict, finding.fix) == (Verdict.WARNING, f"chmod 700 {config.data}")
        config.data.chmod(0o700)
        assert by_name(installation.check_folders(config, []))["data folder"].verdict is Verdict.OK

    def test_a_file_in_its_place_is_wrong(self, settings: Settings) -> None:
        config = settings()
        config.data.write_text("")
        assert (
            by_name(installation.check_folders(config, []))["data folder"].verdict is Verdict.WRONG
        )

    @pytest.mark.parametrize(
        ("free", "verdict"),
        [(50 << 20, Verdict.WRONG), (500 << 20, Verdict.WARNING), (5 << 30, Verdict.OK)],
    )
    def test_room_on_the_disk(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch, free: int, verdict: Verdict
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": free}))
        assert by_name(installation.check_folders(settings(), []))["disk"].verdict is verdict


class TestFiles:
    def listening(self, settings: Settings, **files: object) -> dict[str, Finding]:
        lines = "".join(f", {name}: {path}" for name, path in files.items())
        config = settings(f"gateway: {{listeners: {{secure: {{transport: tls{lines}}}}}}}")
        return by_name(installation.check_files(config, []))

    def test_certificates_of_their_keys_are_fine(self, settings: Settings, tmp_path: Path) -> None:
        authority = Authority(tmp_path / "authority")
        certificate, key = authority.issue("server")
        found = self.listening(settings, certificate=certificate, key=key, client_ca=authority.path)
        assert {it.verdict for it in found.values()} == {Verdict.OK}
        assert set(found) == {
            "gateway.listeners.secure.certificate",
            "gateway.listeners.secure.client_ca",
        }

    def test_what_is_missing_or_something_else_is_named(
        self, settings: Settings, tmp_path: Path
    ) -> None:
        authority = Authority(tmp_path / "authority")
        certificate, key = authority.issue("server")
        _, other = authority.issue("other")
        text = tmp_path / "text"
        text.write_text("no certificate")
        missing = tmp_path / "missing.pem"
        for files, name, said in (
            ({"certificate": missing, "key": key}, "certificate", "No such file"),
            ({"certificate": text, "key": key}, "certificate", "TLS"),
            ({"certificate": certificate, "key": other}, "certificate", "KEY_VALUES_MISMATCH"),
            (
                {"certificate": certificate, "key": key, "client_ca": missing},
                "client_ca",
                "No such file",
            ),
            ({"certificate": certificate, "key": key, "client_ca": text}, "client_ca", "TLS"),
        ):
            finding = self.listening(settings, **files)[f"gateway.listeners.secure.{name}"]
            assert finding.verdict is Verdict.WRONG
            assert said in finding.detail
            assert str(files[name]) in finding.detail
            assert finding.fix

    def test_a_part_that_needs_a_missing_file_says_which(
        self, settings: Settings, tmp_path: Path
    ) -> None:
        missing = tmp_path / "missing.pem"
        config = settings(
            f"broker: {{mode: external, port: 8883, tls: {{enabled: true, ca: {missing}}}}}"
        )
        config.require_files("gateway")
        with pytest.raises(UnavailableError, match=r"broker\.tls\.ca: .*missing\.pem") as raised:
            config.require_files("gateway", "broker")
        assert raised.value.fix


class TestSecrets:
    def test_keys_that_we_make_ourselves_may_be_missing(self, settings: Settings) -> None:
        findings = list(installation.check_secrets(settings(), []))
        assert {"audit.signing_key", "audit.pseudonym_key", "broker.key"} <= {
            finding.name for finding in findings
        }
        assert {finding.verdict for finding in findings} == {Verdict.OK}

    def test_a_key_that_others_can_read_is_wrong(self, settings: Settings) -> None:
        config = settings()
        path = config.audit.signing_key.path
        path.parent.mkdir(parents=True)
        path.write_text("hunter2")
        path.chmod(0o644)
        finding = by_name(installation.check_secrets(config, []))["audit.signing_key"]
        assert finding.verdict is Verdict.WRONG
        assert f"chmod 600 {path}" in (finding.fix or "")
        assert "hunter2" not in str(finding)

    def test_a_variable_must_be_set(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = settings("store: {url: 'postgresql://h/d', password: {env: DB_PASSWORD}}")
        assert config.store.password == SecretVariable("DB_PASSWORD")
        monkeypatch.delenv("DB_PASSWORD", raising=False)
        assert (
            by_name(installation.check_secrets(config, []))["store.password"].verdict
            is Verdict.WRONG
        )
        monkeypatch.setenv("DB_PASSWORD", "hunter2")
        finding = by_name(installation.check_secrets(config, []))["store.password"]
        assert finding.verdict is Verdict.OK
        assert "hunter2" not in str(finding)


class TestStore:
    def test_a_store_that_is_not_made_yet_stays_so(
        self, settings: Settings, tmp_path: Path
    ) -> None:
        (finding,) = installation.check_store(settings(), [])
        assert finding.verdict is Verdict.OK
        assert "made at the first use" in finding.detail
        assert list(tmp_path.iterdir()) == []

    def test_the_version_of_the_tables_is_told(self, settings: Settings) -> None:
        config = settings()
        config.data.mkdir()
        Database.open(config.store.connection_url()).close()
        findings = by_name(installation.check_store(config, []))
        assert findings["database"].verdict is Verdict.OK
        assert findings["tables"].detail == f"version {code_version()}"

    def test_tables_of_a_later_version_are_wrong(self, settings: Settings) -> None:
        config = settings()
        config.data.mkdir()
        Database.open(config.store.connection_url()).close()
        with sqlite3.connect(config.data / "penstock.db") as connection:
            connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")  # noqa: S608
        connection.close()
        found = list(installation.check_store(config, []))
        assert found[-1].verdict is Verdict.WRONG
        assert "9999" in found[-1].detail

    def test_a_file_that_is_no_database_is_wrong(self, settings: Settings) -> None:
        config = settings()
        config.data.mkdir()
        (config.data / "penstock.db").write_bytes(b"no database " * 100)
        assert list(installation.check_store(config, []))[-1].verdict is Verdict.WRONG

    def test_an_unreachable_server_is_wrong_and_its_password_not_shown(
        self, settings: Settings
    ) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            url = f"postgresql://me@127.0.0.1:{closed.getsockname()[1]}/db"
            config = settings(f"store: {{url: '{url}', password: {{env: DB_PASSWORD}}}}")
            os.environ["DB_PASSWORD"] = "hunter2"  # noqa: S105
            try:
                (finding,) = installation.check_store(config, [])
            finally:
                del os.environ["DB_PASSWORD"]
        assert finding.verdict is Verdict.WRONG
        assert "hunter2" not in str(finding)

    @pytest.mark.needs("postgresql")
    def test_a_server_is_asked_for_its_version_and_its_clock(
        self, settings: Settings, empty_postgres_url: str
    ) -> None:
        config = settings(f"store: {{url: '{empty_postgres_url}'}}")
        findings = by_name(installation.check_store(config, []))
        assert findings["tables"].detail.startswith("none yet; upgraded to")
        assert findings["clock"].verdict is Verdict.OK

    def test_clocks_that_differ_are_a_warning(self) -> None:
        assert installation._compare_clocks(-0.5).verdict is Verdict.OK
        assert installation._compare_clocks(-90.0).verdict is Verdict.WARNING


class TestNetwork:
    def test_free_ports_are_fine(self, settings: Settings) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        findings = by_name(network.check_ports(settings(f"monitor: {{port: {port}}}"), []))
        assert findings["monitor"].detail == f"127.0.0.1 port {port} is free"
        assert findings["broker"].detail.endswith("/broker/mosquitto.sock, a socket")

    @pytest.mark.parametrize(
        ("parts", "verdict"), [(["gateway"], Verdict.WRONG), ([], Verdict.WARNING)]
    )
    def test_who_has_a_port_is_told(
        self, settings: Settings, parts: list[str], verdict: Verdict
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            config = settings(f"gateway: {{listeners: {{mqtt: {{port: {port}}}}}}}")
            findings = by_name(network.check_ports(config, [part(name) for name in parts]))
        finding = findings["gateway.listeners.mqtt"]
        assert finding.verdict is verdict
        assert f"(process {os.getpid()})" in finding.detail

    def test_the_ports_of_the_server_are_looked_at_where_it_runs(self, settings: Settings) -> None:
        named = {"server.monitor_port", "server.listeners.rest"}
        found = {it.name for it in network.check_ports(settings(""), [])}
        assert not named & found
        found = {it.name for it in network.check_ports(settings("parts: [server]\n"), [])}
        assert named <= found

    def test_the_pipelines_port_is_looked_at_where_it_runs(self, settings: Settings) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            text = f"parts: [pipeline]\npipeline: {{monitor_port: {port}}}"
            found = by_name(network.check_ports(settings(text), [part("pipeline")]))
        assert found["pipeline.monitor_port"].verdict is Verdict.WRONG
        assert (
            found["pipeline.monitor_port"].fix == "stop it, or set pipeline.monitor_port to another"
        )
        assert "pipeline.monitor_port" not in by_name(network.check_ports(settings(""), []))

    def test_the_port_of_users_and_roles_is_looked_at_where_they_are_held(
        self, settings: Settings
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            text = f"parts: [rbac]\nkafka: {{monitor_port: {port}}}"
            found = by_name(network.check_ports(settings(text), [part("rbac")]))
        assert found["kafka.monitor_port"].verdict is Verdict.WRONG
        assert "kafka.monitor_port" not in by_name(network.check_ports(settings(""), []))

    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("broker: {{mode: external, port: {port}}}", "broker"),
            ("pipeline: {{master: 'spark://127.0.0.1:{port}'}}", "spark"),
            ("kafka: {{bootstrap: '127.0.0.1:{port}', password: {{env: HOME}}}}", "kafka"),
        ],
    )
    def test_servers_that_others_run_are_tried(
        self, settings: Settings, text: str, name: str
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            config = settings(text.format(port=taken.getsockname()[1]))
            if name != "kafka":  # who only listens is no Kafka
                found = by_name(network.check_servers(config, []))
                assert found[name].verdict is Verdict.OK
        parts = [part("gateway"), part("pipeline")]
        for running, verdict in (([], Verdict.WARNING), (parts, Verdict.WRONG)):
            found = by_name(network.check_servers(config, running))
            assert found[name].verdict is verdict
            assert "Connection refused" in found[name].detail
        assert list(network.check_servers(settings(""), parts)) == []

    def test_several_masters_are_tried_until_one_answers(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            bad, good = other.getsockname()[1], server.getsockname()[1]
            assert find_master_trouble(f"spark://127.0.0.1:{bad},127.0.0.1:{good}") is None
            refused = f"127.0.0.1:{bad}: Connection refused"
            assert find_master_trouble(f"spark://127.0.0.1:{bad}") == refused
        assert find_master_trouble("local[2]") is None
        assert find_master_trouble("k8s://https://127.0.0.1:1") is None

    def test_an_address_of_another_machine_is_wrong(self, settings: Settings) -> None:
        config = settings("monitor: {host: 203.0.113.7}")
        assert by_name(network.check_ports(config, []))["monitor"].verdict is Verdict.WRONG

    @pytest.mark.parametrize(
        ("host", "verdict"),
        [("0.0.0.0", Verdict.WARNING), ("127.0.0.1", Verdict.OK)],  # noqa: S104
    )
    def test_plain_listeners_are_for_this_machine(
        self, settings: Settings, host: str, verdict: Verdict
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = settings(f"gateway: {{listeners: {{mqtt: {{port: {port}, host: {host}}}}}}}")
        found = by_name(network.check_ports(config, [part("gateway")]))["gateway.listeners.mqtt"]
        assert found.verdict is verdict

    def test_an_external_broker_is_not_listened_for(self, settings: Settings) -> None:
        config = settings("broker: {mode: external, port: 1883}\nmonitor: {enabled: false}")
        assert list(by_name(network.check_ports(config, []))) == [
            "gateway.monitor_port",
            "gateway.listeners.mqtt",
        ]


class TestClock:
    def test_a_kernel_that_knows_the_time_is_fine(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for synchronised, verdict in ((True, Verdict.OK), (False, Verdict.WARNING)):
            monkeypatch.setattr(
                installation, "_is_synchronised", lambda answer=synchronised: answer
            )
            (finding,) = installation.check_clock(settings(), [])
            assert finding.verdict is verdict

    def test_the_kernel_can_be_asked(self) -> None:
        assert installation._is_synchronised() in {True, False}

    def test_files_from_the_future_mean_that_the_clock_is_wrong(self, settings: Settings) -> None:
        config = settings()
        config.data.mkdir()
        late = config.data / "late"
        late.touch()
        os.utime(late, (time.time() + 7200,) * 2)
        (finding,) = installation.check_clock(config, [])
        assert finding.verdict is Verdict.WRONG
        assert "119 minutes later" in finding.detail or "120 minutes later" in finding.detail


def test_nothing_is_changed_by_looking(settings: Settings, tmp_path: Path) -> None:
    findings = run_checks(settings("monitor: {port: 0}"), [part("broker")])
    assert {finding.topic for finding in findings} == {
        "versions",
        "packages",
        "programs",
        "settings",
        "secrets",
        "store",
        "ports",
        "clock",
    }
    assert list(tmp_path.iterdir()) == []
    for finding in findings:
        assert finding.fix or finding.verdict is Verdict.OK, finding


@pytest.mark.parametrize(
    ("authentication", "verdict", "detail"),
    [
        ("{}", Verdict.WARNING, "nobody can connect"),
        ("{passwords: keys/passwords}", Verdict.OK, "passwords in"),
        ("{relay: true}", Verdict.OK, "the broker checks"),
        ("{anonymous: true}", Verdict.WARNING, "anybody"),
    ],
)
def test_the_ways_in_are_named(
    tmp_path: Path, authentication: str, verdict: Verdict, detail: str
) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text(f"gateway: {{authentication: {authentication}}}\n")
    config = load(path, {})
    (finding,) = check_access(config, [PARTS["gateway"]])
    assert finding.verdict is verdict
    assert detail in finding.detail
    assert not list(check_access(config, [PARTS["broker"]]))


def test_open_mode_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text("gateway: {open_mode: true, authentication: {passwords: keys/p}}\n")
    found = list(check_access(load(path, {}), [PARTS["gateway"]]))
    assert [item.verdict for item in found] == [Verdict.OK, Verdict.WARNING]


@pytest.mark.parametrize(
    ("version", "bootstrap", "verdict"),
    [
        ("1.7.1, librdkafka 2.0.2", True, Verdict.WARNING),
        ("1.7.1, librdkafka 2.0.2", False, Verdict.OK),
        ("1.7.1, librdkafka 2.6.1", True, Verdict.OK),
        ("1.7.1", True, Verdict.OK),
    ],
)
def test_a_kcat_that_cannot_log_in_is_told(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    *,
    version: str,
    bootstrap: bool,
    verdict: Verdict,
) -> None:
    kcat = Component("kcat", Path("/usr/bin/kcat"), version, "", "")
    monkeypatch.setattr(installation, "find", lambda _: kcat)
    monkeypatch.setattr(installation, "COMPONENTS", ["kcat"])
    named = "kafka: {bootstrap: '127.0.0.1:1', password: {env: NONE}}\n" if bootstrap else ""
    found = [it for it in installation.check_programs(settings(named), []) if it.name == "kcat"]
    assert [it.verdict for it in found] == [verdict]
    assert ("kafka-console-consumer.sh" in (found[0].fix or "")) is (verdict is Verdict.WARNING)
