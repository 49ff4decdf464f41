"""Event detection over long windows: the Spark side of complex event processing.

    records ─→ inputs ─→ tasks, one engine per partition ─→ joint engine ─→ commit

A partition holds some of the subjects; joins across subjects run in one engine, on the driver.
"""
