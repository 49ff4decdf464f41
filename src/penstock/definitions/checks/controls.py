"""Checks of privacy controls that look at other definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.definitions.checks.roles import check_subjects
from penstock.errors import Problem, quote
from penstock.model.definition import Definition
from penstock.model.document import Key
from penstock.model.kinds import Control, ControlSubscriber


def check_control_subscribers(
    subscribers: Sequence[ControlSubscriber], definitions: Mapping[Key, Definition]
) -> Iterator[tuple[Key, Problem]]:
    """Yield categories that the control does not have, and times that are longer than allowed."""
    yield from check_subjects(subscribers, definitions)
    for subscriber in subscribers:
        control = definitions.get(Key(Control.kind, subscriber.control))
        if not isinstance(control, Control):
            continue  # a reference that leads nowhere is reported as such
        for number, category in enumerate(subscriber.categories):
            if category not in control.categories:
                known = ", ".join(control.categories) or "none"
                message = f"the control {quote(control.name)} has no category {quote(category)}"
                fix = f"its categories are {known}"
                yield subscriber.key, Problem(f"categories[{number}]", message, fix)
        longest = control.time_to_honor
        if subscriber.time_to_honor is not None and subscriber.time_to_honor > longest:
            message = f"{subscriber.time_to_honor} ms is longer than the control allows"
            yield subscriber.key, Problem("time_to_honor", message, f"at most {longest} ms")
