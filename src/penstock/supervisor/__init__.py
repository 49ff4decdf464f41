"""Runs the parts of Penstock as child processes: start, restart, stop, status.

Rules that hold here:
- One supervisor per data folder; its parts never outlive it.
- A part is an entry of `parts`; the supervisor knows none by name.
"""
