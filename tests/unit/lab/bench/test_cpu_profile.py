"""Where CPU time goes: what samples are counted for."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType

from penstock.json_text import read_object
from penstock_lab.bench.cpu_profile import CpuProfile


def test_a_sample_belongs_to_the_innermost_function_of_the_product() -> None:
    profile = CpuProfile()
    frames: list[FrameType] = []

    def trace(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            frames.append(frame)
            profile.note(signal.SIGPROF, frame)

    sys.setprofile(trace)
    try:
        read_object(b'{"a": 1}')
    finally:
        sys.setprofile(None)
    assert ("json_text", "read_object") in profile.counts
    assert {module for module, _ in profile.counts} == {"json_text"}
    # The decoder of the standard library was called, and its time is the caller's.
    assert any(frame.f_globals["__name__"] == "json.decoder" for frame in frames)
    profile.note(signal.SIGPROF, None)
    assert profile.counts["elsewhere", ""] == 1


def test_a_report_tells_shares_of_rooms_and_functions() -> None:
    profile = CpuProfile()
    profile.counts.update(
        {("gateway.connection.upstream", "Upstream.deliver"): 3, ("gateway.clock", "Clock.now"): 1}
    )
    assert profile.report() == {
        "samples": 4,
        "rooms": {"gateway.connection": 0.75, "gateway.clock": 0.25},
        "functions": {
            "gateway.connection.upstream:Upstream.deliver": 0.75,
            "gateway.clock:Clock.now": 0.25,
        },
    }


def test_it_looks_while_the_processor_works_and_stops_when_told() -> None:
    profile = CpuProfile()
    before = signal.getsignal(signal.SIGPROF)
    try:
        profile.toggle()
        until = time.process_time() + 0.2
        while time.process_time() < until:
            read_object(b'{"a": 1}')
        profile.toggle()
        counted = sum(profile.counts.values())
        assert counted > 0
        assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
