from datetime import UTC, date, datetime, timedelta, timezone
from typing import Literal

import numpy as np
import pytest

from penstock.errors import InvalidError, UsageError
from penstock.masks.anonymity import (
    CategoryDomain,
    DateDomain,
    Domain,
    NumberDomain,
    Space,
    WithNull,
)
from penstock.masks.supplies import Hierarchy

# The tree of an example everybody knows: nine places, three of them in Germany.
PLACES = {
    "Berlin": ("Germany", "Europe", "World"),
    "Bonn": ("Germany", "Europe", "World"),
    "Ulm": ("Germany", "Europe", "World"),
    "Paris": ("France", "Europe", "World"),
    "Lyon": ("France", "Europe", "World"),
    "Rome": ("Europe", "World"),
    "Lima": ("America", "World"),
    "Quito": ("America", "World"),
    "Tokyo": ("World",),
}


def pair(low: float, high: float) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], ...]:
    return np.array([low]), np.array([high])


class TestNumbers:
    def test_loss_is_the_share_of_the_domain(self) -> None:
        age = NumberDomain("age", 17, 90)
        assert age.loss(*pair(17, 90)) == [1.0]
        assert age.loss(*pair(20, 20)) == [0.0]
        assert age.loss(*pair(17, 53.5)) == [0.5]

    def test_what_is_outside_has_no_code(self) -> None:
        age = NumberDomain("age", 17, 90)
        values = [
            17,
            90,
            16.99,
            91,
            None,
            float("nan"),
            float("inf"),
            "40",
            True,
            10**400,
            -(2**80),
        ]
        assert np.isnan(age.encode(values)).tolist() == [False, False] + [True] * 9

    def test_arrays_are_encoded_like_lists(self) -> None:
        age = NumberDomain("age", 17, 90)
        assert age.encode(np.array([17, 30, 99])).tolist()[:2] == [17.0, 30.0]
        assert np.isnan(age.encode(np.array([np.nan, 99.0]))).all()

    def test_labels(self) -> None:
        age = NumberDomain("age", 17, 90)
        assert age.labels(np.array([20.0, 20.0, 20.5]), np.array([35.0, 20.0, 21.25])) == [
            "[20 - 35]",
            "20",
            "[20.5 - 21.25]",
        ]

    def test_buckets_hide_the_values_themselves(self) -> None:
        age = NumberDomain("age", 0, 95, bucket=10)
        codes = age.encode([0, 9.9, 10, 94, 95])
        assert codes.tolist() == [0, 0, 1, 9, 9]
        assert age.labels(*pair(2, 3)) == ["[20 - 40]"]
        assert age.labels(*pair(9, 9)) == ["[90 - 95]"]
        assert age.loss(*pair(4, 4)) == [0.1]
        assert age.loss(*pair(0, 9)) == [1.0]

    def test_negative_numbers_fall_in_buckets_too(self) -> None:
        degrees = NumberDomain("degrees", -20, 20, bucket=5)
        assert degrees.labels(degrees.encode([-0.1]), degrees.encode([0])) == ["[-5 - 5]"]

    @pytest.mark.parametrize(
        ("low", "high", "bucket"),
        [
            (1, 1, None),
            (5, 1, None),
            (0, float("inf"), None),
            (0, 2**60, None),
            (float("nan"), 9, None),
            (0, 9, 0),
            (0, 9, -1),
            (0, 9, 1e-9),
        ],
    )
    def test_bad_bounds_are_refused(self, low: float, high: float, bucket: float | None) -> None:
        with pytest.raises(InvalidError, match="age"):
            NumberDomain("age", low, high, bucket=bucket)


