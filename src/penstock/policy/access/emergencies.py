"""What emergencies mean for access: situations, whose they are, and what applies in them.

Rules that hold here:
- A scenario has one current situation for each subject, or none.
- An emergency policy applies where the scenario's subject that the message is about is in
  one of its situations; with `any_object`, where some subject is.
- What cannot be told grants nothing. Where ordinary policies would be set aside if it held,
  they are set aside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import PenstockError
from penstock.lang import Expression
from penstock.policy.decision import Applied


class SituationsUnknownError(PenstockError):
    """The situations are not known now, as where detection has stalled."""


class Situations(Protocol):
    """What is asked about emergencies while deciding; both questions are cheap."""

    def current(self, scenario: str, subject: str) -> str | None:
        """Return the situation of a scenario's subject, None where it is inactive.

        Raise `SituationsUnknownError` where that is not known.
        """
        ...

    def occupied(self, scenario: str) -> AbstractSet[str]:
        """Return the situations that some subject of a scenario is in."""
        ...


class SituationBoard:
    """The situations of all scenarios, moved by hand: of tests, questions, or a feed.

    `changes` counts the moves. An invalidated board answers nothing until it is filled or
    revalidated.
    """

    def __init__(self, held: Iterable[tuple[str, str, str]] = ()) -> None:
        self.changes = 0
        self.fill(held)

    def fill(self, held: Iterable[tuple[str, str, str]]) -> None:
        """Take over all situations: scenario, subject, situation. Nothing else holds."""
        self._current: dict[tuple[str, str], str] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._invalid: str | None = None
        self.changes += 1
        for scenario, subject, situation in held:
            self.move(scenario, subject, situation)

    def invalidate(self, reason: str) -> None:
        """Take note that the situations are not known any more."""
        self._invalid = reason
        self.changes += 1

    def revalidate(self) -> None:
        """Take note that what was known, and moved since, holds after all."""
        self._invalid = None
        self.changes += 1

    def current(self, scenario: str, subject: str) -> str | None:
        """Return the situation of a scenario's subject, None where it is inactive."""
        if self._invalid is not None:
            raise SituationsUnknownError(self._invalid)
        return self._current.get((scenario, subject))

    def occupied(self, scenario: str) -> AbstractSet[str]:
        """Return the situations that some subject of a scenario is in."""
        if self._invalid is not None:
            raise SituationsUnknownError(self._invalid)
        counts = self._counts.get(scenario)
        return counts.keys() if counts else frozenset()

    def move(self, scenario: str, subject: str, situation: str | None) -> None:
        """Let a scenario's subject enter a situation, or leave all with None."""
        before = self._current.pop((scenario, subject), None)
        counts = self._counts.setdefault(scenario, Counter())
        if before is not None:
            counts[before] -= 1
            if not counts[before]:
                del counts[before]
        if situation is not None:
            self._current[scenario, subject] = situation
            counts[situation] += 1
        self.changes += 1


NO_SITUATIONS = SituationBoard()
"""No scenario is active."""


class RecordedSituations:
    """Passes questions on to who knows the situations, and remembers the answers.

    So an explanation can name the situations that a decision looked at.
    """

    def __init__(self, situations: Situations) -> None:
        self._situations = situations
        self.seen: dict[tuple[str, str | None], tuple[str, ...]] = {}
        """The situations found, by scenario and subject; None: of anybody."""

    def current(self, scenario: str, subject: str) -> str | None:
        """Return the situation of a scenario's subject, None where it is inactive."""
        found = self._situations.current(scenario, subject)
        self.seen[scenario, subject] = () if found is None else (found,)
        return found

    def occupied(self, scenario: str) -> AbstractSet[str]:
        """Return the situations that some subject of a scenario is in."""
        found = self._situations.occupied(scenario)
        self.seen[scenario, None] = tuple(sorted(found))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Emergency:
    """When an emergency policy applies; a plan that sets ordinary policies aside is one too."""

    scenarios: tuple[str, ...]
    situations: frozenset[str] | None  # None: each that is not inactive
    about: Expression | None  # None: any object
    exclusive: bool = False

    def __str__(self) -> str:
        situations = (
            "any situation" if self.situations is None else ", ".join(sorted(self.situations))
        )
        whose = f"of {self.about.text}" if self.about is not None else "of anybody"
        text = f"{situations} {whose} in {', '.join(self.scenarios) or 'no scenario'}"
        return f"{text}, alone" if self.exclusive else text

    def find(self, situations: Situations, subject: str | None) -> Applied | None:
        """Return the situation in which it applies to a subject now."""
        for scenario in self.scenarios:
            if self.about is None:
                occupied = situations.occupied(scenario)
                wanted = occupied if self.situations is None else self.situations & occupied
                if wanted:
                    return Applied(scenario, None, min(wanted))
            elif subject is not None:
                current = situations.current(scenario, subject)
                if current is not None and (self.situations is None or current in self.situations):
                    return Applied(scenario, subject, current)
        return None
