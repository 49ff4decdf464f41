"""Checks of privacy controls that look at other definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from penstock.errors import Problem, quote
from penstock.model.definition import Definition
from penstock.model.document import Key
from penstock.model.kinds import Control, ControlSubscriber
from penstock.model.kinds.controls import BUILT_IN, ERASURE

_OPERATIONS: Final[Mapping[str, str]] = {ERASURE: "delete"}


def check_control_subscribers(
    subscribers: Sequence[ControlSubscriber], definitions: Mapping[Key, Definition]
) -> Iterator[tuple[Key, Problem]]:
    """Yield categories that the control does not have, times and operations that do not fit."""
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
        wanted = _OPERATIONS.get(subscriber.uri) if subscriber.delivery == BUILT_IN else None
        if wanted is not None and control.operation != wanted:
            # A choice that toggles must not erase, whatever it is called.
            message = f"the control {quote(control.name)} is no {wanted} of a person's data"
            fix = f"name a control with stateful: false and operation: {wanted}"
            yield subscriber.key, Problem("control", message, fix)
        longest = control.time_to_honor
        if subscriber.time_to_honor is not None and subscriber.time_to_honor > longest:
            message = f"{subscriber.time_to_honor} ms is longer than the control allows"
            yield subscriber.key, Problem("time_to_honor", message, f"at most {longest} ms")
