"""Writes accepted messages to the event log."""
