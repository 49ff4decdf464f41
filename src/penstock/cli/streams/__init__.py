"""Verbs on streams: feed them, run views, detect and forecast, consume."""
