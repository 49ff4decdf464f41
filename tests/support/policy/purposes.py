"""What reaches a client, asked of a purpose engine as a broker would: by matching filters."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.model.purposes import PurposeSet
from penstock.model.topics import matches
from penstock.policy.purposes.engine import PurposeEngine


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
    return any(engine.permits(it, topic.encode(), message) for it in named)
