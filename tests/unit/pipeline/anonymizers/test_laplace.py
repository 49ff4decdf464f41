from __future__ import annotations

from fractions import Fraction

import numpy as np

from penstock.pipeline.anonymizers.laplace import LaplaceNoise

DRAWS = 4000


def test_noise_is_spread_as_declared() -> None:
    # Mean 0 and mean size 20, each within ten standard deviations of its estimate: by
    # Bernstein's bound a right mechanism fails this less than once in 10^9 runs.
    noise = LaplaceNoise(10, Fraction(1, 2))
    drawn = noise(np.full(DRAWS, 7, dtype=np.int64)) - 7
    deviation = 20 * 2**0.5
    assert abs(float(drawn.mean())) < 10 * deviation / DRAWS**0.5
    assert abs(float(np.abs(drawn).mean()) - 20) < 10 * 20 / DRAWS**0.5


def test_noise_is_drawn_anew() -> None:
    noise = LaplaceNoise(10**6, Fraction(1))
    zeros = np.zeros(20, dtype=np.int64)
    assert noise(zeros).tolist() != noise(zeros).tolist()  # equal once in 10^120 runs


def test_no_values_have_no_noise() -> None:
    assert LaplaceNoise(1, Fraction(1))(np.empty(0, dtype=np.int64)).size == 0


def test_the_ends_of_64_bits_hold() -> None:
    noise = LaplaceNoise(2**30, Fraction(1, 1000))
    ends = np.array([2**63 - 1, -(2**63)] * 20, dtype=np.int64)
    assert (np.sign(noise(ends)) == np.sign(ends)).all()
