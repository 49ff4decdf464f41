"""k-anonymity of a stream: its parameters, what leaves it, and its state as bytes.

CASTLE's four parameters are taken. What they mean here:
- k: persons in a group; delta: positions a tuple may wait;
- mu: the last so many groups tell what loss is typical (τ); beta: so many published
  generalizations are kept for reuse (Ω), and where clusters are grown, at most so many are open.
- max_wait: how long a tuple may wait, in the unit of the clock that is passed in.
- outliers: whether a tuple for which there is no group is suppressed, or may be published
  under the root, where everything is alike.

Rules that hold here:
- State that was cut short or changed is refused: each array carries a checksum.
- A tuple for which no group can be formed is published under a box that contains it: at least
  k persons have been published under that box already, so the tuple stands among them. The box
  is drawn at random among all that contain the tuple. To take the tightest would tell that the
  tuple lies in none of the tighter ones.
- Only generalizations that lose less than the mean of the last mu are kept, at most beta of
  them; the newest push out the oldest.
- The root is a box as any other: nobody is published under it before k persons are. Where
  outliers may go there, the group that loses most, of the first two or more that are known, is
  published under the root and opens it. Alone there, an outlier would be found by whoever knows
  that he fits nowhere else.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidError, Problem, UsageError, quote
from penstock.masks.anonymity.domains import Domain, Floats, Integers, Space
from penstock.masks.anonymity.rules import Booleans, Demands, GroupRule

MAX_DELTA: Final = 10_000_000
MAX_BETA: Final = 10_000
MAX_MU: Final = 1_000_000
MAX_QUASI_IDENTIFIERS: Final = 64
MAX_SENSITIVE_VALUES: Final = 1_000
MAX_WAIT: Final = 1 << 53

Algorithm = Literal["partition", "castle"]
Outliers = Literal["suppress", "root"]


class StreamParameters:
    """Quasi-identifiers, demands, delay, and what else steers a stream."""

    def __init__(
        self,
        quasi_identifiers: Sequence[Domain],
        *,
        k: int,
        delta: int,
        beta: int = 50,
        mu: int = 100,
        sensitive: Sequence[Domain] = (),
        rules: Sequence[GroupRule] = (),
        seed: int = 0,
        max_wait: int | None = None,
        outliers: Outliers = "suppress",
        algorithm: Algorithm = "partition",
    ) -> None:
        """Check everything; a rule's column is a place in `sensitive`."""
        problems = [
            Problem(name, f"{value!r} is out of bounds", f"give a whole number of {low} to {high}")
            for name, value, low, high in (
                ("k", k, 1, MAX_DELTA),
                ("delta", delta, max(k, 1), MAX_DELTA),
                ("beta", beta, 1, MAX_BETA),
                ("mu", mu, 1, MAX_MU),
                ("seed", seed, 0, (1 << 64) - 1),
                ("max_wait", 1 if max_wait is None else max_wait, 1, MAX_WAIT),
            )
            if not low <= value <= high
        ]
        problems += [
            Problem(
                f"rules[{place}]",
                "its domain is not that of its sensitive column",
                "let the rule's column name the place of its domain in sensitive",
            )
            for place, rule in enumerate(rules)
            if not (0 <= rule.column < len(sensitive) and sensitive[rule.column] is rule.domain)
        ]
        problems += [
            Problem(
                f"sensitive[{place}]",
                f"{quote(domain.name)} has {domain.size} values",
                f"give buckets or categories that make 1 to {MAX_SENSITIVE_VALUES}",
            )
            for place, domain in enumerate(sensitive)
            if not 1 <= domain.size <= MAX_SENSITIVE_VALUES
        ]
        if len(quasi_identifiers) > MAX_QUASI_IDENTIFIERS:
            fix = f"name at most {MAX_QUASI_IDENTIFIERS}"
            problems.append(
                Problem("quasi_identifiers", f"{len(quasi_identifiers)} are named", fix)
            )
        if algorithm == "castle" and rules:
            fix = "leave the rules out, or use the algorithm partition"
            problems.append(Problem("algorithm", "castle counts persons only", fix))
        if outliers == "root" and not all(rule.monotone for rule in rules):
            message = "under the root, one more tuple could break a rule"
            problems.append(Problem("outliers", message, "suppress them"))
        if problems:
            raise InvalidError("k-anonymity", problems)
        self.space = Space(quasi_identifiers)
        self.demands = Demands(k, tuple(rules))
        self.delta = delta
        self.beta = beta
        self.mu = mu
        self.sensitive = tuple(sensitive)
        self.seed = seed
        self.max_wait = max_wait
        self.outliers = outliers
        self.algorithm = algorithm

    @property
    def may_reuse(self) -> bool:
        """Whether a tuple may join a published group: only if no rule can break by it."""
        return all(rule.monotone for rule in self.demands.rules)

    def check(self, codes: Floats, sensitive: Integers, count: int) -> None:
        """Refuse arrays that do not fit the parameters."""
        spaces = (len(self.space), len(self.sensitive))
        if codes.shape != (spaces[0], count) or sensitive.shape != (spaces[1], count):
            raise UsageError(
                f"codes {codes.shape} and sensitive {sensitive.shape} do not fit {count} persons",
                fix=f"give ({spaces[0]}, {count}) codes and ({spaces[1]}, {count}) sensitive codes",
            )
        self.space.check(codes)
        for domain, line in zip(self.sensitive, sensitive, strict=True):
            if count and not (line.min() >= 0 and line.max() < domain.size):
                raise UsageError(
                    f"a code of the sensitive field {domain.name!r} is not from 0 to {domain.size}",
                    fix=f"send records on only if it is {domain.expected}",
                )

    @cached_property
    def signature(self) -> bytes:
        """A short hash of everything that a saved state depends on."""
        parts = [
            *(domain.signature for domain in self.space.domains),
            *(domain.signature for domain in self.sensitive),
            *(rule.signature for rule in self.demands.rules),
            (self.demands.k, self.delta, self.beta, self.mu, self.seed, len(self.space)),
        ]
        later = (self.max_wait, self.outliers, self.algorithm)
        if later != (None, "suppress", "partition"):
            parts.append(later)
        return sha256(repr(parts).encode()).digest()


def pack(parameters: StreamParameters, arrays: dict[str, npt.NDArray[Any]]) -> bytes:
    """Write arrays as bytes, together with what they depend on."""
    target = io.BytesIO()
    signature = np.frombuffer(parameters.signature, dtype=np.uint8)
    np.savez(target, allow_pickle=False, signature=signature, **arrays)
    return target.getvalue()


def unpack(parameters: StreamParameters, state: bytes) -> dict[str, npt.NDArray[Any]]:
    """Read what `pack` wrote with the same parameters."""
    try:
        with np.load(io.BytesIO(state), allow_pickle=False) as source:
            parts = dict(source)
        signature = parts.pop("signature").tobytes()
    except (BadZipFile, ValueError, OSError, EOFError, KeyError, AttributeError) as error:
        raise UsageError(
            f"the state of {len(state)} bytes cannot be read",
            fix="go back to an older checkpoint, or begin the view anew",
        ) from error
    if signature != parameters.signature:
        raise UsageError(
            "the state was written with other parameters",
            fix="flush the stream before its parameters change, or begin the view anew",
        )
    return parts


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
