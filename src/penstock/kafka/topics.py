"""Topics of streams and views: named by the definitions, made on purpose."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.definitions import DefinitionSet
from penstock.kafka.cluster import Cluster
from penstock.model.kinds import Stream, View


def wanted_topics(definitions: DefinitionSet, streams: Iterable[str] | None = None) -> list[str]:
    """Return the topics of streams and of their views; of all streams where none is named."""
    asked = set(definitions.of(Stream) if streams is None else streams)
    found = {item.topic for name, item in definitions.of(Stream).items() if name in asked}
    found |= {view.topic for view in definitions.of(View).values() if view.stream in asked}
    return sorted(found)


def make_topics(
    cluster: Cluster, definitions: DefinitionSet, streams: Iterable[str] | None = None
) -> list[str]:
    """Make the topics of streams and views that are not there yet, and return their names."""
    return cluster.make_topics(wanted_topics(definitions, streams))
