from __future__ import annotations

import pickle
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from penstock.masks import Tokenization, Vault
from penstock.store.database import Database
from penstock.store.detokenization import CHUNK, StoreVault, VaultAddress
from tests.support.masks.single_mask import chain_of, supply

SPEC = {"anonymizer": "tokenization", "method": "vault", "vault": "patients"}


def test_what_is_put_can_be_got(database: Database) -> None:
    vault: Vault = StoreVault(database)
    assert vault.get("patients", "ab") is None
    vault.put("patients", {"ab": b"\0sealed", "cd": b""})
    assert vault.get("patients", "ab") == b"\0sealed"
    assert vault.get("patients", "cd") == b""
    assert vault.get("doctors", "ab") is None
    vault.put("patients", {})


def test_an_entry_is_never_changed(database: Database) -> None:
    vault = StoreVault(database)
    vault.put("patients", {"ab": b"first"})
    vault.put("patients", {"ab": b"second", "cd": b"new"})
    assert vault.get_all("patients", ["ab", "cd", "ef"]) == {"ab": b"first", "cd": b"new"}


def test_many_entries_at_once(database: Database) -> None:
    vault = StoreVault(database)
    many = {f"{number:032x}": number.to_bytes(4) for number in range(CHUNK * 2 + 1)}
    vault.put("patients", many)
    assert vault.get_all("patients", list(many)) == many


def test_threads_that_put_the_same_values_get_on(database: Database) -> None:
    vault = StoreVault(database)
    entries = {f"{number:032x}": b"sealed" for number in range(200)}
    failures: list[BaseException] = []

    def put() -> None:
        try:
            vault.put("patients", entries)
        except BaseException as error:  # noqa: BLE001 - told below, in the thread of the test
            failures.append(error)

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert vault.get_all("patients", list(entries)) == entries


def _tokenize(url: str, names: list[str]) -> list[str]:
    chain = chain_of("string", SPEC, supplies=supply(vault=VaultAddress(url)))
    outcomes = [chain.apply({"x": name}) for name in names]
    return [outcome["x"] for outcome in outcomes if isinstance(outcome, dict)]


def test_processes_give_the_same_value_the_same_token(sqlite_url: str) -> None:
    names = [f"Name{number}" for number in range(20)]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        first, second = pool.map(_tokenize, [sqlite_url] * 2, [names, names])
    assert first == second
    assert len(set(first)) == 20
    with Database.open(sqlite_url) as database:
        chain = chain_of("string", SPEC, supplies=supply(vault=StoreVault(database)))
        mask, stage = chain.stages[0]
        assert isinstance(mask, Tokenization)
        reverse = mask.reverse(stage.target("x"))
        assert [reverse(token) for token in first] == names


def test_the_store_holds_nothing_that_can_be_read(sqlite_url: str) -> None:
    with Database.open(sqlite_url) as database:
        chain = chain_of("string", SPEC, supplies=supply(vault=StoreVault(database)))
        chain.apply({"x": "Hans Müller"})
        with database.read() as connection:
            rows = connection.exec_driver_sql("SELECT * FROM vault_entries").all()
    assert len(rows) == 1
    assert b"Hans" not in rows[0].sealed
    assert "Hans" not in repr(rows)


def test_an_address_travels_without_its_connections(sqlite_url: str) -> None:
    address = VaultAddress(sqlite_url)
    address.put("patients", {"ab": b"sealed"})
    copy = pickle.loads(pickle.dumps(address))  # noqa: S301 - made here
    assert copy.get("patients", "ab") == b"sealed"
