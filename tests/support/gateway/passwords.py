"""Files of passwords that are cheap to check, and a broker that checks them itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from argon2 import PasswordHasher

from penstock.components import find, processes

_CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def write_passwords(
    path: Path, users: dict[str, str], patterns: dict[str, str] | None = None
) -> Path:
    """Write a file of passwords."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, password in users.items():
        rest = f":{patterns[name]}" if patterns and name in patterns else ""
        lines.append(f"{name}:{_CHEAP.hash(password)}{rest}\n")
    path.touch(mode=0o600)
    path.write_text("".join(lines))
    return path


@contextmanager
def broker_with_passwords(folder: Path) -> Iterator[int]:
    """Run a broker that knows `dora`, whose password is `secret`; give its port."""
    folder.mkdir()
    passwords = folder / "passwords"
    passwords.touch(mode=0o600)
    subprocess.run(
        ["mosquitto_passwd", "-b", str(passwords), "dora", "secret"],
        check=True,
        capture_output=True,
    )
    port = processes.free_port()
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous false\npassword_file {passwords}\nuser root\n"
    )
    started = processes.start(
        [str(find("mosquitto").path), "-c", str(configuration)],
        log=folder / "log",
        ready=lambda: processes.accepts(port),
    )
    try:
        yield port
    finally:
        processes.stop(started)
