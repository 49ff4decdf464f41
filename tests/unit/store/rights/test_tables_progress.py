"""The state machine of progress: complete, never backwards, a completion always counts."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.rights.tables import (
    LOST,
    ProgressEvent,
    ProgressStatus,
    RequestStatus,
    advance,
    sum_up,
)

RANK = {
    ProgressStatus.INIT: 0,
    ProgressStatus.SENT: 1,
    ProgressStatus.ACKNOWLEDGED: 2,
    ProgressStatus.SENDFAILED: 3,
    ProgressStatus.FAILED: 3,
    ProgressStatus.COMPLETED: 4,
}


@pytest.mark.parametrize(("status", "event"), list(product(ProgressStatus, ProgressEvent)))
def test_statuses_never_go_backwards_unless_a_person_begins_anew(
    status: ProgressStatus, event: ProgressEvent
) -> None:
    after = advance(status, event)
    if event is ProgressEvent.REDRIVEN:
        assert after is (ProgressStatus.INIT if status in LOST else status)
    else:
        assert RANK[after] >= RANK[status]
    if event is ProgressEvent.COMPLETED:
        assert after is ProgressStatus.COMPLETED
    if status is ProgressStatus.COMPLETED:
        assert after is ProgressStatus.COMPLETED


@given(st.lists(st.sampled_from(ProgressStatus), max_size=5))
def test_a_request_is_as_far_as_its_services(statuses: list[ProgressStatus]) -> None:
    found = sum_up(statuses)
    if all(it is ProgressStatus.COMPLETED for it in statuses):
        assert found is RequestStatus.COMPLETED
    elif all(it is ProgressStatus.INIT for it in statuses):
        assert found is RequestStatus.INIT
    elif any(it in LOST for it in statuses):
        assert found is RequestStatus.SOMEFAILED
    else:
        assert found is RequestStatus.INPROGRESS
