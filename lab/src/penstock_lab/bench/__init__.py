"""Benchmarks, one module per part, each printing figures and ratios of one run.

Rules that hold here:
- A module has `run(*, quick: bool) -> dict`: figures that JSON can hold. It may have
  `tables(figures)` for people, and says in `IN_TABLES` which figures these tell. Where it has
  `PARTS`, `run` takes `only`: some of them.
- Ratios are taken within one run and rounds are interleaved: machines are noisy.
- Nothing here decides whether a test passes.
"""

# In the order of `penstock bench all`.
BENCHMARKS = (
    "startup",
    "expressions",
    "store",
    "audit",
    "reservations",
    "packets",
    "gateway",
    "purposes",
    "recording",
    "anonymity",
    "pipeline",
    "scaling",
    "kafka",
    "views",
    "emergencies",
    "roles",
    "trust",
    "rights",
    "console",
)
