"""An aiomqtt client that knows purposes: the verbs of `PurposeClient`, to be awaited.

    async with aiomqtt.Client("localhost") as wrapped:
        client = AsyncPurposeClient(wrapped)
        await client.reserve("home/#", aip=["operational"])
        await client.subscribe_with_purpose("home/sensors/#", "operational/billing")
        async for message in client.messages: ...

Rules that hold here:
- A verb returns when the gateway has acknowledged, and raises the refusal if it is one.
- Whatever is not named here is the wrapped client's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from aiomqtt import Client

from penstock.client.acknowledgements import ANSWER_SECONDS, Receipt
from penstock.client.commands import NOTATION, NoAnswerError, Notation, Purposes
from penstock.client.paho_client import PurposeClient

T = TypeVar("T")


class AsyncPurposeClient:
    """Wraps an aiomqtt client and adds purposes to it."""

    def __init__(
        self,
        wrapped: Client,
        *,
        notation: Notation = NOTATION,
        timeout: float = ANSWER_SECONDS,
    ) -> None:
        """Wrap a client; a verb waits `timeout` seconds for its answer."""
        self.wrapped = wrapped
        self.timeout = timeout
        # aiomqtt drops the reasons of refused messages, so we listen to the Paho client
        # inside it; of our own packets aiomqtt must not hear, as it would not know them.
        inside = wrapped._client  # noqa: SLF001
        self._inside = PurposeClient(inside, notation=notation, tell_wrapped=False)
        # Here nobody can miss a refusal: it is raised where the verb is awaited.
        self._inside.on_refused = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    async def reserve(self, filter_: str, aip: Iterable[str] = (), pip: Iterable[str] = ()) -> None:
        """Reserve the topics of a filter for purposes; without any, for nobody."""
        await self._settled(self._inside.reserve(filter_, aip, pip))

    async def release(self, filter_: str) -> None:
        """Remove the reservation of a filter."""
        await self._settled(self._inside.release(filter_))

    async def advertise(self, filter_: str, seconds: int | None = None) -> None:
        """Say that this client will publish below a filter: so long, or until it disconnects."""
        await self._settled(self._inside.advertise(filter_, seconds))

    async def withdraw(self, filter_: str) -> None:
        """End an advertisement."""
        await self._settled(self._inside.withdraw(filter_))

    async def define(self, stream: str, event_type: Mapping[str, Any]) -> None:
        """Define the type of the messages of some topics (`from`, `fields`), or extend it."""
        await self._settled(self._inside.define(stream, event_type))

    async def subscribe_with_purpose(
        self, filter_: str, ap: str, qos: int = 0, *, content: str | None = None
    ) -> None:
        """Subscribe for one access purpose; `content` as in `subscribe_to_events`."""
        await self._settled(self._inside.subscribe_with_purpose(filter_, ap, qos, content=content))

    async def subscribe_to_events(self, filter_: str, content: str, qos: int = 0) -> None:
        """Subscribe without a purpose, to the events that `content` holds for."""
        await self._settled(self._inside.subscribe_to_events(filter_, content, qos))

    async def unsubscribe_with_purpose(self, filter_: str, ap: str) -> None:
        """End a subscription that was made for an access purpose."""
        await self._settled(self._inside.unsubscribe_with_purpose(filter_, ap))

    async def presubscribe(self, client_id: str, filter_: str, ap: str | None) -> None:
        """Set the purpose of a subscription that a client will make plainly; None removes it."""
        await self._settled(self._inside.presubscribe(client_id, filter_, ap))

    async def send(
        self,
        topic: str,
        payload: bytes | str | None = None,
        qos: int = 0,
        retain: bool = False,  # noqa: FBT001, FBT002 - as in aiomqtt's publish
        *,
        purposes: Iterable[str] | None = None,
        prohibited: Iterable[str] | None = None,
    ) -> None:
        """Publish; `purposes` and `prohibited` narrow the topic's for this one message."""
        await self._settled(
            self._inside.send(topic, payload, qos, retain, purposes=purposes, prohibited=prohibited)
        )

    async def combined_reservations(self, topic: str) -> Purposes | None:
        """Ask for the effective purposes of a topic; None if it has none."""
        return await self._settled(self._inside.combined_reservations(topic))

    async def affected_reservations(self, filter_: str) -> dict[str, Purposes]:
        """Ask for the reservations that apply to topics of a filter."""
        return await self._settled(self._inside.affected_reservations(filter_))

    async def reservation_tree(self) -> str:
        """Ask for a drawing of all reservations."""
        return await self._settled(self._inside.reservation_tree())

    async def set(self, setting: str, value: bool) -> None:  # noqa: FBT001 - as a switch reads
        """Switch a setting such as `filter_hybrid`."""
        await self._settled(self._inside.set(setting, value))

    async def clear(self) -> None:
        """Remove every reservation and presubscription; end all subscriptions for purposes."""
        await self._settled(self._inside.clear())

    async def reset(self) -> None:
        """Clear, with the settings in force as they are set; none changes."""
        await self._settled(self._inside.reset())

    async def persist(self) -> None:
        """Keep the present state: reservations, presubscriptions, purposes of subscriptions."""
        await self._settled(self._inside.persist())

    async def reload(self) -> None:
        """Return to exactly the state that was kept."""
        await self._settled(self._inside.reload())

    async def _settled(self, receipt: Receipt[T]) -> T:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(receipt.future), self.timeout)
        except TimeoutError:
            raise NoAnswerError(
                f"no answer to {receipt.action} within {self.timeout:g} s",
                fix="check that the gateway is up",
            ) from None
