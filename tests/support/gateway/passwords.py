"""Files of passwords that are cheap to check."""

from __future__ import annotations

from pathlib import Path

from argon2 import PasswordHasher

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
