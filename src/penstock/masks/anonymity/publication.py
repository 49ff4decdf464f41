"""What leaves the stream, and which published generalizations may be used again (Ω in CASTLE).

A tuple for which no group can be formed is published under a box that contains it: at least
k persons have been published under that box already, so the tuple stands among them.

Rules that hold here:
- The box is drawn at random among all that contain the tuple. To take the tightest would
  tell that the tuple lies in none of the tighter ones.
- Only generalizations that lose less than the mean of the last mu are kept, at most beta of
  them; the newest push out the oldest.
- The root, under which everything is alike, is a box as any other: nobody is published under it
  before k persons are. Where outliers may go there, the group that loses most, of the first two
  or more that are known, is published under the root and opens it. Alone there, an outlier
  would be found by whoever knows that he fits nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.masks.anonymity.domains import Floats, Integers
from penstock.masks.anonymity.parameters import StreamParameters
from penstock.masks.anonymity.rules import Booleans

NONE: Final = -1
# Tuples are compared with all generalizations at once, so many at a time, to bound memory.
SLICE: Final = 4096


class Boxes(NamedTuple):
    """Generalizations: lows and highs are (quasi-identifiers, boxes); losses one per box."""

    lows: Floats
    highs: Floats
    losses: Floats

    @classmethod
    def none(cls, axes: int) -> Boxes:
        """Return no boxes."""
        return cls(np.empty((axes, 0)), np.empty((axes, 0)), np.empty(0))

    def __len__(self) -> int:
        return int(self.losses.size)

    def take(self, chosen: Integers | npt.NDArray[np.bool_] | slice) -> Boxes:
        """Return some of the boxes."""
        return Boxes(self.lows[:, chosen], self.highs[:, chosen], self.losses[chosen])

    def join(self, other: Boxes) -> Boxes:
        """Return these boxes and then the others."""
        return Boxes(
            np.concatenate((self.lows, other.lows), axis=1),
            np.concatenate((self.highs, other.highs), axis=1),
            np.concatenate((self.losses, other.losses)),
        )

    def draw(self, codes: Floats, generator: np.random.Generator) -> Integers:
        """Draw for each tuple one of the boxes that contain it; NONE where none does."""
        drawn = np.full(codes.shape[1], NONE, dtype=np.int64)
        if not len(self):
            return drawn
        for start in range(0, codes.shape[1], SLICE):
            part = codes[:, start : start + SLICE]
            inside = np.ones((len(self), part.shape[1]), dtype=np.bool_)
            for line, low, high in zip(part, self.lows, self.highs, strict=True):
                inside &= (low[:, None] <= line) & (line <= high[:, None])
            chances = np.where(inside, generator.random(inside.shape), -1.0)
            best = chances.argmax(axis=0)
            drawn[start : start + SLICE] = np.where(inside.any(axis=0), best, NONE)
        return drawn


class Published:
    """What is remembered of the groups published so far: the last losses, and what is reusable."""

    def __init__(self, parameters: StreamParameters) -> None:
        axes = len(parameters.space)
        self._mu, self._most = parameters.mu, parameters.beta
        self.recent: Floats = np.empty(0)
        self.reusable = Boxes.none(axes)
        self.root = Boxes(*parameters.space.root, np.ones(1))
        self._wants_root = parameters.outliers == "root"
        self.root_is_open = False

    @property
    def typical_loss(self) -> float:
        """The mean loss of the last mu groups (τ in CASTLE); 1 before the first."""
        return float(self.recent.mean()) if self.recent.size else 1.0

    @property
    def open_boxes(self) -> Boxes:
        """The boxes that a tuple without a group may join, if it lies in them."""
        return self.reusable.join(self.root) if self.root_is_open else self.reusable

    def add(self, boxes: Boxes) -> Boxes:
        """Remember groups that are published; return the boxes they are published under."""
        opens = self._wants_root and not self.root_is_open and len(boxes) > 0
        if opens and self.recent.size + len(boxes) > 1:
            self.root_is_open = True
            worst = int(boxes.losses.argmax())
            self._remember(boxes.take(np.arange(len(boxes)) != worst))
            lows, highs, losses = (part.copy() for part in boxes)
            lows[:, worst : worst + 1], highs[:, worst : worst + 1] = self.root[:2]
            losses[worst] = 1.0
            return Boxes(lows, highs, losses)
        self._remember(boxes)
        return boxes

    def _remember(self, boxes: Boxes) -> None:
        self.recent = np.concatenate((self.recent, boxes.losses))[-self._mu :]
        good = boxes.take(boxes.losses < self.typical_loss)
        self.reusable = self.reusable.join(good).take(slice(-self._most, None))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all that is remembered."""
        state = {"recent": self.recent, "root": np.array(self.root_is_open)}
        return {**state, **self.reusable._asdict()}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Remember what `arrays` gave."""
        self.recent = arrays["recent"]
        self.root_is_open = bool(arrays.get("root", False))
        self.reusable = Boxes(*(arrays[name] for name in Boxes._fields))


class Release(NamedTuple):
    """Tuples that leave, in an order of chance.

    `places` names each tuple's box, NONE where it is suppressed. `reused` marks those that
    are published under a box of an earlier group.
    """

    positions: Integers
    places: Integers
    reused: Booleans
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
    def suppressed(self) -> Booleans:
        """Mark the tuples that are not published."""
        return np.asarray(self.places == NONE)

    def total_loss(self) -> float:
        """Sum the losses of all tuples; a suppressed one has lost everything."""
        published = self.places[self.places != NONE]
        return float(self.boxes.losses[published].sum() + (self.places.size - published.size))
