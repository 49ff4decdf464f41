"""Logs with an allow-list of fields, metrics, health."""
