from __future__ import annotations

import hashlib
import math
import statistics
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import InvalidError
from penstock.masks import Chain, Field, Rejected, read_masks
from penstock.masks.noise import draw_quantile, draw_uniform, draw_word, quantile_table
from tests.support.masks.single_mask import chain_of, mask_one, problems_of, supply

# Words with many zeros at their end are rare by chance, and those reach the last octaves.
words = st.integers(0, 2**52 - 1) | st.builds(
    lambda word, zeros: word >> zeros << zeros, st.integers(0, 2**52 - 1), st.integers(0, 52)
)


def noise(amount: float = 1, **more: Any) -> dict[str, Any]:
    return {"anonymizer": "noise", "noise": amount, "mode": "additive", **more}


def draw(spec: dict[str, Any], count: int = 4000, value: float = 100.0) -> list[float]:
    chain = chain_of("double", spec)
    drawn = [chain.apply({"x": value}, f"t/0/{offset}") for offset in range(count)]
    return [float(it["x"]) for it in drawn if isinstance(it, dict)]


def share_beyond(word: int) -> float:
    """Return p as the bits of a word tell it, read from a text of them."""
    bits = f"{word:052b}"
    cell, rest = bits[1:8], bits[8:]
    zeros = min(len(rest) - len(rest.rstrip("0")), 31)
    return 0.5 ** (zeros + 2) * (1 + int(cell + rest, 2) / 2**51)


@given(words)
@example(0)
@example(2**51)
@example(2**52 - 1)
@example(2**51 - 2**31)
def test_quantiles_are_those_of_the_distributions(word: int) -> None:
    p = share_beyond(word)
    sign = 1 if word >> 51 else -1
    normal = draw_quantile(word, quantile_table("normal"))
    assert normal == pytest.approx(-sign * statistics.NormalDist().inv_cdf(p), abs=1.2e-5)
    laplace = draw_quantile(word, quantile_table("laplace"))
    assert laplace == pytest.approx(-sign * math.log(2 * p), abs=1.2e-5)
    assert draw_uniform(word) == pytest.approx(2 * (word + 0.5) / 2**52 - 1, abs=1e-15)


def test_shares_are_even() -> None:
    # Twice p is even between 0 and 1: as many words on each side of every bound.
    counted = 40_000
    drawn = sorted(2 * share_beyond(draw_word(bytes(32), f"t/0/{n}")) for n in range(counted))
    farthest = max(abs(share - place / counted) for place, share in enumerate(drawn))
    assert farthest < 1.63 / counted**0.5, "Kolmogorov and Smirnov, at one in a hundred"


def test_words_are_those_of_the_hash() -> None:
    key = bytes(range(32))
    digest = hashlib.sha256(key + b"t/0/7").hexdigest()
    assert draw_word(key, "t/0/7") == int(digest[:13], 16)


@pytest.mark.parametrize(
    ("distribution", "deviation", "within"),
    [("normal", 5, 0.6827), ("laplace", 5 * math.sqrt(2), 0.7569), ("uniform", 5 / 3**0.5, 0.5774)],
)
def test_drawn_amounts_have_the_declared_spread(
    distribution: str, deviation: float, within: float
) -> None:
    drawn = draw(noise(5, distribution=distribution))
    assert statistics.fmean(drawn) == pytest.approx(100, abs=0.5)
    assert statistics.stdev(drawn) == pytest.approx(deviation, rel=0.06)
    share = sum(abs(it - 100) < deviation for it in drawn) / len(drawn)
    assert share == pytest.approx(within, abs=0.03)


def test_multiplicative_noise_is_a_share_of_the_value() -> None:
    small = draw(noise(0.1, mode="multiplicative"), 50, 1.0)
    large = draw(noise(0.1, mode="multiplicative"), 50, 1000.0)
    assert [it * 1000 for it in small] == pytest.approx(large)
    assert set(draw(noise(0.1, mode="multiplicative"), 5, 0.0)) == {0.0}


def test_the_record_the_field_the_view_and_the_seed_choose_the_amount() -> None:
    first = mask_one("double", noise(), 1.0, "t/0/1")
    assert first == mask_one("double", noise(), 1.0, "t/0/1")
    assert first != mask_one("double", noise(), 1.0, "t/0/2")
    assert first != mask_one("double", noise(seed=1), 1.0, "t/0/1")
    other = chain_of("double", noise(), supplies=supply("other view"))
    assert other.apply({"x": 1.0}, "t/0/1") != {"x": first}
    twice = chain_of("double", noise(), noise()).apply({"x": 1.0}, "t/0/1")
    assert isinstance(twice, dict)
    assert twice["x"] != pytest.approx(2 * first - 1.0), "a second mask draws anew"


