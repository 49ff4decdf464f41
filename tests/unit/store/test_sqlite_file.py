from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from penstock.errors import UnavailableError
from penstock.model.document import Document, Key
from penstock.store import sqlite_file
from penstock.store.database import Database
from penstock.store.definitions.documents import Put
from penstock.store.definitions.history import Definitions
from penstock.store.detokenization import StoreVault
from penstock.store.follower import Follower, StaleError
from penstock.store.schema import epochs
from penstock.store.sqlite_file import FileReplacedError

SOON = 60.0
WRITER = """
import json, sys
from penstock.model.document import Document
from penstock.store.database import Database
from penstock.store.definitions.history import Definitions
from penstock.store.definitions.documents import Put
for line in sys.stdin:
    url, name, stays = json.loads(line)
    database = Database.open(url)
    edit = Put(Document("topic", name, {}))
    Definitions(database).change(lambda _: [edit], actor="ann", reason="")
    if not stays:
        database.close()
    print("done", flush=True)
"""
OPENED = """
import sys
from pathlib import Path
def hear(event, arguments):
    if event == "open" and Path(str(arguments[0])).name.startswith("penstock.db"):
        sys.stderr.write(f"opened {arguments[0]}\\n")
sys.addaudithook(hear)
from penstock.store.database import Database
from penstock.store.follower import Follower
with Database.open(sys.argv[1]) as database, Follower(database) as follower:
    follower.wait_for(0, 20)
    Database.open(sys.argv[1]).close()
    with database.write() as connection:
        connection.exec_driver_sql("SELECT 1")
"""
HOLDER = """
import gc, sys
from penstock.store.database import Database
database = Database.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
print("ends", flush=True)
{ending}
"""


