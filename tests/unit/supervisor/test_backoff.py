from hypothesis import given
from hypothesis import strategies as st

from penstock.config.sections.processes import SupervisorSettings
from penstock.supervisor.backoff import Backoff

settings = st.builds(
    SupervisorSettings,
    backoff=st.integers(1, 10).map(float),
    backoff_limit=st.integers(10, 60).map(float),
    failures=st.integers(1, 6),
    window=st.integers(1, 100).map(float),
)


@given(settings, st.lists(st.integers(0, 60), max_size=20), st.floats(0, 1, exclude_max=True))
def test_failures_are_counted_as_a_plain_list_would(
    declared: SupervisorSettings, gaps: list[int], random: float
) -> None:
    backoff = Backoff(declared, lambda: random)
    history: list[float] = []
    now = 1000.0
    for gap in gaps:
        now += gap
        history.append(now)
        recent = [at for at in history if now - at < declared.window]
        delay = backoff.fail(now)
        if len(recent) >= declared.failures:
            assert delay is None
        else:
            whole = min(declared.backoff_limit, declared.backoff * 2 ** (len(recent) - 1))
            assert delay is not None
            assert whole / 2 <= delay <= whole


def test_the_wait_doubles_up_to_the_limit() -> None:
    declared = SupervisorSettings(backoff=1, backoff_limit=5, failures=9, window=100)
    backoff = Backoff(declared, lambda: 1.0)
    assert [backoff.fail(float(at)) for at in range(5)] == [1, 2, 4, 5, 5]


def test_forgetting_starts_anew() -> None:
    backoff = Backoff(SupervisorSettings(failures=2), lambda: 1.0)
    assert backoff.fail(0.0) == 0.5
    assert backoff.fail(0.0) is None
    backoff.forget()
    assert backoff.fail(0.0) == 0.5
