"""`penstock requests` as users call it: a real service, both databases."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.components.processes import free_port
from penstock.config import load
from penstock.supervisor.parts import PARTS
from tests.support.commands import run_command
from tests.support.gateway.passwords import write_passwords
from tests.support.rights.service import Service, serving

DEFINITIONS = """
kind: purpose
name: marketing
---
kind: control
name: ads
stateful: true
purposes: [marketing]
---
kind: control-publisher
name: portal
subjects: [user:portal]
controls: [ads]
---
kind: control-subscriber
name: crm
subjects: [user:crm]
control: ads
uri: URI
send_retries: 0
---
kind: stream
name: visits
subject: pid
fields: [{name: pid, type: string, category: identifier}]
---
kind: view
name: campaign
stream: visits
purposes: [marketing]
---
kind: right
name: officer
subjects: [user:ann]
administer: true
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=["sqlite", "postgres"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    settings: dict[str, Any] = {
        "gateway": {"authentication": {"passwords": str(tmp_path / "passwords")}},
        "rights": {"networks": ["127.0.0.0/8"]},
    }
    if request.param == "postgres":
        settings["store"] = {"url": request.getfixturevalue("postgres_url")}
    Path("penstock.yaml").write_text(json.dumps(settings))
    users = ("portal", "crm", "ann", "eve")
    write_passwords(tmp_path / "passwords", {name: name for name in users})
    for name in users:
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o600)

    def call(*words: str, user: str | None = None) -> tuple[int, str, str]:
        asking = ["--as", user, "--password-file", user] if user else []
        done = run_command(tmp_path, *words, *asking, env={"NO_COLOR": "1"})
        return done.returncode, done.stdout, done.stderr

    return call


def ask(run: Run, *words: str, user: str) -> Any:
    code, out, errors = run("requests", *words, "--json", user=user)
    assert code == 0, errors
    return json.loads(out)


def test_from_a_choice_to_a_service_that_has_done_its_part(run: Run) -> None:
    with serving() as service:
        Path("d.yaml").write_text(DEFINITIONS.replace("URI", service.uri))
        assert run("apply", "-f", "d.yaml")[0] == 0
        made = ask(run, "submit", "portal", "ads", "opt-out", "Jörg Müller", user="portal")
        code, out, _ = run("consent", "list", "--json")
        assert json.loads(out) == [{"purpose": "marketing", "people": 1, "views": ["campaign"]}]
        assert service.told == []
        service.status = 500
        assert run("requests", "work", "--once")[0] == 0
        (row,) = ask(run, "list", "--status", "SOMEFAILED", user="ann")
        assert (row["request"], row["done"], row["services"]) == (made["request"], 0, 1)
        service.status = 202
        assert ask(run, "redrive", user="ann") == {"redriven": 1}
        assert run("requests", "work", "--once")[0] == 0
        assert [told["action"] for told, _, _ in service.told] == ["changed", "changed"]
        done = ask(run, "answer", made["request"], "crm", "complete", user="crm")
        assert done["status"] == "COMPLETED"
        shown = ask(run, "show", made["request"], user="ann")
        assert shown["status"] == "COMPLETED"
        assert [it["subscriber"] for it in shown["services"]] == ["crm"]
        check_key(run, service)
        check_reports(run, made["request"])
        for user, words in {
            "eve": ("submit", "portal", "ads", "opt-in", "Jörg Müller"),
            "portal": ("list",),
            "crm": ("show", made["request"]),
            "ann": ("key", "crm"),
        }.items():
            code, out, errors = run("requests", *words, user=user)
            assert (code, out) == (1, ""), errors
            assert "Müller" not in errors
        assert json.loads(run("consent", "list", "--json")[1])[0]["people"] == 1
    check_audit(run)


def test_a_worker_tells_when_it_is_ready_and_ends_when_told(run: Run, tmp_path: Path) -> None:
    port = free_port()
    settings = json.loads(Path("penstock.yaml").read_text())
    settings["rights"]["monitor_port"] = port
    Path("penstock.yaml").write_text(json.dumps(settings))
    with serving() as service:
        Path("d.yaml").write_text(DEFINITIONS.replace("URI", service.uri))
        assert run("apply", "-f", "d.yaml")[0] == 0
        part = PARTS["rights"]
        command = part.command(load(tmp_path / "penstock.yaml"))
        worker = subprocess.Popen(command, cwd=tmp_path)
        try:
            latest = time.monotonic() + 60
            while not is_ready(port):
                assert worker.poll() is None
                assert time.monotonic() < latest
                time.sleep(0.1)
            ask(run, "submit", "portal", "ads", "opt-out", "Jörg Müller", user="portal")
            while not service.told:
                assert time.monotonic() < latest
                time.sleep(0.05)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                metrics = answer.read().decode()
            assert "penstock_rights_dispatches_total" in metrics
            worker.terminate()
            assert worker.wait(30) == 0
        finally:
            worker.kill()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def check_key(run: Run, service: Service) -> None:
    """A service that asks for its key can tell our calls from others'."""
    from penstock.rights.dispatch.message import verify  # noqa: PLC0415

    code, out, _ = run("requests", "key", "crm", user="crm")
    assert code == 0
    _, signature, body = service.told[0]
    moment = int(signature.partition(",")[0].removeprefix("t="))
    assert verify(bytes.fromhex(out), signature, body, moment)


def check_reports(run: Run, request: str) -> None:
    """What is reported names nobody; a receipt goes to the front end, and is what was chosen."""
    (figures,) = ask(run, "report", user="ann")
    assert (figures["control"], figures["service"]) == ("ads", "crm")
    assert (figures["in_time"], figures["share_in_time"]) == (1, 1.0)
    code, out, errors = run("requests", "receipt", request, "Jörg Müller", user="portal")
    assert code == 0, errors
    Path("receipt.json").write_text(out)
    assert run("requests", "verify-receipt", "receipt.json")[0] == 0
    Path("receipt.json").write_text(out.replace("opt-out", "opt-in"))
    assert run("requests", "verify-receipt", "receipt.json")[0] == 1
    assert run("requests", "receipt", request, "somebody else", user="portal")[:2] == (1, "")
    assert "| Services that are told | crm (ads) |" in run("processing-record")[1]


def check_audit(run: Run) -> None:
    _, out, _ = run("audit", "tail", "--json")
    kinds = [json.loads(line)["kind"] for line in out.splitlines()]
    for kind in ("rights.accepted", "rights.completed", "rights.redriven", "rights.refused"):
        assert kind in kinds
    assert "Müller" not in out
    assert run("audit", "verify")[0] == 0
