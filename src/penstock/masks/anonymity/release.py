"""What the stream gives back: tuples by their positions, each with its box or suppressed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.masks.anonymity.domains import Integers
from penstock.masks.anonymity.reuse import NONE, Boxes
from penstock.masks.anonymity.rules import Mask


class Release(NamedTuple):
    """Tuples that leave, in the order they came in.

    `places` names each tuple's box, NONE where it is suppressed. `reused` marks those that
    are published under a box of an earlier group.
    """

    positions: Integers
    places: Integers
    reused: Mask
    boxes: Boxes

    @classmethod
    def none(cls, axes: int) -> Release:
        """Return a release of nothing."""
        empty = np.empty(0, dtype=np.int64)
        return cls(empty, empty, np.empty(0, dtype=np.bool_), Boxes.none(axes))

    @classmethod
    def join(cls, axes: int, releases: Sequence[Release]) -> Release:
        """Return several releases as one."""
        if len(releases) == 1:
            return releases[0]
        joined = cls.none(axes)
        if not releases:
            return joined
        offsets = np.cumsum([0, *(len(release.boxes) for release in releases[:-1])])
        places = [
            np.where(release.places == NONE, NONE, release.places + offset)
            for release, offset in zip(releases, offsets, strict=True)
        ]
        return cls(
            np.concatenate([release.positions for release in releases]),
            np.concatenate(places),
            np.concatenate([release.reused for release in releases]),
            Boxes(
                np.concatenate([release.boxes.lows for release in releases], axis=1),
                np.concatenate([release.boxes.highs for release in releases], axis=1),
                np.concatenate([release.boxes.losses for release in releases]),
            ),
        )

    @property
    def suppressed(self) -> Mask:
        """Mark the tuples that are not published."""
        return np.asarray(self.places == NONE)

    def total_loss(self) -> float:
        """Sum the losses of all tuples; a suppressed one has lost everything."""
        published = self.places[self.places != NONE]
        return float(self.boxes.losses[published].sum() + (self.places.size - published.size))
