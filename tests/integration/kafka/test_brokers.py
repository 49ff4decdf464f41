"""A revocation is done when every broker has it, also when brokers crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.components import KafkaCluster
from penstock.kafka import Acl, Cluster
from tests.support.kafka.clusters import kill_node, start_node
from tests.support.kafka.officers import Officer, open_officer, stream, view
from tests.support.scale import scaled

pytestmark = [pytest.mark.needs("java", "jars"), pytest.mark.timeout(900)]

ROUNDS = scaled(10)


@pytest.fixture
def officer(tmp_path: Path) -> Iterator[Officer]:
    with (
        KafkaCluster(brokers=3, heap="256m") as cluster,
        open_officer(cluster, tmp_path) as made,
    ):
        # One that crashed is counted out after nine seconds; a busy machine may take longer.
        made.settings = made.settings.model_copy(update={"timeout": 60.0})
        made.does = made.open()
        made.apply(stream("clinic"), view("clinic", "care", "carer"))
        made.does.add_role("carer")
        yield made


def rules_everywhere(officer: Officer) -> dict[str, set[Acl]]:
    """Ask each broker by itself which rules the reader has."""
    with Cluster(officer.settings) as cluster:
        found = {}
        for address in cluster.brokers():
            with cluster.connect_broker(address) as broker:
                found[address] = {acl for _, acl in broker.acls("User:cara")}
        return found


def test_no_broker_has_a_rule_that_a_command_has_removed(
    officer: Officer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.kafka.drift.GONE_SECONDS", 120.0)
    cluster = officer.cluster
    officer.does.add_user("cara", "pw")
    for _ in range(ROUNDS):
        officer.does.assign_role("cara", "carer")
        officer.does.remove_role("cara", "carer")
        assert list(rules_everywhere(officer).values()) == [set()] * 3
    officer.does.assign_role("cara", "carer")
    kill_node(cluster, 3)
    officer.does.remove_role("cara", "carer")
    assert set().union(*rules_everywhere(officer).values()) == set()
    start_node(cluster, 3)
    assert list(rules_everywhere(officer).values()) == [set()] * 3
