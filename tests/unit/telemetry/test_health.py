import threading
import time

import pytest

from penstock.errors import UsageError
from penstock.telemetry import Health
from penstock.telemetry.health import FRESH_SECONDS, TIMEOUT_LIMIT


def well() -> None:
    return None


def test_without_checks_nothing_is_ready() -> None:
    assert not Health().readiness().ok
    assert Health().liveness().ok


def test_all_checks_have_to_be_well() -> None:
    health = Health()
    health.register("store", well)
    assert health.readiness().ok
    health.register("broker", lambda: "not connected")
    report = health.readiness()
    assert not report.ok
    assert report.checks == ("store", "broker")
    assert report.failing == {"broker": "not connected"}


def test_figures_are_told_along_with_a_check_that_is_well_or_not() -> None:
    health = Health()
    health.register("store", well, details=lambda: {"epoch": 3, "age_seconds": 0.5})
    health.register("broker", lambda: "not connected", details=lambda: {"tries": 2})
    report = health.readiness()
    assert report.details == {"store": {"epoch": 3, "age_seconds": 0.5}, "broker": {"tries": 2}}
    assert report.failing == {"broker": "not connected"}


def test_a_check_that_raises_is_not_well_and_its_text_is_not_told() -> None:
    def fail() -> None:
        raise RuntimeError("alice")

    def leave() -> None:
        raise SystemExit

    health = Health()
    health.register("a", fail)
    health.register("b", leave)
    assert health.readiness().failing == {"a": "raised RuntimeError", "b": "raised SystemExit"}


def test_a_check_that_answers_something_else_is_not_well() -> None:
    health = Health()
    health.register("store", lambda: True)  # type: ignore[arg-type,return-value]
    assert health.readiness().failing == {"store": "answered with bool instead of a reason"}


def test_a_check_that_hangs_is_not_well_and_runs_once() -> None:
    release = threading.Event()
    runs = []

    def hang() -> None:
        runs.append(1)
        release.wait(30)

    health = Health()
    health.register("store", hang, timeout=0.05)
    for _ in range(3):
        assert health.readiness().failing == {"store": "no answer within 0.05 s"}
    assert len(runs) == 1
    release.set()
    deadline = time.monotonic() + 10
    while not health.readiness().ok and time.monotonic() < deadline:
        time.sleep(0.01)
    assert health.readiness().ok


def test_checks_are_asked_side_by_side() -> None:
    both = threading.Barrier(2, timeout=60)

    def meet() -> None:
        both.wait()

    health = Health()
    health.register("a", meet)
    health.register("b", meet)
    assert health.readiness().ok, "each check waits for the other"


def test_answers_are_used_again_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    asked = []
    health = Health()
    health.register("store", lambda: asked.append(1))
    health.readiness()
    health.readiness()
    assert len(asked) == 1
    now[0] += FRESH_SECONDS * 1.5
    health.readiness()
    assert len(asked) == 2


def test_liveness_asks_its_own_checks_only() -> None:
    health = Health()
    health.register("broker", lambda: "not connected")
    assert health.liveness().ok
    health.register("loop", lambda: "stands still", liveness=True)
    assert health.liveness().failing == {"loop": "stands still"}
    assert set(health.readiness().failing) == {"broker", "loop"}


def test_registration_is_checked() -> None:
    health = Health()
    health.register("store", well)
    with pytest.raises(UsageError, match="registered already"):
        health.register("store", well)
    with pytest.raises(UsageError, match="not a name for a check"):
        health.register("Store of Alice", well)
    with pytest.raises(UsageError, match="cannot take"):
        health.register("slow", well, timeout=TIMEOUT_LIMIT * 2)
