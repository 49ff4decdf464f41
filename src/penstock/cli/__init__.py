"""The command line: each verb is loaded when it is used.

Rules that hold here:
- Verbs live in rooms by what they are about; `entry.VERBS` says in which module and function.
  `penstock VERB` imports that module alone; a verb that is not called costs nothing at start.
- Rooms stand on `session` and `output`. They do not import each other; all may show a change
  of definitions as `definitions` does.
- Exit codes: 0 ok or allowed, 1 denied or check failed, 2 wrong usage or invalid
  definition, 3 something is unavailable.
- An error quotes the input and names the next step; a traceback never reaches a user
  unless PENSTOCK_DEBUG is set.
"""

from penstock.cli.entry import main

__all__ = ["main"]
