"""Publishing: what actions make of events.

Rules that hold here:
- An action turns each event of its type into a message: of the event that brought the
  evolution about, and of those that its request brought about.
- Events that make the same message make it once: who met somebody on three days is told
  once. What of an event a message is made of tells so before the message is made.
- What stands in a topic's braces becomes a part of one level: a value that would add
  levels or wildcards is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from penstock.cep.program import CompiledAction
from penstock.cep.rows import Values, shaper
from penstock.cep.step_result import DetectedEvent, Publication, Transition
from penstock.errors import PenstockError
from penstock.lang.scalars import MICROSECOND
from penstock.model.topics import check_topic

PLACE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_FORBIDDEN: Final = frozenset("/+#")


class ActionPublisher:
    """Carries out actions, up to handing their messages over."""

    def __init__(self, actions: Mapping[str, CompiledAction]) -> None:
        self._actions = actions
        self._shapes = {name: shaper(action.payload) for name, action in actions.items()}
        self._sources = {name: _source(action) for name, action in actions.items()}

    def publish(
        self,
        names: tuple[str, ...],
        events: list[DetectedEvent],
        transition: Transition,
        depth: int,
    ) -> tuple[list[Publication], int]:
        """Return the messages of some actions, and how many had no proper topic."""
        made = []
        refused = 0
        for name in names:
            action, source = self._actions[name], self._sources[name]
            seen: set[Hashable] = set()
            said: set[tuple[str, str]] = set()
            for event, row in events:
                if event != action.event or not row.alive:
                    continue
                made_of = source(row.values)
                if made_of in seen:
                    continue
                seen.add(made_of)
                topic = _topic(action.topic, row.values)
                if topic is None:
                    refused += 1
                    continue
                payload = {
                    field: _plain(value) for field, value in self._shapes[name](row.values).items()
                }
                message = topic, repr(payload)
                if message in said:
                    continue
                said.add(message)
                made.append(
                    Publication(
                        topic, payload, name, transition.scenario, transition.subject, depth
                    )
                )
        return made, refused


def _source(action: CompiledAction) -> Callable[[Values], Hashable]:
    """Return what reads all that an action's message is made of."""
    names = set(PLACE.findall(action.topic))
    for assignment in action.payload:
        for path in assignment.value.references:
            rest = path.partition(".")[2]
            if not rest:
                return repr  # all of the event
            names.add(rest.partition(".")[0])
    if len(names) == 1:
        (only,) = names

        def read(values: Values) -> Hashable:
            value = values.get(only)
            return value if type(value) is str else (repr(value),)

        return read
    ordered = sorted(names)
    return lambda values: repr([values.get(name) for name in ordered])


def _topic(template: str, values: Values) -> str | None:
    """Fill in a topic; None where the result is none."""
    parts = [str(values.get(name, "")) for name in PLACE.findall(template)]
    if not all(parts) or any(_FORBIDDEN & set(part) for part in parts):
        return None
    filled = PLACE.sub(lambda match: str(values.get(match[1])), template)
    try:
        return check_topic(filled)
    except PenstockError:
        return None


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value // MICROSECOND // 1000
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
