"""`log`: what the processes say, and how."""

from __future__ import annotations

from typing import Literal

from penstock.config.settings import Settings, setting


class LogSettings(Settings):
    """What the processes say on standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The least important lines that are written."
    )
    format: Literal["auto", "json", "console"] = setting(
        "auto",
        "One JSON object per line, lines for people, or whichever fits the place they go to.",
    )
