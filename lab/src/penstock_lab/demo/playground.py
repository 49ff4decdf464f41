"""A broker and a gateway to try by hand, until Ctrl-C."""

from __future__ import annotations

import contextlib
import importlib.resources
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from penstock.components import processes

TRY = """
The gateway listens on 127.0.0.1:{port}, with the definitions of first-steps. In other terminals:

  mosquitto_sub -p {port} -t '!AP/home/#{{operational/billing}}' -v    receives
  mosquitto_sub -p {port} -t '!AP/home/#{{marketing/analytics}}' -v    receives nothing
  mosquitto_pub -p {port} -t home/power -m 42
  cd {folder} && {penstock} explain home/power

Ctrl-C ends it.
"""


def run(console: Console) -> None:
    """Run the parts in a temporary folder until the user ends them."""
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name:
        folder = Path(name)
        port = processes.free_port()
        (folder / "penstock.yaml").write_text(
            f"gateway:\n  listeners: {{mqtt: {{port: {port}}}}}\n"
            "  monitor_port: 0\n  authentication: {anonymous: true}\n"
            "monitor: {port: 0}\nlog: {level: warning}\n"
        )
        text = importlib.resources.files(__package__).joinpath("first_steps.yaml").read_text()
        (folder / "definitions.yaml").write_text(text)
        penstock = [sys.executable, "-m", "penstock"]
        subprocess.run([*penstock, "apply", "-f", "definitions.yaml"], cwd=folder, check=True)
        parts = subprocess.Popen([*penstock, "up"], cwd=folder)
        console.print(
            TRY.format(port=port, folder=folder, penstock=" ".join(penstock)),
            markup=False,
            soft_wrap=True,
        )
        # Ctrl-C reaches the parts too; they stop in order.
        with contextlib.suppress(KeyboardInterrupt):
            parts.wait()
        processes.stop(parts)
