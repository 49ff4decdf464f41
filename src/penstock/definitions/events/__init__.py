"""Events, actions, plans and scenarios: compiled to a program for detection, and drawn.

    documents → patterns → table of operators → program         plan → layout → diagram

Rules that hold here:
- A program exists only for a valid set; every problem is told with its place.
- Compilation is pure: the same definitions give the same program.
"""
