"""Runs the parts of Penstock as child processes: start, restart, stop, status.

Rules that hold here:
- One supervisor per data folder; its parts never outlive it.
- A part is an entry of `parts`; the supervisor knows none by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.supervisor.parts import HttpProbe, Part, Probe, TcpProbe
    from penstock.supervisor.status import PartStatus, RunFolder, SupervisorStatus
    from penstock.supervisor.supervisor import Supervisor
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "parts": ("HttpProbe", "Part", "Probe", "TcpProbe"),
            "status": ("PartStatus", "RunFolder", "SupervisorStatus"),
            "supervisor": ("Supervisor",),
        },
    )

__all__ = [
    "HttpProbe",
    "Part",
    "PartStatus",
    "Probe",
    "RunFolder",
    "Supervisor",
    "SupervisorStatus",
    "TcpProbe",
]
