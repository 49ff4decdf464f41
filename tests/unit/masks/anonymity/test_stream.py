import numpy as np
import pytest

from penstock.errors import InvalidError, UsageError
from penstock.masks.anonymity import (
    NONE,
    CategoryDomain,
    Closeness,
    Distance,
    DistinctDiversity,
    EntropyDiversity,
    NumberDomain,
    StreamAnonymizer,
    StreamParameters,
)
from penstock.masks.anonymity.publication import Boxes, Published

AGE = NumberDomain("age", 0, 100)
ILLNESS = CategoryDomain.flat("illness", ["asthma", "covid", "flu"])


def ages(*values: float) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.array([values], dtype=np.float64)


def test_tuples_wait_until_the_oldest_is_due() -> None:
    stream = StreamAnonymizer(StreamParameters([AGE], k=2, delta=6))
    early = stream.feed(ages(10, 50, 11, 52, 90), np.arange(5))
    assert early.positions.size == 0
    release = stream.feed(ages(91), np.array([5]))
    assert sorted(release.positions.tolist()) == [0, 1, 2, 3, 4, 5]
    (labels,) = stream.parameters.space.labels(release.boxes.lows, release.boxes.highs)
    assert [labels[place] for place in release.places[np.argsort(release.positions)]] == [
        "[10 - 11]",
        "[50 - 52]",
        "[10 - 11]",
        "[50 - 52]",
        "[90 - 91]",
        "[90 - 91]",
    ]


def test_the_order_in_a_release_does_not_tell_the_order_of_coming() -> None:
    values, persons = ages(*(number % 90 for number in range(200))), np.arange(200)
    orders = [
        StreamAnonymizer(StreamParameters([AGE], k=2, delta=200, seed=seed))
        .feed(values, persons)
        .positions.tolist()
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1], "a replay publishes the same"
    assert orders[0] != orders[2], "who does not know the seed does not know the order"
    assert sorted(orders[0]) == list(range(200))
    steps = np.diff(orders[0])
    assert 0.4 < (steps > 0).mean() < 0.6


def test_one_person_alone_is_never_published() -> None:
    stream = StreamAnonymizer(StreamParameters([AGE], k=2, delta=10))
    releases = [stream.feed(ages(*range(100)), np.zeros(100, dtype=np.int64)), stream.flush()]
    assert all(release.suppressed.all() for release in releases)
    assert sum(release.positions.size for release in releases) == 100


def test_stragglers_join_a_published_generalization_or_are_suppressed() -> None:
    stream = StreamAnonymizer(StreamParameters([AGE], k=3, delta=6))
    stream.feed(ages(10, 11, 12, 50, 70, 90), np.arange(6))
    assert stream.feed(ages(11, 75), np.array([6, 7])).positions.size == 0
    release = stream.flush()
    (labels,) = stream.parameters.space.labels(release.boxes.lows, release.boxes.highs)
    # Only the group that loses less than the mean is kept for reuse.
    assert labels == ["[10 - 12]"]
    order = np.argsort(release.positions)
    assert release.places[order].tolist() == [0, NONE]
    assert release.reused[order].tolist() == [True, False]
    assert release.total_loss() == pytest.approx(0.02 + 1.0)


def test_the_young_wait_on_where_the_old_cannot_be_hidden() -> None:
    stream = StreamAnonymizer(StreamParameters([AGE], k=3, delta=10))
    release = stream.feed(ages(*range(10)), np.zeros(10, dtype=np.int64))
    assert sorted(release.positions.tolist()) == [0, 1, 2, 3, 4]
    assert release.suppressed.all()
    later = stream.feed(ages(5, 6), np.array([1, 2]))
    assert later.positions.size == 0
    assert not stream.flush().suppressed.any()


def test_reuse_is_drawn_among_all_that_contain() -> None:
    boxes = Boxes(ages(0, 5, 50), ages(20, 15, 60), np.array([0.2, 0.1, 0.1]))
    drawn = boxes.draw(np.full((1, 10_000), 10.0), np.random.default_rng(1))
    counts = np.bincount(drawn, minlength=3)
    assert counts[2] == 0
    assert 4700 < counts[0] < 5300
    assert boxes.draw(ages(20.5, 49.5, 60, 50), np.random.default_rng(1)).tolist() == [
        NONE,
        NONE,
        2,
        2,
    ]


def test_only_good_generalizations_are_kept_and_only_so_many() -> None:
    published = Published(StreamParameters([AGE], k=2, delta=9, mu=4, beta=2))
    for number in range(10):
        published.add(Boxes(ages(number, 0), ages(number + 1, 50), np.array([0.01, 0.5])))
    assert published.typical_loss == pytest.approx(0.255)
    assert published.reusable.lows.tolist() == [[8.0, 9.0]]


