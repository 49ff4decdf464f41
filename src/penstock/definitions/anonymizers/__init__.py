"""Parameters of the stateful anonymizers, and all of them by name.

Rules that hold here:
- What a parameter may be is said here once; the pipeline carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.definitions.anonymizers.differential_privacy import DifferentialPrivacy
from penstock.definitions.anonymizers.k_anonymity import KAnonymization, LDiversity, TCloseness
from penstock.definitions.anonymizers.stateful import (
    Aggregation,
    MultivariateMicroaggregation,
    Shuffling,
    StatefulAnonymizer,
    UnivariateMicroaggregation,
)

STATEFUL_ANONYMIZERS: Final[Mapping[str, type[StatefulAnonymizer]]] = {
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
