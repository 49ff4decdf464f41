from __future__ import annotations

import importlib
import pkgutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.exc import IntegrityError

import penstock.store
from penstock.errors import UnavailableError, UsageError
from penstock.store import migrations
from penstock.store.database import Address, Database, create_engine
from penstock.store.schema import epochs, metadata

versions = sa.table(migrations.VERSION_TABLE, sa.column("version_num"))

OPEN = (
    "import sys; from penstock.store.database import Database; Database.open(sys.argv[1]).close()"
)


def row(epoch: int, actor: str = "somebody") -> dict[str, Any]:
    at = sa.func.coalesce(sa.literal(0), 0)
    return {"epoch": epoch, "mark": "m", "at": at, "actor": actor, "reason": ""}


def newest(database: Database) -> int:
    with database.read() as connection:
        return int(connection.scalar(sa.select(sa.func.max(epochs.c.epoch))) or 0)


def test_the_migrations_make_exactly_the_tables_of_the_metadata(database: Database) -> None:
    for module in pkgutil.walk_packages(penstock.store.__path__, "penstock.store."):
        if ".migrations." not in module.name:
            importlib.import_module(module.name)
    with database.read() as connection:
        options = {"version_table": migrations.VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


def test_the_versions_are_one_line(database: Database) -> None:
    numbers = list(migrations.STEPS)
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
    with database.read() as connection:
        assert migrations.database_version(connection) == numbers[-1] == migrations.code_version()


def test_opening_a_current_database_does_not_load_alembic(sqlite_url: str) -> None:
    Database.open(sqlite_url).close()
    program = OPEN + "; assert 'alembic' not in sys.modules, 'loaded'"
    subprocess.run([sys.executable, "-c", program, sqlite_url], check=True)


def test_several_processes_may_open_a_new_database_at_once(empty_store_url: str) -> None:
    command = [sys.executable, "-c", OPEN, empty_store_url]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    said = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0] * 6, said
    with Database.open(empty_store_url) as database:
        assert newest(database) == 0


@pytest.mark.parametrize("version", ["9999", "0001a", "abc", ""])
def test_a_database_of_another_version_is_refused(store_url: str, version: str) -> None:
    with Database.open(store_url) as database, database.write() as connection:
        connection.execute(versions.update().values(version_num=version))
    with pytest.raises(UnavailableError, match=f"has version '{version}'.*knows versions up to"):
        Database.open(store_url)


def test_an_older_database_is_upgraded_and_keeps_what_it_holds(empty_store_url: str) -> None:
    address = Address.parse(empty_store_url)
    with Database(address, create_engine(address)) as old, old.write() as connection:
        migrations.upgrade(connection, to="0001")
        connection.execute(epochs.insert().values(row(1)))
    with Database.open(empty_store_url) as database:
        with database.read() as connection:
            assert migrations.database_version(connection) == migrations.code_version()
        assert newest(database) == 1


def test_a_write_is_kept_or_undone_as_a_whole(database: Database) -> None:
    with database.write() as connection:
        connection.execute(epochs.insert().values(row(1)))
    with pytest.raises(KeyError), database.write() as connection:  # noqa: PT012
        connection.execute(epochs.insert().values(row(2)))
        raise KeyError
    assert newest(database) == 1


def test_a_mistake_of_ours_stays_what_it_is_and_shows_no_data(database: Database) -> None:
    insert = epochs.insert().values(row(0, actor="Ms Example"))
    with pytest.raises(IntegrityError) as raised, database.write() as connection:
        connection.execute(insert)
    assert "[SQL parameters hidden" in str(raised.value)


def test_a_reader_sees_one_moment(database: Database) -> None:
    count = sa.select(sa.func.count()).select_from(epochs)
    with database.read() as reader:
        assert reader.scalar(count) == 1
        with database.write() as writer:
            writer.execute(epochs.insert().values(row(1)))
        assert reader.scalar(count) == 1
    with database.read() as reader:
        assert reader.scalar(count) == 2


def test_writers_of_one_area_come_one_after_another(database: Database) -> None:
    def add() -> None:
        for _ in range(10):
            with database.write("area") as connection:
                last = connection.scalar(sa.select(sa.func.max(epochs.c.epoch))) or 0
                connection.execute(epochs.insert().values(row(last + 1)))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert newest(database) == 40


