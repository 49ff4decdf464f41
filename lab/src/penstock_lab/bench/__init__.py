"""Benchmarks, one module per part, each printing figures and ratios of one run.

Rules that hold here:
- A module has `run(*, quick: bool) -> dict`: figures that JSON can hold.
- Ratios are taken within one run and rounds are interleaved: machines are noisy.
- Nothing here decides whether a test passes.
"""

# In the order of `penstock bench all`.
BENCHMARKS = (
    "expressions",
    "store",
    "audit",
    "reservations",
    "packets",
    "gateway",
    "recording",
    "anonymity",
    "pipeline",
    "kafka",
    "emergencies",
)
