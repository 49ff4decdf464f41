from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from penstock.config.installation import SupervisorSettings
from penstock.supervisor import parts
from penstock.supervisor.parts import TRANSITIONS, Backoff, PartEvent, PartState

ALIVE = frozenset({PartState.STARTING, PartState.RUNNING, PartState.STOPPING})


def reachable(start: PartState, without: frozenset[PartState] = frozenset()) -> set[PartState]:
    found, queue = {start}, deque([start])
    while queue:
        state = queue.popleft()
        for (before, _), after in TRANSITIONS.items():
            if before is state and after not in found | without:
                found.add(after)
                queue.append(after)
    return found


def test_every_state_is_reached() -> None:
    assert reachable(PartState.WAITING) == set(PartState)


def test_stopping_is_possible_everywhere_and_final() -> None:
    for state in set(PartState) - {PartState.STOPPING, PartState.STOPPED}:
        assert TRANSITIONS[state, PartEvent.STOP] is (
            PartState.STOPPING if state in ALIVE else PartState.STOPPED
        )
    assert reachable(PartState.STOPPED) == {PartState.STOPPED}


def test_a_process_comes_only_with_start_and_goes_only_with_ended() -> None:
    for (before, event), after in TRANSITIONS.items():
        if before not in ALIVE and after in ALIVE:
            assert event is PartEvent.START
        if before in ALIVE and after not in ALIVE:
            assert event is PartEvent.ENDED
        assert (event is PartEvent.ENDED) == (before in ALIVE and after not in ALIVE)


def test_running_comes_only_from_ready() -> None:
    assert PartState.RUNNING not in reachable(PartState.WAITING, frozenset({PartState.STARTING}))
    assert [key for key, after in TRANSITIONS.items() if after is PartState.RUNNING] == [
        (PartState.STARTING, PartEvent.READY)
    ]


def test_the_picture_shows_every_state_and_event() -> None:
    picture = parts.__doc__ or ""
    assert all(state in picture for state in PartState)
    assert all(event.name in picture for event in PartEvent)


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
