from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.gateway.publications import (
    PublishOutcome,
    PublishRequest,
    PublishResult,
    SubmissionId,
)
from penstock.gateway.replication import submissions as module
from penstock.gateway.replication.protocol import PublishResponse, Submit
from penstock.gateway.replication.submissions import Submissions

PATIENCE = 60.0


class Leader:
    """Decides as told, when this gateway leads; notes what is sent to another one."""

    epoch = 5

    def __init__(self) -> None:
        self.sent: list[Submit] = []
        self.decided: list[SubmissionId] = []
        self.durable = 0
        self.waiting: list[Callable[[bool], None]] = []
        self.result = PublishResult()

    def send(self, message: Submit) -> None:
        self.sent.append(message)

    def decide(self, request: PublishRequest, submission: SubmissionId) -> PublishResult:
        del request
        self.decided.append(submission)
        return self.result

    def wait(self, ticket: int, settled: Callable[[bool], None]) -> None:
        del ticket
        self.waiting.append(settled)


def ask(topic: str) -> PublishRequest:
    return PublishRequest(None, "client", topic, b"", {})


def accepted(number: int, *, event: bool) -> PublishResponse:
    return PublishResponse(number, PublishOutcome.ACCEPTED, "", event)


def now(replicated: Callable[[bool], None]) -> None:
    replicated(True)  # noqa: FBT003


def test_what_waits_goes_to_the_leader_in_order_and_again_to_the_next_one() -> None:
    async def work() -> None:
        leader = Leader()
        submissions = Submissions(leader)
        first, second = (submissions.submit(ask(it), PATIENCE) for it in ("a", "b"))
        assert leader.sent == []
        submissions.connect(leader.send)
        assert leader.sent == [Submit(1, 1, 5, ask("a")), Submit(2, 1, 5, ask("b"))]
        submissions.take_response(accepted(1, event=False))
        assert (await first).accepted
        submissions.take_response(accepted(2, event=True))
        result = await second
        durable: list[bool] = []
        result.when_durable(durable.append)
        # The leader is lost before the event is known to be durable.
        submissions.disconnect()
        following = Leader()
        submissions.connect(following.send)
        assert following.sent == [Submit(2, 2, 5, ask("b"))]
        submissions.take_response(accepted(2, event=True))
        assert durable == []
        submissions.take_durable([2])
        assert durable == [True]
        assert not submissions
        await submissions.finish()

    asyncio.run(work())


def test_an_event_that_the_next_leader_refuses_is_never_durable() -> None:
    async def work() -> None:
        leader = Leader()
        submissions = Submissions(leader)
        submissions.connect(leader.send)
        pending = submissions.submit(ask("a"), PATIENCE)
        submissions.take_response(accepted(1, event=True))
        durable: list[bool] = []
        (await pending).when_durable(durable.append)
        submissions.take_response(PublishResponse(1, PublishOutcome.DENIED, "a rule", event=False))
        assert durable == [False]
        assert not submissions

    asyncio.run(work())


def test_this_gateway_decides_on_what_waits_when_it_leads() -> None:
    async def work() -> None:
        leader = Leader()
        submissions = Submissions(leader)
        pending = submissions.submit(ask("a"), PATIENCE)
        leader.result = PublishResult(journal=leader, ticket=1)
        submissions.decide_locally(now)
        assert leader.decided == [SubmissionId(submissions.name, 1, 1)]
        durable: list[bool] = []
        (await pending).when_durable(durable.append)
        assert not submissions
        (settled,) = leader.waiting
        assert durable == []
        settled(True)  # noqa: FBT003
        assert durable == [True]

    asyncio.run(work())


def test_a_decision_that_is_not_replicated_is_left_to_the_next_leader() -> None:
    async def work() -> None:
        leader = Leader()
        submissions = Submissions(leader)
        pending = submissions.submit(ask("a"), PATIENCE)
        submissions.decide_locally(lambda replicated: replicated(False))  # noqa: FBT003
        assert not pending.done()
        assert submissions

    asyncio.run(work())


@pytest.mark.parametrize(
    ("sent", "outcome"), [(False, PublishOutcome.NO_LEADER), (True, PublishOutcome.NO_ANSWER)]
)
def test_nobody_waits_for_longer_than_patience(*, sent: bool, outcome: PublishOutcome) -> None:
    async def work() -> None:
        leader = Leader()
        submissions = Submissions(leader)
        if sent:
            submissions.connect(leader.send)
        kept = submissions.submit(ask("a"), PATIENCE)
        late = submissions.submit(ask("b"), -1.0)
        submissions.expire(patient=True)
        assert (await late).outcome is outcome
        assert not kept.done()
        submissions.fail_all()
        assert (await kept).outcome is outcome
        assert not submissions

    asyncio.run(work())


def test_what_has_passed_waits_for_the_leaders_store_while_there_is_patience() -> None:
    async def work() -> None:
        leader = Leader()
        submissions = Submissions(leader)
        submissions.connect(leader.send)
        pending = submissions.submit(ask("a"), -1.0)
        submissions.take_response(accepted(1, event=True))
        durable: list[bool] = []
        (await pending).when_durable(durable.append)
        submissions.expire(patient=True)
        assert durable == []
        submissions.expire(patient=False)
        assert durable == [False]

    asyncio.run(work())


def test_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        submissions = Submissions(Leader())
        first, second = (submissions.submit(ask(it), PATIENCE) for it in ("a", "b"))
        assert (await second).outcome is PublishOutcome.NO_LEADER
        assert not first.done()

    monkeypatch.setattr(module, "MAX_OPEN", 1)
    asyncio.run(work())
