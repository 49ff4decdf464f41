"""Split a cluster into groups of k persons, each of neighbours (the split of CASTLE).

A group begins with a tuple drawn at random, and takes one tuple each of the k - 1 persons whose
tuples are nearest to it. What is left over joins the group whose first tuple is nearest.

Rules that hold here:
- Every tuple is in one group, and every group has at least k persons, if the whole has.
- Two tuples are as far from each other as is lost when they are generalized together.
"""

from __future__ import annotations

import numpy as np

from penstock.masks.anonymity.domains import Floats, Integers, Space
from penstock.masks.anonymity.partitions import Rows


def split_by_neighbours(
    space: Space, codes: Floats, persons: Integers, k: int, generator: np.random.Generator
) -> list[Rows]:
    """Return the groups; codes are (quasi-identifiers, tuples)."""
    # Each person's tuples in an order of chance: the last is one drawn at random.
    buckets: dict[int, list[int]] = {}
    for row in generator.permutation(persons.size).tolist():
        buckets.setdefault(int(persons[row]), []).append(row)
    firsts: list[int] = []
    groups: list[list[int]] = []
    while len(buckets) >= k:
        others = list(buckets)
        first = others.pop(int(generator.integers(len(others))))
        start = buckets[first][-1]
        candidates = [buckets[person][-1] for person in others]
        nearest = np.argsort(_distances(space, codes, start, candidates), kind="stable")
        chosen = [first, *(others[place] for place in nearest[: k - 1].tolist())]
        firsts.append(start)
        groups.append([_take_last(buckets, person) for person in chosen])
    for bucket in buckets.values():
        home = int(_distances(space, codes, bucket[-1], firsts).argmin())
        groups[home] += bucket
    return [np.array(group, dtype=np.intp) for group in groups]


def _distances(space: Space, codes: Floats, row: int, others: list[int]) -> Floats:
    one, rest = codes[:, [row]], codes[:, others]
    return space.losses(np.minimum(one, rest), np.maximum(one, rest))


def _take_last(buckets: dict[int, list[int]], person: int) -> int:
    """Take one tuple of a person, and the bucket away if it was the last."""
    bucket = buckets[person]
    taken = bucket.pop()
    if not bucket:
        del buckets[person]
    return taken
