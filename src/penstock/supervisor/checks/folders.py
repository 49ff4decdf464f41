"""The settings file, the data folder and the room on its disk."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from penstock.config import Config
from penstock.supervisor.checks.finding import Finding, Verdict
from penstock.supervisor.part import Part

LITTLE = 1 << 30
TOO_LITTLE = 100 << 20
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def look(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Look at the file and the folders."""
    if config.file is None:
        yield Finding(
            "settings", "file", Verdict.WARNING, "there is none here; defaults", "penstock init"
        )
    else:
        shown = f"{config.file}; parts: {', '.join(part.name for part in parts)}"
        yield Finding("settings", "file", Verdict.OK, shown)
    yield _data(config.data)
    yield _disk(config.data)


def nearest(path: Path) -> Path:
    """Return the path itself or the first folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _data(path: Path) -> Finding:
    place = nearest(path)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            "settings",
            "data folder",
            Verdict.WRONG,
            f"{place} cannot be written",
            "change its owner, or set `data` to another folder",
        )
    if place != path:
        return Finding("settings", "data folder", Verdict.OK, f"{path} (made at the first use)")
    mode = stat.S_IMODE(place.stat().st_mode)
    if mode & OTHERS:
        return Finding(
            "settings",
            "data folder",
            Verdict.WARNING,
            f"{path} has mode {mode:04o}: others can look into it",
            f"chmod 700 {path}",
        )
    return Finding("settings", "data folder", Verdict.OK, str(path))


def _disk(path: Path) -> Finding:
    free = shutil.disk_usage(nearest(path)).free
    shown = f"{free / (1 << 30):.1f} GiB free for {path}"
    fix = "free some, or move the data folder"
    if free < TOO_LITTLE:
        return Finding("settings", "disk", Verdict.WRONG, shown, fix)
    if free < LITTLE:
        return Finding("settings", "disk", Verdict.WARNING, shown, fix)
    return Finding("settings", "disk", Verdict.OK, shown)