def test_too_frequent_values_are_thinned_out_and_the_rest_is_published() -> None:
    rule = EntropyDiversity(0, ILLNESS, 2)
    parameters = StreamParameters([AGE], k=5, delta=100, sensitive=[ILLNESS], rules=[rule])
    stream = StreamAnonymizer(parameters)
    illnesses = np.array([[0] * 80 + [1] * 20])
    stream.feed(ages(*[value % 100 for value in range(99)]), np.arange(99), illnesses[:, :99])
    release = stream.flush()
    published = illnesses[0, release.positions[~release.suppressed]]
    assert np.bincount(published)[1] == 19
    assert 19 <= np.bincount(published)[0] <= 25


def test_closeness_compares_with_all_that_was_seen() -> None:
    rule = Closeness(0, ILLNESS, 0.1, Distance.EQUAL)
    parameters = StreamParameters([AGE], k=2, delta=40, sensitive=[ILLNESS], rules=[rule])
    stream = StreamAnonymizer(parameters)
    first = stream.feed(ages(*range(40)), np.arange(40), np.array([[0, 1] * 20]))
    assert not first.suppressed.any()
    second = stream.feed(ages(*range(40)), np.arange(40), np.array([[0] * 36 + [1] * 4]))
    assert second.suppressed.any()


def test_codes_that_do_not_fit_are_refused_and_nothing_is_taken_in() -> None:
    parameters = StreamParameters([AGE], k=2, delta=4, sensitive=[ILLNESS])
    stream = StreamAnonymizer(parameters)
    two = np.arange(2)
    for codes, illnesses in (
        (ages(1, np.nan), np.zeros((1, 2), dtype=np.int64)),
        (ages(1, 101), np.zeros((1, 2), dtype=np.int64)),
        (ages(1, 2, 3), np.zeros((1, 2), dtype=np.int64)),
        (ages(1, 2), np.zeros((0, 2), dtype=np.int64)),
        (ages(1, 2), np.array([[0, 3]])),
        (ages(1, 2), np.array([[-1, 0]])),
    ):
        with pytest.raises(UsageError):
            stream.feed(codes, two, illnesses)
    assert stream.next_position == 0


def test_all_bad_parameters_are_listed_at_once() -> None:
    with pytest.raises(InvalidError) as caught:
        StreamParameters([AGE], k=0, delta=0, beta=0, mu=0, seed=-1)
    assert [problem.place for problem in caught.value.problems] == [
        "k",
        "delta",
        "beta",
        "mu",
        "seed",
    ]
    with pytest.raises(InvalidError, match="delta"):
        StreamParameters([AGE], k=10, delta=9)
    with pytest.raises(InvalidError, match="65 are named"):
        StreamParameters([AGE] * 65, k=2, delta=9)
    with pytest.raises(InvalidError, match="'age' has 0 values"):
        StreamParameters([AGE], k=2, delta=9, sensitive=[AGE])
    with pytest.raises(InvalidError, match="sensitive column"):
        StreamParameters([AGE], k=2, delta=9, rules=[DistinctDiversity(0, ILLNESS, 2)])


class TestSnapshots:
    def test_other_parameters_are_refused(self) -> None:
        state = StreamAnonymizer(StreamParameters([AGE], k=2, delta=9)).to_bytes()
        for other in (
            StreamParameters([AGE], k=3, delta=9),
            StreamParameters([NumberDomain("age", 0, 101)], k=2, delta=9),
            StreamParameters([AGE], k=2, delta=9, seed=1),
        ):
            with pytest.raises(UsageError, match="other parameters"):
                StreamAnonymizer.from_bytes(other, state)

    @pytest.mark.parametrize("keep", [0, 10, 500])
    def test_a_broken_state_is_refused(self, keep: int) -> None:
        parameters = StreamParameters([AGE], k=2, delta=9)
        state = StreamAnonymizer(parameters).to_bytes()
        with pytest.raises(UsageError, match="cannot be read"):
            StreamAnonymizer.from_bytes(parameters, state[:keep])

    def test_a_changed_state_is_refused(self) -> None:
        parameters = StreamParameters([AGE], k=2, delta=9)
        stream = StreamAnonymizer(parameters)
        stream.feed(ages(1, 2, 3), np.arange(3))
        state = bytearray(stream.to_bytes())
        place = bytes(state).index(np.array([1.0, 2.0, 3.0]).tobytes())
        state[place] ^= 1
        with pytest.raises(UsageError, match="cannot be read"):
            StreamAnonymizer.from_bytes(parameters, bytes(state))

    def test_the_state_stays_small(self) -> None:
        stream = StreamAnonymizer(StreamParameters([AGE], k=5, delta=1000))
        generator = np.random.default_rng(1)
        sizes = []
        for _ in range(30):
            stream.feed(generator.uniform(0, 100, (1, 700)), np.arange(700))
            sizes.append(len(stream.to_bytes()))
        assert max(sizes) < 1000 * (8 + 8 + 8) + 8_000