class Elsewhere:
    """Another process, which opens a store, changes it, and closes it or is killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def write(self, path: Path, name: str, *, killed: bool = False, stays: bool = False) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", WRITER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([f"sqlite:///{path}", name, killed or stays]) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"
        if killed:
            self.end()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    made = Elsewhere()
    yield made
    made.end()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "penstock.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{path}") as database:
        yield database


def names_in(database: Database) -> set[str]:
    return {key.name for key in Definitions(database).snapshot().documents}


def put(database: Database, name: str) -> None:
    edit = Put(Document("topic", name, {}))
    Definitions(database).change(lambda _: [edit], actor="ann", reason="")


def copy_log(database: Database) -> None:
    """Bring all that is in the log into the file, so that it could do without."""
    with closing(database.engine.raw_connection()) as connection:
        connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")


def take_log_away(path: Path) -> None:
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink()


def drop_locks(path: Path) -> None:
    """Do what nobody must: open the file beside SQLite."""
    os.close(os.open(path, os.O_RDONLY))


def test_a_second_engine_of_a_process_leaves_the_locks_of_the_first(
    path: Path, database: Database, elsewhere: Elsewhere
) -> None:
    definitions = Definitions(database)
    assert definitions.snapshot().epoch == 0
    with Database.open(f"sqlite:///{path}") as beside:
        StoreVault(beside).put("vault", {"token": b"sealed"})
        for epoch, name in enumerate(("a", "b"), start=1):
            elsewhere.write(path, name)
            assert definitions.snapshot().epoch == epoch
        put(database, "c")
        elsewhere.write(path, "d")
        assert names_in(database) == names_in(beside) == {"a", "b", "c", "d"}


def test_nothing_but_sqlite_opens_the_files(path: Path) -> None:
    command = [sys.executable, "-c", OPENED, f"sqlite:///{path}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "opened" not in done.stderr


def test_a_new_file_is_for_its_owner_alone_whatever_the_mask(path: Path) -> None:
    before = os.umask(0)
    try:
        Database.open(f"sqlite:///{path}").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_empty_file_is_taken_and_keeps_its_mode(path: Path) -> None:
    path.touch(mode=0o640)
    mode = path.stat().st_mode
    with Database.open(f"sqlite:///{path}") as database:
        assert names_in(database) == set()
    assert path.stat().st_mode == mode


def test_a_link_leads_to_the_file_and_its_log(
    tmp_path: Path, path: Path, elsewhere: Elsewhere
) -> None:
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "store.db"
    path.symlink_to(target)
    with Database.open(f"sqlite:///{path}") as database:
        put(database, "a")
        elsewhere.write(path, "b")
        assert names_in(database) == {"a", "b"}
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
        assert target.with_name("store.db-wal").exists()


def test_threads_may_open_a_new_file_at_once(path: Path) -> None:
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with Database.open(f"sqlite:///{path}") as database:
                put(database, str(number))
        except BaseException as error:  # noqa: BLE001 (told below)
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with Database.open(f"sqlite:///{path}") as database:
        assert names_in(database) == {str(number) for number in range(6)}


def test_a_file_that_was_moved_away_is_not_made_anew(
    tmp_path: Path, path: Path, database: Database
) -> None:
    path.rename(tmp_path / "elsewhere.db")
    with pytest.raises(UnavailableError, match="unable to open database file"):
        names_in(database)
    assert not path.exists()


@pytest.mark.parametrize("take_away", [take_log_away, drop_locks])
def test_what_others_write_after_the_log_was_replaced_is_seen_and_kept(
    path: Path, database: Database, elsewhere: Elsewhere, take_away: Callable[[Path], None]
) -> None:
    elsewhere.write(path, "a")
    with Database.open(f"sqlite:///{path}") as beside:
        assert names_in(database) == names_in(beside) == {"a"}
        copy_log(database)
        take_away(path)
        elsewhere.write(path, "b")
        # What a killed process committed is in the new log alone.
        elsewhere.write(path, "c", killed=True)
        put(database, "d")
        assert names_in(database) == names_in(beside) == {"a", "b", "c", "d"}
    elsewhere.write(path, "e")
    with Database.open(f"sqlite:///{path}") as again, again.read() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        assert connection.scalar(sa.select(sa.func.count()).select_from(epochs)) == 6


def test_the_index_of_the_log_is_watched_too(
    path: Path, database: Database, elsewhere: Elsewhere
) -> None:
    """Without its index others see a log of their own, in the same file."""
    elsewhere.write(path, "a")
    assert names_in(database) == {"a"}
    copy_log(database)
    with Follower(database, lease=1000.0) as follower:
        follower.wait_for(1, SOON)
        path.with_name("penstock.db-shm").unlink()
        elsewhere.write(path, "b")
        follower.wait_for(2, SOON)
        elsewhere.write(path, "c", killed=True)
        follower.wait_for(3, SOON)
    put(database, "d")
    assert names_in(database) == {"a", "b", "c", "d"}


def copy_to(database: Database, copy: Path) -> None:
    with closing(database.engine.raw_connection()) as connection:
        connection.cursor().execute(f"VACUUM INTO '{copy}'")


def test_the_log_of_a_new_file_survives_those_who_leave_the_old_one(
    path: Path, database: Database, elsewhere: Elsewhere
) -> None:
    put(database, "a")
    copy_to(database, copy := path.with_name("copy.db"))
    take_log_away(path)
    copy.replace(path)
    # What a killed process committed is in the log of the new file alone.
    elsewhere.write(path, "b", killed=True)
    assert names_in(database) == {"a", "b"}
    put(database, "c")
    elsewhere.write(path, "d")
    assert names_in(database) == {"a", "b", "c", "d"}


@pytest.mark.parametrize("empty", [True, False])
def test_the_log_of_the_old_file_is_not_mixed_into_the_new_one(
    path: Path, database: Database, elsewhere: Elsewhere, *, empty: bool
) -> None:
    put(database, "a")
    with Database.open(f"sqlite:///{path}") as beside:
        copy_to(database, copy := path.with_name("copy.db"))
        put(database, "b")
        if empty:
            copy_log(database)
        copy.replace(path)
        if not empty:
            for one in (database, beside, database):
                with pytest.raises(FileReplacedError, match="is still the log of the old one"):
                    names_in(one)
            take_log_away(path)
        assert names_in(beside) == {"a"}
        put(beside, "c")
        assert names_in(database) == {"a", "c"}
        elsewhere.write(path, "d")
        with beside.read() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    assert names_in(database) == {"a", "c", "d"}


def test_a_file_that_comes_back_has_its_log(
    path: Path, database: Database, elsewhere: Elsewhere
) -> None:
    other = Elsewhere()
    try:
        other.write(path, "a", stays=True)
        assert names_in(database) == {"a"}
        path.rename(path.with_name("away.db"))
        with pytest.raises(UnavailableError, match="unable to open database file"):
            names_in(database)
        path.with_name("away.db").rename(path)
        assert names_in(database) == {"a"}
        elsewhere.write(path, "b")
        assert names_in(database) == {"a", "b"}
    finally:
        other.end()


@pytest.mark.parametrize("ending", ["del database; gc.collect()", "pass", "sys.exit(1)"])
def test_a_process_that_ends_leaves_the_log_of_others_alone(
    path: Path, elsewhere: Elsewhere, ending: str
) -> None:
    elsewhere.write(path, "a")
    program = HOLDER.format(ending=ending)
    command = [sys.executable, "-c", program, f"sqlite:///{path}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin
        assert holder.stdout
        assert holder.stdout.readline() == "open\n"
        take_log_away(path)
        elsewhere.write(path, "b", killed=True)
        holder.stdin.write("end\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "ends\n"
        holder.wait(SOON)
    with Database.open(f"sqlite:///{path}") as database:
        assert names_in(database) == {"a", "b"}


def test_a_log_that_is_replaced_while_a_connection_is_opened(
    path: Path, database: Database, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new connection shares the old index with those of its process: it is not used."""
    copy_log(database)
    real = sqlite_file._use_wal

    def replace(connection: sqlite3.Connection, patience: float) -> None:
        monkeypatch.setattr(sqlite_file, "_use_wal", real)
        take_log_away(path)
        elsewhere.write(path, "a", killed=True)
        real(connection, patience)

    monkeypatch.setattr(sqlite_file, "_use_wal", replace)
    with pytest.raises(FileReplacedError, match="moved away or replaced"):
        Database.open(f"sqlite:///{path}")
    with Database.open(f"sqlite:///{path}") as beside:
        assert names_in(beside) == names_in(database) == {"a"}


