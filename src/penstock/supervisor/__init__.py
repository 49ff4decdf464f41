"""Runs the parts of Penstock as child processes: start, restart, stop, status."""
