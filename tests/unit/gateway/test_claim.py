from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.gateway.claim import Claim, is_gone, make_holder, make_place
from penstock.store.database import Database
from penstock.store.detection import DetectionStore, Detector

TELL = "from penstock.gateway.claim import *; print(make_holder()); print(make_place())"
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def detector(holder: str, place: str) -> Detector:
    return Detector(holder, place, NOW, NOW, "")


async def call(function: Callable[..., Any], *given: Any) -> Any:
    return await asyncio.to_thread(function, *given)


def test_a_process_of_this_machine_that_ended_is_gone() -> None:
    told = subprocess.run(
        [sys.executable, "-c", TELL], capture_output=True, check=True, text=True
    ).stdout
    holder, place = told.splitlines()
    assert is_gone(detector(holder, place))
    assert not is_gone(detector(make_holder(), make_place()))
    # The same number elsewhere, or a name that says nothing: nobody knows.
    assert not is_gone(detector("0" * 32, place))
    assert not is_gone(detector(holder, "somewhere"))


def test_who_is_gone_keeps_nobody_waiting(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", TELL], capture_output=True, check=True, text=True
    ).stdout
    holder, place = told.splitlines()

    async def run(database: Database) -> None:
        DetectionStore(database, place, seconds=600, holder=holder).claim()
        mine = Claim(DetectionStore(database, "here", seconds=600), 600, call)
        assert await mine.take() == ""
        assert mine.is_held
        other = Claim(DetectionStore(database, "there", seconds=600), 600, call)
        assert await other.take() == "here"
        assert not other.is_held
        await mine.release()
        assert await other.take() == ""

    with Database.open(f"sqlite:///{tmp_path}/penstock.db") as database:
        asyncio.run(run(database))
