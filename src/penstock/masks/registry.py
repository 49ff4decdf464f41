"""The row-wise masks by name, as definitions of views call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.masks.blurring import Blurring
from penstock.masks.bucketizing import Bucketizing
from penstock.masks.conditional_substitution import ConditionalSubstitution
from penstock.masks.generalization import Generalization
from penstock.masks.mask import Mask
from penstock.masks.noise import Noise
from penstock.masks.substitution import Substitution
from penstock.masks.suppression import Suppression
from penstock.masks.tokenization import Tokenization

_KINDS: Final[tuple[type[Mask], ...]] = (
    Suppression,
    Blurring,
    Substitution,
    Tokenization,
    Generalization,
    Bucketizing,
    Noise,
    ConditionalSubstitution,
)

MASKS: Final[Mapping[str, type[Mask]]] = {kind.name: kind for kind in _KINDS}

OTHER_NAMES: Final[Mapping[str, str]] = {"noise_methods": "noise"}
"""Names that files of others use."""


def find_mask(name: str) -> type[Mask] | None:
    """Return the mask of a name, or None where it is not row-wise or unknown."""
    return MASKS.get(OTHER_NAMES.get(name, name))
