"""What an installation keeps: the settings file, the data folder, its secrets, its store.

Rules that hold here:
- No secret is shown.
- The database is read without making or upgrading anything.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from penstock.config import Config, KeyFile
from penstock.errors import PenstockError, UnavailableError
from penstock.store.database import Database
from penstock.store.engines import Address, create_engine
from penstock.store.migrations import code_version, database_version, is_current
from penstock.supervisor.checks.finding import Finding, Verdict
from penstock.supervisor.part import Part
from penstock.yaml_text import dotted

LITTLE = 1 << 30
TOO_LITTLE = 100 << 20
OTHERS = stat.S_IRWXG | stat.S_IRWXO
CLOCKS_APART = 1.0


def check_folders(config: Config, parts: list[Part]) -> Iterator[Finding]:
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


def check_secrets(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Look at every secret that the settings name."""
    del parts
    for path, secret in config.secrets():
        name = dotted(path)
        if isinstance(secret, KeyFile) and not secret.path.exists():
            detail = f"{secret.path} (made at the first use)"
            yield Finding("secrets", name, Verdict.OK, detail)
            continue
        try:
            secret.read()
        except UnavailableError as error:
            yield Finding("secrets", name, Verdict.WRONG, error.message, error.fix)
        else:
            yield Finding("secrets", name, Verdict.OK, str(secret))


def check_store(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Look at the database without making or upgrading anything."""
    del parts
    try:
        address = Address.parse(config.store.connection_url())
        if address.path is not None and not address.path.exists():
            detail = f"{address.shown} (made at the first use)"
            yield Finding("store", "database", Verdict.OK, detail)
            return
        with Database(address, create_engine(address)) as database:
            yield from _check_database(database)
    except PenstockError as error:
        yield Finding("store", "database", Verdict.WRONG, error.message, error.fix)


def _check_database(database: Database) -> Iterator[Finding]:
    shown = database.address.shown
    with database.read() as connection:
        yield Finding("store", "database", Verdict.OK, f"{shown} answers")
        version = database_version(connection)
        current = is_current(connection, shown)
        if database.is_postgresql:
            asked = time.time()
            there = float(
                connection.scalar(sa.text("SELECT extract(epoch FROM clock_timestamp())"))
            )
            yield _compare_clocks(there - (asked + time.time()) / 2)
    detail = f"version {version}" if version else "none yet"
    later = "" if current else f"; upgraded to {code_version()} at the next use"
    yield Finding("store", "tables", Verdict.OK, detail + later)


def _compare_clocks(apart: float) -> Finding:
    detail = f"{abs(apart):.1f} s apart from ours"
    if abs(apart) <= CLOCKS_APART:
        return Finding("store", "clock", Verdict.OK, detail)
    return Finding(
        "store", "clock", Verdict.WARNING, detail, "synchronise the clocks of both machines (NTP)"
    )
