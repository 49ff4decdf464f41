"""The numbers of people who opted out, against a counter."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy import consent
from penstock.policy.consent import NOBODY, OptedOutNumbers, OptOutIndex

NUMBERS = st.integers(0, 40)


@given(
    changes=st.lists(st.lists(st.tuples(NUMBERS, st.booleans()), max_size=30), max_size=8),
    fold=st.sampled_from([0, 3, 1_024]),
)
def test_a_number_is_in_as_long_as_somebody_of_that_number_is_out(
    changes: list[list[tuple[int, bool]]], fold: int
) -> None:
    with patch.object(consent, "FOLD", fold):
        model: Counter[int] = Counter()
        held = OptedOutNumbers()
        for step in changes:
            counts: Counter[int] = Counter()
            for number, out in step:
                # Two people may share a number; none of them opts in who was not out.
                if out or model[number] + counts[number] > 0:
                    counts[number] += 1 if out else -1
            model.update(counts)
            earlier, was = held, [number in held for number in range(41)]
            held = held.change(counts)
            assert [number in earlier for number in range(41)] == was
            assert [number in held for number in range(41)] == [model[it] > 0 for it in range(41)]
            assert len(held) == sum(model.values())


def test_an_index_knows_who_refuses_related_purposes() -> None:
    changes = {"a": Counter([1]), "a/b": Counter([2]), "a/c": Counter([3]), "ab": Counter([4])}
    index = NOBODY.change(9, changes, int)

    def refusing(purpose: str | None, of: OptOutIndex = index) -> list[int]:
        held = of.refusing(purpose)
        return [number for number in range(6) if any(number in it for it in held)]

    assert [refusing(it) for it in ("a", "a/b", "a/b/x", "ab", "b")] == [
        [1, 2, 3],
        [1, 2],
        [1, 2],
        [4],
        [],
    ]
    assert refusing(None) == [1, 2, 3, 4]
    assert index.refusing("a") is index.refusing("a")
    later = index.change(10, {"ab": Counter({4: -1})}, int)
    assert set(later.by_purpose) == {"a", "a/b", "a/c"}
    assert refusing("ab", later) == []
    for number in range(5_000):  # clients choose purposes: what is known stays bounded
        index.refusing(f"p{number}")
    assert len(index._refusing) <= 4_096
