from collections import deque

from penstock.supervisor import machine
from penstock.supervisor.machine import ALIVE, TRANSITIONS, Event, State


def reachable(start: State, without: frozenset[State] = frozenset()) -> set[State]:
    found, queue = {start}, deque([start])
    while queue:
        state = queue.popleft()
        for (before, _), after in TRANSITIONS.items():
            if before is state and after not in found | without:
                found.add(after)
                queue.append(after)
    return found


def test_every_state_is_reached() -> None:
    assert reachable(State.WAITING) == set(State)


def test_stopping_is_possible_everywhere_and_final() -> None:
    for state in set(State) - {State.STOPPING, State.STOPPED}:
        assert TRANSITIONS[state, Event.STOP] is (
            State.STOPPING if state in ALIVE else State.STOPPED
        )
    assert reachable(State.STOPPED) == {State.STOPPED}


def test_a_process_comes_only_with_start_and_goes_only_with_ended() -> None:
    for (before, event), after in TRANSITIONS.items():
        if before not in ALIVE and after in ALIVE:
            assert event is Event.START
        if before in ALIVE and after not in ALIVE:
            assert event is Event.ENDED
        assert (event is Event.ENDED) == (before in ALIVE and after not in ALIVE)


def test_running_comes_only_from_ready() -> None:
    assert State.RUNNING not in reachable(State.WAITING, frozenset({State.STARTING}))
    assert [key for key, after in TRANSITIONS.items() if after is State.RUNNING] == [
        (State.STARTING, Event.READY)
    ]


def test_the_picture_shows_every_state_and_event() -> None:
    picture = machine.__doc__ or ""
    assert all(state in picture for state in State)
    assert all(event.name in picture for event in Event)