class TestCategories:
    def test_loss_counts_the_leaves_below_the_lowest_common_node(self) -> None:
        domain = CategoryDomain("place", PLACES)

        def loss(*places: str) -> float:
            codes = domain.encode(places)
            return float(domain.loss(codes[:1], codes[1:])[0])

        assert loss("Berlin", "Berlin") == 0.0
        assert loss("Berlin", "Ulm") == 2 / 8
        assert loss("Paris", "Lyon") == 1 / 8
        assert loss("Berlin", "Rome") == 5 / 8
        assert loss("Berlin", "Tokyo") == 1.0

    def test_many_leaves_lose_as_few_do(self) -> None:
        """Beyond a size, losses come from the tree instead of a table."""
        paths = {f"{number:03}": (f"{number // 10:02}", "*") for number in range(300)}
        domain = CategoryDomain("number", paths)
        lows, highs = (
            domain.encode(["000", "000", "299", "010"]),
            domain.encode(["009", "010", "299", "012"]),
        )
        assert domain.loss(lows, highs) == pytest.approx([9 / 299, 1.0, 0.0, 9 / 299])

    def test_labels_name_the_node(self) -> None:
        domain = CategoryDomain("place", PLACES)
        lows = domain.encode(["Berlin", "Berlin", "Lyon", "Lima", "Rome"])
        highs = domain.encode(["Bonn", "Paris", "Lyon", "Tokyo", "Rome"])
        assert domain.labels(lows, highs) == ["Germany", "Europe", "Lyon", "World", "Rome"]

    def test_what_is_published_covers_all_leaves_of_the_node(self) -> None:
        domain = CategoryDomain("place", PLACES)
        codes = domain.encode(["Berlin", "Bonn"])
        lows, highs = domain.widen(codes[:1], codes[1:])
        covered = {domain.leaves[code] for code in range(int(lows[0]), int(highs[0]) + 1)}
        assert covered == {"Berlin", "Bonn", "Ulm"}

    def test_leaves_of_a_node_lie_together_however_they_are_given(self) -> None:
        scattered = dict(sorted(PLACES.items(), key=lambda item: item[0][::-1]))
        domain = CategoryDomain("place", scattered)
        for node in ("Germany", "France", "Europe", "America"):
            codes = [code for code, leaf in enumerate(domain.leaves) if node in PLACES[leaf]]
            assert codes == list(range(codes[0], codes[-1] + 1))

    def test_unknown_values_have_no_code(self) -> None:
        domain = CategoryDomain("place", PLACES)
        assert np.isnan(domain.encode(["Oslo", None, 3, "Germany", "berlin"])).all()

    def test_whole_numbers_are_the_leaves_that_write_them(self) -> None:
        domain = CategoryDomain.flat("insurer", ["7", "0012", "other", "-3"])
        codes = domain.encode([12, 7, -3, "other", "0012"])
        assert domain.labels(codes, codes) == ["0012", "7", "-3", "other", "0012"]
        assert np.isnan(domain.encode([True, 7.0, 8, None, [7], "12"])).all()

    def test_hierarchies_of_masks_fit(self) -> None:
        tree = Hierarchy.model_validate(
            {
                "value": "*",
                "children": [{"value": "a"}, {"value": "b", "children": [{"value": "c"}]}],
            }
        )
        assert sorted(CategoryDomain("letter", tree.paths).leaves) == ["a", "c"]

    @pytest.mark.parametrize("paths", [{}, {"a": ()}, {"a": ("x",), "b": ("y",)}])
    def test_what_is_no_tree_is_refused(self, paths: dict[str, tuple[str, ...]]) -> None:
        with pytest.raises(InvalidError, match="not one tree"):
            CategoryDomain("letter", paths)

    def test_a_single_leaf_loses_nothing(self) -> None:
        domain = CategoryDomain.flat("letter", ["a"])
        assert domain.loss(*pair(0, 0)) == [0.0]


