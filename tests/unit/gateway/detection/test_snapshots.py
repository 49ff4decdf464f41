from __future__ import annotations

import os

import pytest

from penstock.errors import UnavailableError
from penstock.gateway.detection.snapshots import fork_snapshot


def test_the_state_is_the_one_of_the_moment_it_began() -> None:
    state = [b"x" * 1_000_000]
    child = fork_snapshot(lambda: b"".join(state))
    state[0] = b"changed"
    assert child.read() == b"x" * 1_000_000
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)


def test_a_state_that_cannot_be_saved_is_told() -> None:
    def fail() -> bytes:
        raise RuntimeError("broken on purpose")

    with pytest.raises(UnavailableError, match="could not be saved"):
        fork_snapshot(fail).read()
