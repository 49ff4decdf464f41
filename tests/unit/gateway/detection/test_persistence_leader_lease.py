from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.gateway.detection.persistence import LeaderLease, is_gone, make_holder, make_place
from penstock.store.database import Database
from penstock.store.detection.journal import DetectionStore, LeaderRecord

TELL = (
    "from penstock.gateway.detection.persistence import *; "
    "print(make_holder()); print(make_place())"
)
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def leader(holder: str, place: str) -> LeaderRecord:
    return LeaderRecord(holder, place, NOW, NOW, "")


async def call(function: Callable[..., Any], *given: Any) -> Any:
    return await asyncio.to_thread(function, *given)


def test_a_process_of_this_machine_that_ended_is_gone() -> None:
    told = subprocess.run(
        [sys.executable, "-c", TELL], capture_output=True, check=True, text=True
    ).stdout
    holder, place = told.splitlines()
    assert is_gone(leader(holder, place))
    assert not is_gone(leader(make_holder(), make_place()))
    # The same number elsewhere, or a name that says nothing: nobody knows.
    assert not is_gone(leader("0" * 32, place))
    assert not is_gone(leader(holder, "somewhere"))


@pytest.mark.parametrize("shared", [False, True])
def test_who_is_gone_keeps_nobody_waiting(tmp_path: Path, shared: bool) -> None:  # noqa: FBT001
    told = subprocess.run(
        [sys.executable, "-c", TELL], capture_output=True, check=True, text=True
    ).stdout
    holder, place = told.splitlines()

    async def run(database: Database) -> None:
        gone = DetectionStore(database, place, seconds=600, holder=holder)
        gone.acquire()
        if shared:
            gone.announce(2.5)
        store = DetectionStore(database, "here", seconds=600)
        store.address = "127.0.0.1:4711"
        mine = LeaderLease(store, 600, call)
        assert await mine.acquire() is None
        assert mine.is_held
        other = LeaderLease(DetectionStore(database, "there", seconds=600), 600, call)
        held = await other.acquire()
        assert held is not None
        assert (held.place, held.address) == ("here", "127.0.0.1:4711")
        assert not other.is_held
        # Somebody may go by what it told, if it told anybody anything.
        assert (mine.others_until > 0) == shared
        await mine.release()
        assert await other.acquire() is None

    with Database.open(f"sqlite:///{tmp_path}/penstock.db") as database:
        asyncio.run(run(database))


def test_who_was_killed_and_is_not_counted_yet_is_gone() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", f"{TELL}; import sys; sys.stdout.flush(); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    holder, place = (process.stdout.readline().strip() for _ in range(2))
    assert not is_gone(leader(holder, place))
    process.kill()
    # Nobody has asked for its end: it stays on the list of processes until then.
    deadline = time.monotonic() + 60
    while not is_gone(leader(holder, place)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.returncode is None
    process.communicate()


def test_who_had_it_long_ago_told_nobody_anything_that_still_holds(tmp_path: Path) -> None:
    async def run(database: Database) -> None:
        past = DetectionStore(database, "past", seconds=2, clock=lambda: NOW)
        past.acquire()
        past.announce(60)
        lease = LeaderLease(DetectionStore(database, "here", seconds=600), 600, call)
        assert await lease.acquire() is None
        assert not lease.others_until

    with Database.open(f"sqlite:///{tmp_path}/penstock.db") as database:
        asyncio.run(run(database))