class TestSpace:
    def test_loss_is_the_mean_over_the_domains(self) -> None:
        space = Space(
            [
                NumberDomain("age", 0, 100),
                NumberDomain("year", 0, 10, bucket=1),
                CategoryDomain("place", PLACES),
            ]
        )
        lows, highs = np.array([[10.0], [2.0], [0.0]]), np.array([[30.0], [3.0], [2.0]])
        assert space.losses(lows, highs)[0] == pytest.approx((0.2 + 0.2 + 0.25) / 3)

    def test_codes_from_outside_are_refused_with_the_reason(self) -> None:
        space = Space([NumberDomain("age", 0, 100)])
        with pytest.raises(UsageError, match=r"1 tuples have no valid 'age'.*from 0 to 100"):
            space.check(np.array([[5.0, np.nan]]))

    def test_without_quasi_identifiers_there_is_no_space(self) -> None:
        with pytest.raises(UsageError, match="quasi"):
            Space([])


class TestDates:
    YEAR = date(2024, 1, 1), date(2024, 12, 31)

    def test_days_are_read_in_every_notation_and_none_outside(self) -> None:
        born = DateDomain("born", *self.YEAR)
        late = datetime(2024, 3, 1, 1, tzinfo=timezone(timedelta(hours=2)))
        values = [date(2024, 2, 29), "2024-02-29", late, "2024-02-29T23:59:00Z"]
        assert len(set(born.encode(values).tolist())) == 1
        strange = [None, "2024-02-30", "29.2.2024", 5, date(2025, 1, 1), True, "x" * 99]
        assert np.isnan(born.encode(strange)).all()
        assert born.labels(*[born.encode(["2024-02-29"])] * 2) == ["2024-02-29"]
        assert born.labels(*pair(*born.span)) == ["[2024-01-01 - 2024-12-31]"]

    @pytest.mark.parametrize(
        ("unit", "bucket", "label", "size"),
        [
            ("days", 7, "[2024-03-04 - 2024-03-11]", 53),
            ("months", 3, "[2024-01-01 - 2024-04-01]", 4),
            ("years", 1, "[2024-01-01 - 2024-12-31]", 1),
        ],
    )
    def test_buckets_count_days_months_and_years(
        self, unit: Literal["days", "months", "years"], bucket: int, label: str, size: int
    ) -> None:
        born = DateDomain("born", *self.YEAR, bucket=bucket, unit=unit)
        code = born.encode([datetime(2024, 3, 5, 12, tzinfo=UTC)])
        assert (born.labels(code, code), born.size) == ([label], size)
        assert born.loss(code, code) == [1 / size]

    def test_bounds_that_make_no_buckets_are_refused(self) -> None:
        with pytest.raises(InvalidError, match="first day must lie before"):
            DateDomain("born", *reversed(self.YEAR))
        with pytest.raises(InvalidError, match="begin on the first day of a month"):
            DateDomain("born", date(2024, 1, 2), date(2025, 1, 1), bucket=1, unit="months")


class TestNull:
    @pytest.mark.parametrize(
        ("inner", "value", "whole"),
        [
            (NumberDomain("age", 0, 100), 30, "*"),
            (NumberDomain("age", 0, 100, bucket=10), 30, "*"),
            (CategoryDomain("place", PLACES), "Rome", "World"),
            (DateDomain("born", *TestDates.YEAR), "2024-05-05", "*"),
        ],
    )
    def test_null_is_alone_or_loses_everything(
        self, inner: Domain, value: object, whole: str
    ) -> None:
        domain = WithNull(inner)
        null, other, wrong = domain.encode([None, value, object()]).tolist()
        assert np.isnan(wrong)
        assert domain.labels(*pair(null, null)) == [None]
        assert domain.labels(*pair(null, other)) == [whole]
        assert domain.labels(*pair(other, other)) == inner.labels(*pair(other, other))
        losses = Space([domain]).losses(
            np.array([[null, null, other]]), np.array([[null, other, other]])
        )
        assert losses.tolist() == [0.0, 1.0, *inner.loss(*pair(other, other)).tolist()]
        low, high = domain.widen(*pair(null, other))
        assert (low.tolist(), high.tolist()) == ([null], [domain.span[1]])
