"""Whether this machine has what an installation needs: the findings of `penstock doctor`.

Each check looks at one thing and yields findings. None of them changes anything: no
file is made, no table is upgraded, no port stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.config import Config
from penstock.supervisor.checks.finding import Finding, Verdict
from penstock.supervisor.checks.installation import (
    check_clock,
    check_files,
    check_folders,
    check_programs,
    check_secrets,
    check_store,
)
from penstock.supervisor.checks.network import check_access, check_ports
from penstock.supervisor.part import Part

CHECKS: tuple[Callable[[Config, list[Part]], Iterator[Finding]], ...] = (
    check_programs,
    check_folders,
    check_secrets,
    check_files,
    check_store,
    check_ports,
    check_access,
    check_clock,
)


def run_checks(config: Config, parts: list[Part]) -> list[Finding]:
    """Run all checks; return the findings in the order in which to fix them."""
    return [finding for check in CHECKS for finding in check(config, parts)]


__all__ = ["Finding", "Verdict", "run_checks"]
