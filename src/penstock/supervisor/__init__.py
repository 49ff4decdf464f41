"""Runs the parts of Penstock as child processes: start, restart, stop, status.

Rules that hold here:
- One supervisor per data folder; its parts never outlive it.
- A part plugs in as a module in `parts`; the supervisor knows none by name.
"""

from penstock.supervisor.part import Part
from penstock.supervisor.probes import HttpProbe, Probe, TcpProbe
from penstock.supervisor.status import PartStatus, RunFolder, Status
from penstock.supervisor.supervisor import Supervisor

__all__ = [
    "HttpProbe",
    "Part",
    "PartStatus",
    "Probe",
    "RunFolder",
    "Status",
    "Supervisor",
    "TcpProbe",
]
