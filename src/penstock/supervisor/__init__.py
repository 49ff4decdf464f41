"""Runs the parts of Penstock as child processes: start, restart, stop, status.

Rules that hold here:
- One supervisor per data folder; its parts never outlive it.
- A part is an entry of `parts`; the supervisor knows none by name.
"""

from penstock.supervisor.part import HttpProbe, Part, Probe, TcpProbe
from penstock.supervisor.status import PartStatus, RunFolder, SupervisorStatus
from penstock.supervisor.supervisor import Supervisor

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
