from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.connection.context import Cause, DeferredAcks


class Client:
    """The part of a client that answers are sent to."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.ended: list[Cause] = []

    def send(self, data: bytes) -> None:
        self.sent += data

    def end(self, cause: Cause) -> None:
        self.ended.append(cause)


class Journal:
    """Makes tickets durable when it is told to."""

    def __init__(self) -> None:
        self.added = 0
        self.durable = 0
        self._waiting: deque[tuple[int, Callable[[bool], None]]] = deque()

    def add(self) -> int:
        self.added += 1
        return self.added

    def wait(self, ticket: int, settled: Callable[[bool], None]) -> None:
        self._waiting.append((ticket, settled))

    def write(self, count: int) -> None:
        self.durable = min(self.added, self.durable + count)
        while self._waiting and self._waiting[0][0] <= self.durable:
            self._waiting.popleft()[1](True)  # noqa: FBT003


# A message waits for some of two keepers, its answer comes from the broker, keepers write.
steps = st.lists(
    st.tuples(st.just("publish"), st.sets(st.integers(0, 1)))
    | st.tuples(st.just("answer"), st.none())
    | st.tuples(st.just("write"), st.tuples(st.integers(0, 1), st.integers(1, 3))),
    max_size=60,
)


@given(steps)
def test_answers_keep_their_order_and_wait_for_all_they_acknowledge(
    taken: list[tuple[str, object]],
) -> None:
    client = Client()
    held = DeferredAcks(client)
    keepers = [Journal(), Journal()]
    tickets: list[list[tuple[Journal, int]]] = []
    answered = 0
    for step, what in taken:
        if step == "publish":
            chosen = [keepers[place] for place in sorted(cast("set[int]", what))]
            tickets.append([(keeper, keeper.add()) for keeper in chosen])
            for keeper, ticket in tickets[-1]:
                held.expect(keeper, len(tickets) - 1, ticket)
        elif step == "answer":
            if answered < len(tickets):
                held.hold(answered, bytes([answered]))
                answered += 1
        else:
            place, count = cast("tuple[int, int]", what)
            keepers[place].write(count)
        due = 0
        while due < answered and all(ticket <= it.durable for it, ticket in tickets[due]):
            due += 1
        assert client.sent == list(range(due))
    assert client.ended == []
