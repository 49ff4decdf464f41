"""What Penstock changes at Kafka, and who told it to, stands in the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import KafkaCluster
from penstock.errors import UnavailableError
from penstock.kafka import Acl, Cluster, PendingError, open_reconciler
from penstock.kafka.drift import AccessAudit
from tests.support.kafka.officers import Officer, open_officer, stream, view

pytestmark = pytest.mark.needs("java", "jars")

READ = "allow read topic clinic-care"
GROUPS = "allow read group cara:…"


@pytest.fixture
def officer(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Officer]:
    with open_officer(kafka, tmp_path) as made:
        made.apply(stream("clinic"), view("clinic", "care", "carer"))
        made.does.add_role("carer")
        yield made


def short(entry: dict[str, Any]) -> tuple[Any, ...]:
    return (
        entry["kind"].removeprefix("kafka."),
        entry["outcome"],
        entry["details"].get("operation"),
        entry["rule"],
    )


def said(officer: Officer, before: int) -> list[tuple[Any, ...]]:
    return [short(entry) for entry in officer.recorded()[before:]]


def test_commands_and_what_they_change_are_recorded(officer: Officer) -> None:
    before = len(officer.recorded())
    officer.does.add_user("cara", "pw-of-cara", ["carer"])
    cara = officer.people.person("cara")
    entries = officer.recorded()[before:]
    assert sorted(short(entry) for entry in entries[1:-1]) == [
        ("rule", "allowed", "put", officer.people.rule(GROUPS)),
        ("rule", "allowed", "put", officer.people.rule(READ)),
        ("user", "allowed", "put", None),
    ]
    assert short(entries[0]) == ("command", "done", "add-user", None)
    assert short(entries[-1]) == ("reconciled", "done", None, None)
    assert entries[-1]["details"] == {
        "acls_put": 2,
        "acls_removed": 0,
        "users_put": 1,
        "users_removed": 0,
    }
    assert {entry["actor"] for entry in entries} == {officer.people.person("officer")}
    assert {entry["subject"] for entry in entries[:-1]} == {cara}
    epoch = officer.definitions.current()[0].epoch
    assert {entry["epoch"] for entry in entries} == {epoch}

    before = len(officer.recorded())
    officer.does.set_password("cara", "other-of-cara")
    assert said(officer, before)[:2] == [
        ("command", "done", "set-password", None),
        ("user", "allowed", "put", None),
    ]
    before = len(officer.recorded())
    officer.does.remove_permission("carer", "care")
    assert said(officer, before)[:2] == [
        ("command", "done", "remove-permission", officer.people.rule("role carer")),
        ("rule", "allowed", "remove", officer.people.rule(GROUPS)),
    ]
    before = len(officer.recorded())
    officer.does.assign_role("cara", "carer")
    assert said(officer, before) == [], "nothing was to be done"
    officer.does.delete_user("cara")
    assert said(officer, before)[:2] == [
        ("command", "done", "delete-user", None),
        ("user", "allowed", "remove", None),
    ]
    everything = repr(officer.recorded())
    assert "of-cara" not in everything, "no password"
    assert officer.people.person("cara") in everything


def test_what_is_mended_and_pruned_is_recorded(officer: Officer) -> None:
    odd = Acl("topic", "literal", "clinic", "read")
    with Cluster(officer.settings) as cluster:
        list(cluster.create_acls([("stranger", odd)]))
    service = officer.people.service("rbac")
    reconciler = open_reconciler(
        officer.settings,
        officer.database,
        officer.definitions,
        audit=AccessAudit(officer.log, officer.people, service),
    )
    before = len(officer.recorded())
    reconciler.repair()
    assert said(officer, before) == [], "rules of others are left alone"
    reconciler.repair(prune=True)
    entries = officer.recorded()[before:]
    named = officer.people.rule(str(odd))
    pruned = [entry for entry in entries if entry["rule"] == named]
    assert [short(entry) for entry in pruned] == [("rule", "allowed", "prune", named)]
    assert pruned[0]["subject"] == officer.people.person("stranger")
    assert {entry["actor"] for entry in entries} == {service}
    assert short(entries[-1])[:2] == ("reconciled", "done")


def test_what_fails_after_it_was_begun_is_recorded_as_failed(
    officer: Officer, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = officer.open(officer.settings.model_copy(update={"bootstrap": "127.0.0.1:1"}))
    before = len(officer.recorded())
    with pytest.raises(PendingError):
        away.add_user("cara", "pw", ["carer"])
    assert said(officer, before) == [("command", "done", "add-user", None)], "nothing was begun"
    before = len(officer.recorded())
    officer.does.reconciler.follow_up()
    with monkeypatch.context() as patch:
        # No broker is there: what it does not say is not known.
        patch.setattr(Cluster, "brokers", lambda _: ["127.0.0.1:1"])
        patch.setattr("penstock.kafka.drift.GONE_SECONDS", 0.0)
        with pytest.raises(PendingError, match="does not say whether ACLs are gone"):
            officer.does.remove_role("cara", "carer")
    assert said(officer, before)[-1] == ("reconciled", "failed", None, None)
    officer.does.reconciler.follow_up()
    assert said(officer, before)[-1] == ("reconciled", "done", None, None)


def test_a_log_that_cannot_be_written_keeps_kafka_as_it_is(
    officer: Officer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnavailableError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(officer.log, "append", refuse)
        with pytest.raises(PendingError, match="the disk is full"):
            officer.does.add_user("cara", "pw", ["carer"])
    with Cluster(officer.settings) as cluster:
        assert cluster.acls_of(["cara"])["cara"] == set()
    officer.does.reconciler.follow_up()
    with Cluster(officer.settings) as cluster:
        assert {str(acl) for acl in cluster.acls_of(["cara"])["cara"]} == {READ, GROUPS}
