from __future__ import annotations

import asyncio

import pytest

from penstock.gateway.connection.broker_connection import PendingRequests
from penstock.mqtt import (
    ProtocolError,
    ReceiveMaximumError,
    RequestedSubscription,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)

ASKED = Subscribe(1, (RequestedSubscription("a"),))


def test_identifiers_are_those_that_nobody_uses() -> None:
    async def trial() -> None:
        sent: list[list[bytes]] = []
        requests = PendingRequests({65_535, 65_533}, sent.append)
        first = asyncio.ensure_future(requests.subscribe(ASKED))
        second = asyncio.ensure_future(requests.unsubscribe(Unsubscribe(1, ("a",))))
        await asyncio.sleep(0)
        assert sorted(requests) == [65_532, 65_534]
        assert len(sent) == 2
        requests.answer(Unsuback(65_532, (0,)))
        requests.answer(Suback(65_534, (1,)))
        assert (await first).reasons == (1,)
        assert (await second).reasons == (0,)
        assert not requests

    asyncio.run(trial())


def test_an_answer_that_nobody_asked_for_is_refused() -> None:
    with pytest.raises(ProtocolError):
        PendingRequests(set(), lambda _: None).answer(Suback(1, (0,)))


def test_where_all_identifiers_are_used_nothing_can_be_asked() -> None:
    requests = PendingRequests(set(range(1, 65_536)), lambda _: None)
    with pytest.raises(ReceiveMaximumError):
        asyncio.run(requests.subscribe(ASKED))


def test_who_waits_is_told_that_no_answer_will_come() -> None:
    async def trial() -> None:
        requests = PendingRequests(set(), lambda _: None)
        asked = asyncio.ensure_future(requests.subscribe(ASKED))
        await asyncio.sleep(0)
        requests.give_up()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(trial())
