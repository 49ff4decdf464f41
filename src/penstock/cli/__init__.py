"""The command line: one module per verb, loaded when it is used.

Rules that hold here:
- Verbs live in rooms by what they are about; `entry` says in which. `penstock VERB` imports
  the verb's module and runs its `command`; a verb that is not called costs nothing at start.
- Rooms stand on `session` and `output`. They do not import each other; all may tell of a change
  of definitions as `definitions` does.
- Exit codes: 0 ok or allowed, 1 denied or check failed, 2 wrong usage or invalid
  definition, 3 something is unavailable.
- An error quotes the input and names the next step; a traceback never reaches a user
  unless PENSTOCK_DEBUG is set.
"""

from penstock.cli.entry import main

__all__ = ["main"]
