"""Noise for differential privacy, drawn and accounted for by OpenDP.

Rules that hold here:
- Noise is discrete Laplace on whole numbers. Sampling and its privacy map are OpenDP's; no
  noise is ever made from floating-point numbers, whose low bits give values away.
- A scale counts only if OpenDP's own privacy map says that it keeps what was asked for.
- What is added is drawn anew each time and cannot be drawn again: there is no seed.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final, Protocol

import numpy as np
import opendp.prelude as dp

from penstock.pipeline.records.columns import Integers

dp.enable_features("contrib")

NUDGE: Final = 1 + 2.0**-40


class Noise(Protocol):
    """Adds noise to whole numbers."""

    def __call__(self, values: Integers) -> Integers:
        """Return the values with noise."""


class MakeNoise(Protocol):
    """Makes noise that hides a change of the values by so much in all, within epsilon."""

    def __call__(self, sensitivity: int, epsilon: Fraction) -> Noise:
        """Return the noise."""


class LaplaceNoise:
    """Discrete Laplace noise that hides `sensitivity` within `epsilon`."""

    def __init__(self, sensitivity: int, epsilon: Fraction) -> None:
        make: Any = dp.m.make_laplace
        space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
        scale = float(sensitivity / epsilon)
        while True:
            self._measurement = make(*space, scale=scale)
            self.epsilon: float = self._measurement.map(sensitivity)
            if Fraction(self.epsilon) <= epsilon:
                break
            # OpenDP rounds up what a scale tells; a hair more noise makes up for it.
            scale *= NUDGE
        self.scale = scale

    def __call__(self, values: Integers) -> Integers:
        """Return the values with noise; what would leave the range of 64 bits stays at its end."""
        if not values.size:
            return values
        return np.asarray(self._measurement(values.tolist()), dtype=np.int64)
