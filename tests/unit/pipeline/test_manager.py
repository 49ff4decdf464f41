from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError
from penstock.pipeline.manager import Manager, make_health


def _manager(folder: Path) -> Manager:
    # Without views nothing is asked of Spark.
    return Manager(cast("Any", None), defaults(folder, {}).pipeline, DefinitionSet.empty)


def test_one_process_runs_the_views_of_a_folder(tmp_path: Path) -> None:
    first, second = _manager(tmp_path), _manager(tmp_path)
    with first._alone(), pytest.raises(UnavailableError, match="run by another process"):
        second.run_once()
    second.run_once()


def test_the_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    _manager(tmp_path)
    path = tmp_path / "penstock-data" / "keys" / "masks.key"
    key = path.read_bytes()
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    _manager(tmp_path)
    assert path.read_bytes() == key


def _until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_store_that_is_away_ends_nothing_and_is_told(tmp_path: Path) -> None:
    away = threading.Event()

    def definitions() -> DefinitionSet:
        if away.is_set():
            raise UnavailableError("the store is away")
        return DefinitionSet.empty()

    manager = Manager(cast("Any", None), defaults(tmp_path, {}).pipeline, definitions)
    health = make_health(cast("Any", None), manager, definitions)
    told = threading.Event()
    thread = threading.Thread(target=manager.run, args=(told,), daemon=True)
    thread.start()
    try:
        _until(manager.runs.is_set)
        assert manager.trouble is None
        away.set()
        _until(lambda: manager.trouble)
        failing = health.readiness().failing
        assert failing["views"] == "the store is away"
        assert failing["definitions"] == "raised UnavailableError"
        away.clear()
        _until(lambda: manager.trouble is None)
        assert thread.is_alive()
    finally:
        told.set()
        thread.join()
