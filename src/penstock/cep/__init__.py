"""Event types, algebra and incremental detection; the clock is passed in."""