def test_there_is_no_access_while_the_old_log_is_in_use(
    path: Path, database: Database, elsewhere: Elsewhere
) -> None:
    copy_log(database)
    with Database.open(f"sqlite:///{path}") as beside:
        with database.read() as reader:
            take_log_away(path)
            elsewhere.write(path, "a")
            with pytest.raises(FileReplacedError, match="moved away or replaced"):
                names_in(beside)
            assert reader.scalar(sa.select(sa.func.max(epochs.c.epoch))) == 0
        assert names_in(beside) == names_in(database) == {"a"}


def test_a_write_into_a_log_that_was_replaced_is_not_acknowledged(
    path: Path, database: Database
) -> None:
    def edit(_: object) -> list[Put]:
        take_log_away(path)
        return [Put(Document("topic", "a", {}))]

    copy_log(database)
    with pytest.raises(UnavailableError, match="may or may not be stored"):
        Definitions(database).change(edit, actor="ann", reason="")
    assert names_in(database) == set()


def test_a_follower_knows_nothing_from_the_moment_its_log_is_gone(
    path: Path, database: Database, elsewhere: Elsewhere
) -> None:
    elsewhere.write(path, "a")
    copy_log(database)
    with Follower(database, lease=1000.0) as follower:
        follower.wait_for(1, SOON)
        with database.read():  # as long as this lasts, nothing can be opened anew
            take_log_away(path)
            deadline = time.monotonic() + SOON
            while follower.status().is_fresh:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            with pytest.raises(StaleError, match=r"whether epoch 1 .* is current cannot be known"):
                follower.current()
            assert follower.status().details()["epoch"] == 1
            elsewhere.write(path, "b")
        follower.wait_for(2, SOON)
        assert Key("topic", "b") in follower.current().documents
        assert follower.status().details()["epoch"] == 2
