from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError
from penstock.pipeline.service.manager import Manager


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