class TestWaiting:
    def test_all_that_is_held_leaves_with_the_one_that_is_due(self) -> None:
        stream = StreamAnonymizer(StreamParameters([AGE], k=2, delta=100, max_wait=50))
        assert stream.feed(ages(10, 50), np.arange(2), now=100).positions.size == 0
        assert stream.feed(ages(12, 55), np.arange(2, 4), now=149).positions.size == 0
        assert stream.due == 150
        release = stream.feed(ages(), np.arange(0), now=150)
        assert sorted(release.positions.tolist()) == [0, 1, 2, 3]
        assert len(release.boxes) == 2
        assert stream.due is None

    def test_what_is_due_among_too_few_is_suppressed_and_the_young_wait_on(self) -> None:
        stream = StreamAnonymizer(StreamParameters([AGE], k=3, delta=100, max_wait=50))
        stream.feed(ages(10), np.array([1]), now=100)
        release = stream.feed(ages(11), np.array([2]), now=160)
        assert release.positions.tolist() == [0]
        assert release.suppressed.all()
        assert stream.held_positions.tolist() == [1]
        assert stream.due == 210


def test_nobody_is_alone_under_the_root() -> None:
    stream = StreamAnonymizer(StreamParameters([AGE], k=3, delta=6, outliers="root"))
    stream.feed(ages(90), np.array([1]))
    alone = stream.flush()
    assert alone.suppressed.all(), "no group is known yet"
    stream.feed(ages(10), np.array([2]))
    first = stream.feed(ages(11, 12, 50, 55, 61), np.arange(3, 8))
    (labels,) = stream.parameters.space.labels(first.boxes.lows, first.boxes.highs)
    # The group that loses more opens the root.
    assert set(labels) == {"[0 - 100]", "[10 - 12]"}
    assert first.total_loss() == pytest.approx(3 * 0.02 + 3)
    stream.feed(ages(99), np.array([9]))
    later = stream.flush()
    (labels,) = stream.parameters.space.labels(later.boxes.lows, later.boxes.highs)
    assert labels == ["[0 - 100]"]
    assert later.reused.all()


class TestRoot:
    def test_the_root_is_drawn_as_any_other_box(self) -> None:
        seen = set()
        for seed in range(30):
            parameters = StreamParameters([AGE], k=3, delta=6, outliers="root", seed=seed)
            stream = StreamAnonymizer(parameters)
            stream.feed(ages(10, 11, 12, 50, 70, 90), np.arange(6))
            stream.feed(ages(30, 31, 33, 60, 62, 80), np.arange(6))
            stream.feed(ages(31), np.array([6]))
            release = stream.flush()
            (labels,) = stream.parameters.space.labels(release.boxes.lows, release.boxes.highs)
            seen |= set(labels)
        # Else a record under the root would tell that it lies in no box.
        assert "[0 - 100]" in seen
        assert len(seen) > 1

    def test_it_stays_open_over_a_restart(self) -> None:
        parameters = StreamParameters([AGE], k=3, delta=6, outliers="root")
        stream = StreamAnonymizer(parameters)
        stream.feed(ages(10, 11, 12, 50, 55, 61), np.arange(6))
        stream = StreamAnonymizer.from_bytes(parameters, stream.to_bytes())
        stream.feed(ages(99), np.array([9]))
        assert not stream.flush().suppressed.any()

    def test_rules_that_one_more_could_break_know_no_root(self) -> None:
        with pytest.raises(InvalidError, match="under the root, one more tuple could break"):
            StreamParameters(
                [AGE],
                k=3,
                delta=6,
                sensitive=[ILLNESS],
                rules=[EntropyDiversity(0, ILLNESS, 2)],
                outliers="root",
            )


def test_castle_knows_no_rules() -> None:
    with pytest.raises(InvalidError, match="castle counts persons only"):
        StreamParameters(
            [AGE],
            k=3,
            delta=6,
            sensitive=[ILLNESS],
            rules=[DistinctDiversity(0, ILLNESS, 2)],
            algorithm="castle",
        )
