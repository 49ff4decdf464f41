"""The anonymizers that look at many records together, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.definitions.anonymity import KAnonymization, LDiversity, TCloseness
from penstock.definitions.collective import (
    Aggregation,
    Collective,
    MultivariateMicroaggregation,
    Shuffling,
    UnivariateMicroaggregation,
)
from penstock.definitions.differential_privacy import DifferentialPrivacy

COLLECTIVES: Final[Mapping[str, type[Collective]]] = {
    kind.name: kind
    for kind in (
        Aggregation,
        Shuffling,
        UnivariateMicroaggregation,
        MultivariateMicroaggregation,
        KAnonymization,
        LDiversity,
        TCloseness,
        DifferentialPrivacy,
    )
}
