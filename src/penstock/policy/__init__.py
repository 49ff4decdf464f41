"""Decisions and their explanation; pure."""
