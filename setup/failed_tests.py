"""Names the tests that failed last, and fails itself where they are too many to run once more.

usage: python setup/failed_tests.py MOST
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "v" / "cache" / "lastfailed"


def main() -> None:
    """Print one line for each test that failed."""
    most = int(sys.argv[1])
    failed = sorted(json.loads(CACHE.read_text())) if CACHE.exists() else []
    for test in failed:
        print(f"failed, to be run once more: {test}")
    if not failed:
        sys.exit("no test failed by itself → see above what ended the run")
    if len(failed) > most:
        sys.exit(f"{len(failed)} tests failed, more than {most} → see above")


if __name__ == "__main__":
    main()
