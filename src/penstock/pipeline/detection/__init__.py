"""Event detection over long windows: the Spark side of complex event processing.

    records ─→ inputs ─→ tasks, one engine per part ─→ joint engine ─→ commit

A part holds some of the persons; what joins persons runs in one engine, on the driver.
"""
