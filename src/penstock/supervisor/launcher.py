"""Becomes the program of a part, after tying its life to the supervisor's.

Run as a script: `python -I -S launcher.py SUPERVISOR_PID COMMAND…`. The kernel is asked
to kill this process when the supervisor dies, however it dies; the request outlasts the
exec. Only the standard library is imported, so that this takes a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CANNOT_RUN = 127


def main(supervisor: int, command: list[str]) -> None:
    """Tie our life to the supervisor's, then become the command."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != supervisor:
        sys.exit("the supervisor died while this part was being started")
    # Python ignores these two, and what is ignored stays so across an exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - there is no shell, and shall be none
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        sys.exit(CANNOT_RUN)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
