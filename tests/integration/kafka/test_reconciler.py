"""The cluster follows the database: through failures, crashes, strangers and running readers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from penstock.components import KafkaCluster
from penstock.config.secrets import SecretFile
from penstock.errors import InvalidError, UnavailableError, UsageError
from penstock.kafka import (
    Acl,
    Administration,
    Cluster,
    PendingError,
    consumer_settings,
    make_topics,
    producer_settings,
)
from penstock.kafka.admin_connection import AdminConnection
from penstock.kafka.credentials import LoginRefusedError, derive
from penstock.model.document import Document, Key
from penstock.store.kafka_users import KafkaUsers
from tests.support.kafka.officers import Officer, open_officer, stream, view

pytestmark = pytest.mark.needs("java", "jars")

PATIENCE = 60.0


@pytest.fixture
def officer(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Officer]:
    with open_officer(kafka, tmp_path) as made:
        made.apply(stream("clinic"), view("clinic", "care", "carer"))
        made.does.add_role("carer")
        with Cluster(made.settings) as cluster:
            make_topics(cluster, made.definitions.current()[1])
        yield made


def acls_of(officer: Officer, user: str) -> set[Acl]:
    with Cluster(officer.settings) as cluster:
        return cluster.acls_of([user])[user]


def can_log_in(officer: Officer, user: str, password: str) -> bool:
    try:
        AdminConnection.open(officer.settings, user, password).close()
    except LoginRefusedError:
        return False
    return True


CARE = {
    Acl("topic", "literal", "clinic-care", "read"),
    Acl("group", "prefixed", "cara:", "read"),
}


def read_until(reader: Consumer, wanted: str) -> list[str]:
    """Read until a value comes, and return all values that came."""
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while wanted not in found:
        assert time.monotonic() < deadline, f"{wanted} did not come, but {found}"
        message = reader.poll(1)
        if message is not None and not message.error():
            found.append(bytes(message.value() or b"").decode())
    return found


def read_until_refused(reader: Consumer) -> list[str]:
    """Read until the broker says no, and return what came before."""
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        message = reader.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(bytes(message.value() or b"").decode())
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return found
    pytest.fail("the reader was never refused")


def test_a_reader_who_loses_the_role_stops_and_goes_on_when_it_comes_back(
    officer: Officer,
) -> None:
    officer.does.add_user("cara", "pw", ["carer"])
    reader = Consumer(consumer_settings(officer.settings, "cara", "pw"))
    reader.subscribe(["clinic-care"])
    officer.produce("clinic-care", "one")
    read_until(reader, "one")
    officer.does.remove_role("cara", "carer")
    assert acls_of(officer, "cara") == set()
    assert read_until_refused(reader) == []
    officer.produce("clinic-care", "two")
    message = reader.poll(2)
    assert message is None or message.error()
    officer.does.assign_role("cara", "carer")
    assert acls_of(officer, "cara") == CARE
    assert read_until(reader, "two") == ["two"]
    officer.does.delete_user("cara")
    read_until_refused(reader)
    reader.close()
    assert not can_log_in(officer, "cara", "pw")


def test_what_the_cluster_does_not_take_is_pending_and_told(officer: Officer) -> None:
    officer.does.add_user("cara", "pw", ["carer"])
    away = officer.open(officer.settings.model_copy(update={"bootstrap": "127.0.0.1:1"}))
    with pytest.raises(PendingError, match="Kafka does not have it yet: Kafka cannot be reached"):
        away.remove_role("cara", "carer")
    status = away.user_status("cara")
    assert (status.roles, status.pending) == ((), True)
    assert away.reconciler.progress().attempts == 1
    assert "cannot be reached" in away.reconciler.progress().trouble
    assert acls_of(officer, "cara") == CARE
    found = officer.does.reconciler.compare()
    assert sorted(found.extra) == sorted(("cara", acl) for acl in CARE)
    officer.does.reconciler.follow_up()
    assert acls_of(officer, "cara") == set()
    assert not officer.does.user_status("cara").pending
    assert officer.does.reconciler.progress().trouble == ""


class Crash(BaseException):
    """The end of the process, as far as the code before it can tell."""


def crashing(officer: Officer, monkeypatch: pytest.MonkeyPatch, name: str) -> Administration:
    """Return an administration that dies before a step at the cluster."""

    def die(*_: object, **__: object) -> NoReturn:
        raise Crash

    made = officer.open()
    monkeypatch.setattr(Cluster, name, die)
    return made


@pytest.mark.parametrize(
    "step", ["identity", "acls_of", "delete_acls", "create_acls", "put_credentials"]
)
def test_a_crash_at_any_step_is_made_good_by_the_next_who_comes(
    officer: Officer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with pytest.raises(Crash), monkeypatch.context() as patch:
        crashing(officer, patch, step).add_user("cara", "pw", ["carer"])
    assert officer.does.user_status("cara").pending
    assert officer.does.reconciler.is_behind()
    officer.open().reconciler.follow_up()
    assert acls_of(officer, "cara") == CARE
    assert can_log_in(officer, "cara", "pw")
    assert not officer.does.reconciler.is_behind()


@pytest.mark.parametrize("step", ["delete_acls", "remove_credentials"])
def test_a_crash_while_a_user_is_deleted_leaves_nothing_behind(
    officer: Officer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    officer.does.add_user("cara", "pw", ["carer"])
    with pytest.raises(Crash), monkeypatch.context() as patch:
        crashing(officer, patch, step).delete_user("cara")
    officer.open().reconciler.follow_up()
    assert acls_of(officer, "cara") == set()
    assert not can_log_in(officer, "cara", "pw")
    assert KafkaUsers(officer.database).users() == {}


def test_what_others_change_at_the_cluster_is_shown_and_mended(officer: Officer) -> None:
    officer.does.add_user("cara", "pw", ["carer"])
    secret = Acl("topic", "literal", "clinic", "read")
    denied = Acl("topic", "literal", "clinic-care", "read", "deny")
    odd = Acl("topic", "literal", "clinic", "all", "allow", "127.0.0.1")
    with Cluster(officer.settings) as cluster:
        list(cluster.create_acls([("cara", secret), ("cara", denied), ("stranger", odd)]))
        list(cluster.delete_acls([("User:cara", next(iter(CARE)))]))
        cluster.remove_credentials(["cara"])
        list(cluster.put_credentials([("stranger", derive("x", "SCRAM-SHA-512", 4096))]))
    found = officer.does.reconciler.compare()
    assert found.missing == [("cara", next(iter(CARE)))]
    assert sorted(found.extra) == sorted([("cara", secret), ("cara", denied)])
    assert ("User:stranger", odd) in found.foreign
    assert found.users_to_put == ["cara"]
    assert "stranger" in found.foreign_users
    officer.does.reconciler.repair()
    assert acls_of(officer, "cara") == CARE
    assert can_log_in(officer, "cara", "pw")
    assert acls_of(officer, "stranger") == {odd}
    again = officer.does.reconciler.compare()
    assert again.is_empty
    assert ("User:stranger", odd) in again.foreign
    officer.does.reconciler.repair(prune=True)
    assert acls_of(officer, "stranger") == set()
    assert can_log_in(officer, "stranger", "x")
    with Cluster(officer.settings) as cluster:
        cluster.remove_credentials(["stranger"])


def test_what_many_lose_goes_at_once_and_from_nobody_else(
    officer: Officer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.kafka.reconciler.MANY", 3)
    officer.apply(view("clinic", "wide", "carer"))
    names = [f"c{number}" for number in range(5)]
    for name in names:
        officer.does.add_user(name, "pw", ["carer"])
    same = Acl("topic", "literal", "clinic-care", "read")
    with Cluster(officer.settings) as cluster:
        list(cluster.create_acls([("stranger", same)]))
    done = officer.does.remove_permission("carer", "clinic-wide")
    assert done.removed == len(names)
    done = officer.does.remove_permission("carer", "clinic-care")
    assert done.removed == 2 * len(names)
    with Cluster(officer.settings) as cluster:
        assert not any(cluster.acls_of(names).values())
        assert cluster.acls_of(["stranger"])["stranger"] == {same}
        list(cluster.delete_acls([("User:stranger", same)]))


def test_activated_roles_are_acls_until_their_appointment_is_over(officer: Officer) -> None:
    officer.does.add_user("cara", "pw")
    rule = {"role": "carer", "requires": [{"appointment": "hired(_)", "membership": True}]}
    hired = {"credential": 'hired("x")', "holder": "user:cara"}
    officer.apply(Document("activation-rule", "carers", rule))
    officer.apply(Document("appointment", "cara", hired))
    officer.does.reconciler.follow_up()
    assert acls_of(officer, "cara") == CARE
    officer.definitions.delete([Key("appointment", "cara")], actor="officer")
    officer.does.reconciler.follow_up()
    assert acls_of(officer, "cara") == set()
    end = datetime.now(UTC) + timedelta(seconds=4)
    officer.apply(Document("appointment", "cara", {**hired, "valid_until": end.isoformat()}))
    stop = threading.Event()
    watcher = threading.Thread(target=officer.open().reconciler.watch, args=(stop,))
    watcher.start()
    try:
        for wanted in (CARE, set()):
            deadline = time.monotonic() + PATIENCE
            while acls_of(officer, "cara") != wanted:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert datetime.now(UTC) >= end
    finally:
        stop.set()
        watcher.join()


def test_changes_by_other_ways_reach_the_cluster_through_the_watch(officer: Officer) -> None:
    officer.does.add_user("cara", "pw")
    stop, told = threading.Event(), threading.Event()
    watcher = threading.Thread(
        target=officer.open().reconciler.watch, args=(stop, lambda _: told.set())
    )
    watcher.start()
    try:
        assert told.wait(PATIENCE)
        told.clear()
        officer.apply(view("clinic", "other", "carer"))
        officer.definitions.edit(
            lambda now: {
                key: type(held)(held.kind, held.name, {"roles": ["carer"]})
                for key, held in now.documents.items()
                if key.name == "cara"
            },
            actor="someone",
        )
        deadline = time.monotonic() + PATIENCE
        wanted = CARE | {Acl("topic", "literal", "clinic-other", "read")}
        while acls_of(officer, "cara") != wanted:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        stop.set()
        watcher.join()


def test_a_user_from_a_file_has_rules_before_a_password(officer: Officer) -> None:
    officer.apply(Document("user", "cara", {"roles": ["carer"]}))
    officer.does.reconciler.follow_up()
    assert acls_of(officer, "cara") == CARE
    assert officer.does.user_status("cara").login == "none"
    officer.does.set_password("cara", "pw")
    assert can_log_in(officer, "cara", "pw")


def test_roles_of_views_that_nobody_declared_are_shown(officer: Officer) -> None:
    officer.apply(view("clinic", "other", "carrer", "carer"))
    found = officer.does.reconciler.compare()
    assert found.undeclared == [("other", "carrer")]
    assert found.is_empty, "it may be declared later"


def test_another_cluster_is_brought_up_from_nothing(officer: Officer) -> None:
    officer.does.add_user("cara", "pw", ["carer"])
    progress = officer.does.reconciler.progress()
    with KafkaUsers(officer.database).working() as holding:
        holding.complete("another cluster", progress.epoch, progress.mark)
    with Cluster(officer.settings) as cluster:
        list(cluster.delete_acls([("User:cara", acl) for acl in CARE]))
    assert officer.does.reconciler.follow_up().put == len(CARE)
    assert officer.does.reconciler.progress() == progress


def test_commands_refuse_what_makes_no_sense(officer: Officer) -> None:
    does = officer.does
    does.add_user("cara", "pw", ["carer"])
    does.add_role("head", includes=["carer"])
    epoch = officer.definitions.current()[0].epoch
    refused: list[Callable[[], object]] = [
        lambda: does.add_user("cara", "pw"),
        lambda: does.add_user("admin", "pw"),
        lambda: does.add_user("x", ""),
        lambda: does.delete_user("nobody"),
        lambda: does.add_role("carer"),
        lambda: does.add_role("x", ["no-such-topic"]),
        lambda: does.remove_role("cara", "head"),
        lambda: does.assign_role("cara", "nothing"),
        lambda: does.remove_permission("head", "clinic-care"),
        lambda: does.remove_permission("carer", "clinic"),
        lambda: does.set_password("nobody", "pw"),
    ]
    for act in refused:
        with pytest.raises(UsageError):
            act()
    with pytest.raises(InvalidError):
        does.delete_role("carer")
    with pytest.raises(InvalidError):
        does.add_user("x", "pw", ["nothing"])
    assert officer.definitions.current()[0].epoch == epoch
    assert KafkaUsers(officer.database).user("x") is None
    assert does.assign_role("cara", "carer").epoch == epoch


def test_a_permission_that_a_view_gives_is_removed_there(officer: Officer) -> None:
    officer.does.add_user("cara", "pw", ["carer"])
    officer.does.remove_permission("carer", "clinic-care")
    assert acls_of(officer, "cara") == set()
    officer.does.add_permission("carer", "care")
    assert acls_of(officer, "cara") == CARE
    officer.does.remove_permission("carer", "view:care")
    assert acls_of(officer, "cara") == set()


def test_a_deleted_role_is_taken_from_all(officer: Officer) -> None:
    officer.does.add_user("cara", "pw", ["carer"])
    officer.does.delete_role("carer")
    assert officer.does.user_status("cara").roles == ()
    assert acls_of(officer, "cara") == set()


def test_a_new_password_replaces_the_old_one(officer: Officer) -> None:
    officer.does.add_user("cara", "pw", ["carer"])
    officer.does.set_password("cara", "new")
    assert can_log_in(officer, "cara", "new")
    assert not can_log_in(officer, "cara", "pw")


def test_a_writer_has_transactions_of_its_own_only(officer: Officer) -> None:
    officer.does.add_role("feed")
    officer.does.add_permission("feed", "clinic", allow="write")
    officer.does.add_user("cara", "pw", ["feed"])
    own = Producer(producer_settings(officer.settings, "cara", "pw", transaction="t"))
    own.init_transactions(PATIENCE)
    own.begin_transaction()
    own.produce("clinic", "x")
    own.commit_transaction(PATIENCE)
    other = producer_settings(officer.settings, "cara", "pw", transaction="t")
    other["transactional.id"] = "other:t"
    with pytest.raises(KafkaException, match=r"(?i)authoriz"):
        Producer(other).init_transactions(PATIENCE)


def test_wrong_credentials_of_our_own_are_told_plainly(officer: Officer, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    SecretFile(wrong).create(b"wrong")
    settings = officer.settings.model_copy(update={"password": SecretFile(wrong)})
    with pytest.raises(
        LoginRefusedError, match="does not let 'admin' in: user or password is wrong"
    ):
        Cluster(settings)


def test_who_is_no_super_user_is_told_so(officer: Officer, tmp_path: Path) -> None:
    officer.does.add_user("cara", "pw", ["carer"])
    SecretFile(tmp_path / "cara").create(b"pw")
    settings = officer.settings.model_copy(
        update={"user": "cara", "password": SecretFile(tmp_path / "cara")}
    )
    with Cluster(settings) as cluster:
        refused: list[Callable[[], object]] = [
            cluster.users,
            lambda: list(cluster.acls()),
            lambda: list(cluster.create_acls([("cara", next(iter(CARE)))])),
            lambda: cluster.remove_credentials(["cara"]),
            lambda: cluster.make_topics(["new"]),
        ]
        for act in refused:
            with pytest.raises(UnavailableError, match="super users"):
                act()


def test_two_who_work_at_once_end_at_the_newest(officer: Officer) -> None:
    officer.does.add_role("other", ["clinic"])
    officer.does.add_user("cara", "pw")
    failures: list[BaseException] = []

    def toggle(role: str) -> None:
        does = officer.open()
        try:
            for _ in range(3):
                does.assign_role("cara", role)
                does.remove_role("cara", role)
            does.assign_role("cara", role)
        except BaseException as error:
            failures.append(error)
            raise

    workers = [threading.Thread(target=toggle, args=(role,)) for role in ("carer", "other")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    assert acls_of(officer, "cara") == CARE | {Acl("topic", "literal", "clinic", "read")}
    assert officer.does.reconciler.compare().is_empty


def test_penstocks_own_user_is_never_touched_by_a_definition(officer: Officer) -> None:
    officer.apply(Document("user", "admin", {"roles": ["carer"]}))
    found = officer.does.reconciler.compare()
    assert found.refused == ["admin"]
    assert found.is_empty
    officer.does.reconciler.repair()
    assert acls_of(officer, "admin") == set()
    assert "admin" not in KafkaUsers(officer.database).users()
