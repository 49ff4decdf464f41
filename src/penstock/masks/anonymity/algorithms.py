"""The algorithms that make a stream k-anonymous, by name; all keep the same promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from penstock.masks.anonymity.castle import CastleAnonymizer
from penstock.masks.anonymity.domains import Floats, Integers
from penstock.masks.anonymity.parameters import StreamParameters
from penstock.masks.anonymity.publication import Release
from penstock.masks.anonymity.stream import StreamAnonymizer


class TupleAnonymizer(Protocol):
    """Holds tuples, and releases them k-anonymous."""

    def __init__(self, parameters: StreamParameters) -> None:
        """Begin a stream."""

    @property
    def next_position(self) -> int:
        """The position that the next tuple gets."""

    @property
    def held_positions(self) -> Integers:
        """The positions of the tuples that have not left yet, oldest first."""

    @property
    def due(self) -> int | None:
        """The time from which on some of what is held has waited too long, if ever."""

    def feed(
        self,
        codes: Floats,
        persons: Integers,
        sensitive: Integers | None = None,
        *,
        now: int = 0,
    ) -> Release:
        """Take tuples in, and return those that leave."""

    def flush(self) -> Release:
        """End the stream: everything still held leaves."""

    def forget(self, gone: npt.NDArray[np.bool_]) -> None:
        """Hold some of the tuples no longer, as if they had never come."""

    def to_bytes(self) -> bytes:
        """Write the whole state."""

    @classmethod
    def from_bytes(cls, parameters: StreamParameters, state: bytes) -> Self:
        """Read a state that was written with the same parameters."""


ALGORITHMS: Final[Mapping[str, type[TupleAnonymizer]]] = {
    "partition": StreamAnonymizer,
    "castle": CastleAnonymizer,
}


def open_stream(parameters: StreamParameters, state: bytes | None = None) -> TupleAnonymizer:
    """Return the anonymizer that the parameters ask for, as it was or from the beginning."""
    kind = ALGORITHMS[parameters.algorithm]
    return kind(parameters) if state is None else kind.from_bytes(parameters, state)
