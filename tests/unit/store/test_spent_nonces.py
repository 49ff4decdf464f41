"""Nonces that were used: one use, at all gateways, also after a restart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.store.database import Database
from penstock.store.spent_nonces import SpentNonces


def test_a_nonce_is_spent_once_at_two_gateways_and_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with Database.open(url) as one, Database.open(url) as two:
        assert SpentNonces(one).spend("a", 0, 100)
        assert not SpentNonces(two).spend("a", 50, 150)
        assert SpentNonces(two).spend("b", 50, 150)
    with Database.open(url) as again:
        assert not SpentNonces(again).spend("b", 60, 160)
        # What is over is refused by its time: its nonce is kept no more.
        assert SpentNonces(again).spend("b", 151, 300)


def test_of_many_at_once_one_has_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with Database.open(url) as database, ThreadPoolExecutor(8) as threads:
        nonces = SpentNonces(database)
        assert sum(threads.map(lambda _: nonces.spend("a", 0, 100), range(8))) == 1


def test_so_many_are_kept_at_most(tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path / 'store.db'}") as database:
        nonces = SpentNonces(database, limit=2)
        assert [nonces.spend(it, 0, 100) for it in "abc"] == [True, True, False]
        assert nonces.spend("c", 101, 200)