@pytest.mark.parametrize("distribution", ["normal", "laplace", "uniform"])
@pytest.mark.parametrize("mode", ["additive", "multiplicative"])
def test_two_amounts_of_noise_do_not_give_the_original(mode: str, distribution: str) -> None:
    value = 100.0
    once, twice = (
        draw(noise(amount, mode=mode, distribution=distribution), 2000, value)
        for amount in (0.1, 0.2)
    )
    # By one draw that is scaled twice, 2a - b would be the value.
    guessed = [2 * a - b for a, b in zip(once, twice, strict=True)]
    assert sum(abs(it - value) < 1e-9 for it in guessed) == 0
    assert abs(statistics.correlation(once, twice)) < 0.1


@pytest.mark.parametrize(
    "other",
    [{"mode": "multiplicative"}, {"distribution": "laplace"}, {"amount": 1.0 + 1e-9}, {"seed": 3}],
)
def test_every_parameter_draws_anew(other: dict[str, Any]) -> None:
    one, two = draw(noise(), 2000, 1.0), draw(noise(**other), 2000, 1.0)
    assert abs(statistics.correlation(one, two)) < 0.1
    signs = [(a > 1) == (b > 1) for a, b in zip(one, two, strict=True)]
    assert 0.4 < statistics.mean(signs) < 0.6


def test_a_choice_by_chance_from_two_lists_has_nothing_in_common() -> None:
    lists = [[f"n{number}" for number in range(size)] for size in (10, 20)]
    spec = {"anonymizer": "substitution", "random": True}
    chains = [chain_of("string", {**spec, "substitution_list": it}) for it in lists]
    drawn = [
        [str(it["x"]) for it in made if isinstance(it, dict)]
        for made in ([chain.apply({"x": "a"}, f"t/0/{n}") for n in range(2000)] for chain in chains)
    ]
    same = [int(a[1:]) == int(b[1:]) % 10 for a, b in zip(*drawn, strict=True)]
    assert statistics.mean(same) < 0.2


def test_fields_draw_independently() -> None:
    spec = {**noise(), "keys": ["x", "y"]}
    fields = {"x": Field.of("double"), "y": Field.of("double")}
    chain = Chain(read_masks([spec]), fields, supply())
    drawn = [chain.apply({"x": 0.0, "y": 0.0}, f"t/0/{offset}") for offset in range(4000)]
    pairs = [(it["x"], it["y"]) for it in drawn if isinstance(it, dict)]
    assert len(pairs) == len(drawn)
    xs, ys = zip(*pairs, strict=True)
    assert abs(statistics.correlation(xs, ys)) < 0.06
    sizes = [abs(x) for x in xs], [abs(y) for y in ys]
    assert abs(statistics.correlation(*sizes)) < 0.06


def test_whole_numbers_stay_whole_and_within_their_type() -> None:
    assert isinstance(mask_one("int", noise(10), 5), int)
    drawn = {mask_one("int", noise(1e9), 2**31 - 1, str(n)) for n in range(40)}
    assert max(drawn) == 2**31 - 1
    lowest = {mask_one("long", noise(1e9), -(2**63), str(n)) for n in range(40)}
    assert min(lowest) == -(2**63)
    huge = {mask_one("long", noise(1e9, mode="multiplicative"), 2**62, str(n)) for n in range(9)}
    assert huge <= {2**63 - 1, -(2**63) + 2**62}
    doubles = {
        mask_one("double", noise(1e9, mode="multiplicative"), 1e308, str(n)) for n in range(9)
    }
    assert {abs(it) for it in doubles} == {1.7976931348623157e308}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_rejected(value: float) -> None:
    assert mask_one("double", noise(), value) == Rejected(
        "noise of 'x': the value is not a finite number"
    )
    assert isinstance(mask_one("float", noise(), value), Rejected)


def test_without_identity_nothing_passes() -> None:
    outcome = chain_of("double", noise()).apply({"x": 1.0})
    assert outcome == Rejected("the record has no identity, from which chance is drawn")
    assert isinstance(chain_of("double", noise()).apply({"x": 1.0}, "\ud800"), Rejected)


@pytest.mark.parametrize("amount", [0, -1, 1e10, "1", None, float("nan")])
def test_wrong_amounts(amount: Any) -> None:
    with pytest.raises(InvalidError, match=r"anonymizers\[0\].noise"):
        read_masks([{"keys": ["x"], **noise(amount)}])


def test_only_numbers_take_noise() -> None:
    (found,) = problems_of({"keys": ["x"], **noise()}, x="string")
    assert found.endswith(
        "noise does not take 'x', which is string → it takes double, float, int, long"
    )