@pytest.mark.needs("postgresql")
def test_areas_do_not_wait_for_each_other_on_postgresql(postgres_url: str) -> None:
    with (
        Database.open(postgres_url) as database,
        database.write("one"),
        database.write("two") as connection,
    ):
        connection.execute(epochs.insert().values(row(1)))


def test_a_writer_that_cannot_get_the_lock_gives_up(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.store.database.LOCK_SECONDS", 0.05)
    with (
        Database.open(store_url) as database,
        database.write(),
        pytest.raises(UnavailableError, match="lock"),
        database.write(),
    ):
        pytest.fail("two writers at once")


def test_sqlite_is_set_up_to_lose_nothing(sqlite_url: str) -> None:
    with Database.open(sqlite_url) as database, database.read() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_the_folder_of_a_new_sqlite_file_is_made(tmp_path: Path) -> None:
    Database.open(f"sqlite:///{tmp_path}/a/b/penstock.db").close()
    assert (tmp_path / "a" / "b" / "penstock.db").exists()


def test_a_new_sqlite_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path}/penstock.db") as database:
        with database.write() as connection:
            connection.execute(epochs.insert().values(row(1)))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(["penstock.db", "penstock.db-wal", "penstock.db-shm"], 0o600)


def test_a_connection_to_a_replaced_file_is_not_used_again(tmp_path: Path) -> None:
    here, there = tmp_path / "here.db", tmp_path / "there.db"
    Database.open(f"sqlite:///{there}").close()
    with Database.open(f"sqlite:///{here}") as database:
        with database.write() as connection:
            connection.execute(epochs.insert().values(row(1)))
        for left in ("here.db-wal", "here.db-shm"):  # they belong to the old file
            (tmp_path / left).unlink()
        there.replace(here)
        assert newest(database) == 0


def test_a_file_that_is_no_database_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look like one\n" * 100)
    with pytest.raises(UnavailableError, match=r"notes\.txt is not available: file is not a"):
        Database.open(f"sqlite:///{path}")


def test_a_folder_that_cannot_be_made_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        UnavailableError, match=r"cannot open sqlite:///.*penstock\.db: Not a directory"
    ):
        Database.open(f"sqlite:///{tmp_path}/file/folder/penstock.db")


def test_an_unreachable_server_is_named_without_its_password() -> None:
    url = "postgresql://ann:hunter2@127.0.0.1:1/penstock?connect_timeout=1&sslpassword=hunter3"
    with pytest.raises(UnavailableError) as raised:
        Database.open(url)
    text = str(raised.value)
    assert "postgresql://ann:***@127.0.0.1:1/penstock is not available" in text
    assert "check that PostgreSQL runs there" in text
    assert "hunter" not in text
    assert raised.value.exit_code == 3


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("ann:hunter2@host/penstock", "is not a URL →"),
        ("my store://ann:hunter2@host/penstock", "is not a URL .it begins with 'my store'"),
        ("mysql://ann:hunter2@host/penstock", "database of type 'mysql'"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
    ],
)
def test_an_address_that_is_wrong_is_refused(url: str, match: str) -> None:
    with pytest.raises(UsageError, match=match) as raised:
        Database.open(url)
    assert "sqlite:///folder/penstock.db or postgresql://user@host/database" in str(raised.value)
    assert "hunter" not in str(raised.value)


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        yield connection


@pytest.mark.needs("postgresql")
def test_a_commit_whose_outcome_is_unknown_says_so(postgres_url: str) -> None:
    with (  # noqa: PT012 (the error is raised at the end of the block)
        Database.open(postgres_url) as database,
        connected(postgres_url) as other,
        pytest.raises(UnavailableError, match=r"may or may not be stored.*look at the history"),
        database.write() as connection,
    ):
        backend = connection.scalar(sa.text("SELECT pg_backend_pid()"))
        connection.execute(epochs.insert().values(row(1)))
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (backend,))


@pytest.mark.needs("postgresql")
def test_a_lost_connection_is_replaced(postgres_url: str) -> None:
    with Database.open(postgres_url) as database, connected(postgres_url) as other:
        with database.read() as connection:
            backend = connection.scalar(sa.text("SELECT pg_backend_pid()"))
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (backend,))
        assert newest(database) == 0
