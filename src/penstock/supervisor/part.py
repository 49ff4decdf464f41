"""What a part of Penstock is to the supervisor: a command, its order, how to tell it is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from penstock.config import Config
from penstock.errors import UsageError
from penstock.supervisor.probes import Probe


def _choose_nothing(config: Config) -> Mapping[str, str]:
    del config
    return {}


@dataclass(frozen=True, slots=True)
class Part:
    """A program that `penstock up` runs.

    `command` may raise `UnavailableError`; that counts as a failed start. `choose` returns
    environment variables with what the supervisor decides once for all parts, such as the
    port of a broker that was set to 0; it runs before anything is started.
    """

    name: str
    command: Callable[[Config], Sequence[str]]
    after: tuple[str, ...] = ()
    """The parts that must be running first; those that are not configured do not count."""
    ready: Callable[[Config], Probe | None] | None = None
    """How to tell that it is ready; without, it is as soon as it is started."""
    address: Callable[[Config], str] | None = None
    """Where it can be reached, for the status."""
    needs: tuple[str, ...] = ()
    """The components (see `penstock.components`) it cannot do without."""
    choose: Callable[[Config], Mapping[str, str]] = field(default=_choose_nothing)


def in_order(parts: Iterable[Part]) -> list[Part]:
    """Sort parts so that each comes after those it needs; ties keep the given order."""
    named = {part.name: part for part in parts}
    sorter = TopologicalSorter(
        {name: [before for before in part.after if before in named] for name, part in named.items()}
    )
    try:
        return [named[name] for name in sorter.static_order()]
    except CycleError as error:
        circle = " → ".join(error.args[1])
        raise UsageError(
            f"these parts wait for each other: {circle}", fix="remove one `after` of them"
        ) from None
