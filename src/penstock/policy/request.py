"""What the authorizer is asked: may somebody read or write a message, for a purpose, now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.errors import UsageError
from penstock.model.purposes import PurposeSet, check_purpose
from penstock.model.topics import check_topic
from penstock.policy.access.emergencies import NO_SITUATIONS, Situations
from penstock.policy.access.objects import Message
from penstock.policy.access.principals import ANONYMOUS, Action
from penstock.policy.purposes.subscriptions import Subscription


class AccessRequest(NamedTuple):
    """Whether someone may read or write a message, for a purpose, now."""

    action: Action
    topic: str
    user: str | None = None
    client: str | None = None
    purpose: str | None = None
    """The access purpose; writing has none."""
    message_purposes: PurposeSet | None = None
    """The purposes that the message carries for itself."""
    subscription: Subscription | None = None
    """The subscription that the message would pass through, where one is held."""
    message: Message | None = None
    """What is read or written. None says that nobody knows who published it."""
    environment: Mapping[str, Any] = {}
    """What conditions know as `e`, the time included; the purpose is added here."""
    situations: Situations = NO_SITUATIONS
    attributes: Mapping[str, Any] | None = None
    """Attributes of a hypothetical principal: they go before those that are known."""
    advertised: bool = True
    """Whether what is written was advertised, or needs not be; nobody who only asks knows it."""

    @property
    def e(self) -> Mapping[str, Any]:
        """Return what conditions see as `e`."""
        if self.action == "read":
            return {**self.environment, "purpose": self.purpose}
        return self.environment


def make_request(
    topic: str,
    *,
    action: Action = "read",
    purpose: str | None = None,
    user: str | None = None,
    client: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    payload: Mapping[str, Any] | None = None,
    publisher: str | None = None,
    data_subject: str | None = None,
    message_purposes: PurposeSet | None = None,
    situations: Situations = NO_SITUATIONS,
) -> AccessRequest:
    """Make the request of a question by hand: of a message as it is described, checked.

    `about` are attributes of a hypothetical object, `publisher` is who published what is read,
    `data_subject` whom it is about where the topic does not tell.
    """
    check_topic(topic)
    user, publisher = (None if it == ANONYMOUS else it for it in (user, publisher))
    if purpose is not None:
        check_purpose(purpose)
    writes = action == "write"
    if writes and purpose is not None:
        raise UsageError(
            "a purpose belongs to reading; writing has none", fix="leave out the purpose"
        )
    return AccessRequest(
        action,
        topic,
        user,
        client,
        purpose,
        message_purposes=message_purposes,
        message=Message(
            topic,
            payload or {},
            user=user if writes else publisher,
            client=client if writes else None,
            about=about,
            data_subject=data_subject,
        ),
        environment=environment or {},
        situations=situations,
        attributes=attributes or {},
    )
