"""The benchmark of privacy requests measures what it says, on a small scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_lab.bench import requests


def test_a_sweep_finds_one_in_a_hundred(tmp_path: Path) -> None:
    found = requests._sweep(f"sqlite:///{tmp_path / 'store.db'}", 2_000)
    assert (found["told_again"], found["failed"]) == (10, 10)


def test_requests_are_accepted_and_their_waits_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "THREADS", 4)
    found = requests._accept(f"sqlite:///{tmp_path / 'store.db'}", "sqlite", 0.2)
    assert found["accepted_per_s"] > 0
    assert found["at_half_of_goal_ms"]["p50"] <= found["at_half_of_goal_ms"]["p99"]
