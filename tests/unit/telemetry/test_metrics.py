import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.errors import UsageError
from penstock.telemetry import counter, gauge, histogram, metrics

MOVES = counter(
    "penstock_test_moves", "Moves in a test.", a_way=("in", "out"), result=("ok", "bad")
)


def series(name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if sample.name == name
    }


def test_all_series_exist_from_the_start() -> None:
    found = series("penstock_test_moves_total")
    assert len(found) == 9
    assert ("in", "ok") in found


def test_counting() -> None:
    MOVES["in", "ok"].inc()
    MOVES["in", "ok"].inc(2)
    assert series("penstock_test_moves_total")["in", "ok"] == 3


@pytest.mark.parametrize(
    "key", [("alice", "ok"), ("in", "alice"), "alice", ("in",), ("a", "b", "c"), ()]
)
def test_values_that_were_not_declared_become_other(key: str | tuple[str, ...]) -> None:
    before = sum(series("penstock_test_moves_total").values())
    MOVES[key].inc()
    after = series("penstock_test_moves_total")
    assert sum(after.values()) == before + 1
    assert "alice" not in metrics.render().decode()
    assert len(after) == 9


def test_levels_and_distributions() -> None:
    gauge("penstock_test_level", "A level.").plain.set(4)
    histogram("penstock_test_seconds", "A distribution.", kind=("a", "b"))["a"].observe(0.02)
    assert series("penstock_test_level") == {(): 4.0}
    assert series("penstock_test_seconds_count")[("a",)] == 1


def test_the_catalogue_knows_what_was_declared() -> None:
    found = {one.name: one for one in metrics.catalogue()}["penstock_test_moves_total"]
    assert (found.type, found.labels) == (
        "counter",
        {"a_way": ("in", "out"), "result": ("ok", "bad")},
    )


@pytest.mark.parametrize(
    ("name", "labels", "complaint"),
    [
        ("moves", {}, "is not a metric name"),
        ("penstock_test_moves", {}, "declared twice"),
        ("penstock_test_a", {"who": ("alice smith",)}, "'alice smith'"),
        ("penstock_test_b", {"who": ()}, "no usable list"),
        ("penstock_test_c", {"who": ("a", "a")}, "no usable list"),
        ("penstock_test_d", {"who": ("other",)}, "'other'"),
        ("penstock_test_e", {"x": [str(n) for n in range(300)]}, "301 series"),
    ],
)
def test_declarations_are_checked(
    name: str, labels: dict[str, tuple[str, ...]], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        counter(name, "A test.", **labels)


def test_figures_of_definitions_follow_them_and_are_bounded() -> None:
    made = metrics.readings("penstock_test_lag", "gauge", "A lag.", "view")
    made.show({"one": 1, "two": 2.5})
    assert b'penstock_test_lag{view="two"} 2.5' in metrics.render()
    made.show({f"view-{n:04}": n for n in range(metrics.SERIES_LIMIT + 50)})
    lines = [
        line for line in metrics.render().splitlines() if line.startswith(b"penstock_test_lag{")
    ]
    assert len(lines) == metrics.SERIES_LIMIT
    assert b'view="one"' not in metrics.render()
    count = metrics.readings("penstock_test_seen_total", "counter", "A count.", "view")
    count.show({"one": 7})
    assert b'penstock_test_seen_total{view="one"} 7.0' in metrics.render()
    with pytest.raises(UsageError, match="declared twice"):
        metrics.readings("penstock_test_lag", "gauge", "A lag.", "view")
