"""A moment of another gateway's clock never comes later here than there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.replication.follower import ClockBound

rates = st.floats(-0.0004, 0.0004)
epochs = st.floats(0, 1e6)
seconds = st.floats(0, 5)


@given(
    rates,
    rates,
    epochs,
    epochs,
    st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=12),
    st.floats(0, 10),
)
def test_it_does_not_look_too_far(
    fast_here: float,
    fast_there: float,
    began_here: float,
    began_there: float,
    pings: list[tuple[float, float, float]],
    ahead: float,
) -> None:
    def here(time: float) -> float:
        return began_here + time * (1 + fast_here)

    def there(time: float) -> float:
        return began_there + time * (1 + fast_there)

    bound, time = ClockBound(), 0.0
    shortest = float("inf")
    for pause, going, coming in pings:
        sent = time + pause
        time = sent + going
        bound.note_answer(here(sent), there(time))
        shortest = min(shortest, going)
        due = time + ahead
        bound.note_deadline(there(due))
        assert bound.until <= here(due) + 1e-6
        # Nor is it much too cautious: by the way there of the quickest ping, and some drift.
        assert bound.until >= here(due) - shortest - 0.002 * (time + ahead) - 1e-6
        time += coming
    bound.note_deadline(None)
    assert bound.until == float("inf")
