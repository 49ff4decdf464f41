"""What reaches a client, asked of the authorizer as a broker would: by matching filters."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.model.purposes import PurposeSet
from penstock.model.topics import matches
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.requests import AccessRequest
from penstock.policy.access.rules import BrokerTopics
from penstock.policy.authorizer import Authorizer
from penstock.policy.purposes.engine import PurposeEngine
from penstock.policy.purposes.rights import DeclaredPurposes, PurposeClaims
from penstock.policy.purposes.subscriptions import Subscription


def passes(
    engine: PurposeEngine,
    subscription: Subscription,
    topic: str,
    message: PurposeSet | None = None,
) -> bool:
    """Tell whether a message passes through a subscription; `explain` must say the same."""
    authorizer = Authorizer(
        engine,
        DeclaredPurposes(),
        AccessEngine(),
        PurposeClaims(open_mode=True),
        BrokerTopics(open_mode=True),
        lambda _: False,
    )
    request = AccessRequest(
        "read",
        topic,
        purpose=subscription.ap,
        message_purposes=message,
        subscription=subscription,
    )
    allowed = authorizer.authorize(request).allowed
    assert authorizer.explain(request).allowed == allowed
    return allowed


def delivers(
    engine: PurposeEngine,
    client: str,
    topic: str,
    message: PurposeSet | None = None,
    filters: Iterable[str] | None = None,
) -> bool:
    """Tell whether a message passes through some subscription of a client.

    `filters` are the subscriptions that a broker names; without, all that match count.
    """
    held = engine.subscriptions.of(client)
    if filters is None:
        named = [it for it in held if matches(it.filter, topic)]
    else:
        wanted = set(filters)
        named = [it for it in held if it.text in wanted]
    return any(passes(engine, it, topic, message) for it in named)
