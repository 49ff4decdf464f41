"""What published views tell: the risk of re-identification, and how views are, for operators.

    figures       which fields, and what counted groups give
    tally         counts combinations of values in tables of any length
    promises      k, l, t: kept or broken
    linkage       what records tell together
    measurement   the risk of what a view has published
    watch         all views, for Prometheus

Rules that hold here:
- What was published is read, with the definitions of then. No Spark runs.
"""
