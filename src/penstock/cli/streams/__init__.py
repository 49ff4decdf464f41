"""Verbs on streams: feed them, make views of them, detect and forecast, read along."""
