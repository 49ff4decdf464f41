"""Who may connect to the gateway: nobody by default, and perhaps everybody by mistake."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config import Config
from penstock.supervisor.checks.finding import Finding, Verdict
from penstock.supervisor.part import Part

TOPIC = "access"


def look(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Look at the ways in that the settings leave open."""
    if not any(part.name == "gateway" for part in parts):
        return
    gateway = config.gateway
    ways = []
    if gateway.authentication.passwords is not None:
        ways.append(f"passwords in {gateway.authentication.passwords}")
    if gateway.authentication.relay:
        ways.append("passwords that the broker checks")
    if any(listener.client_ca is not None for listener in gateway.listeners.values()):
        ways.append("certificates")
    if gateway.authentication.anonymous:
        ways.append("anybody, as the user `anonymous`")
    if not ways:
        yield Finding(
            TOPIC,
            "clients",
            Verdict.WARNING,
            "nobody can connect: no way to authenticate is set",
            "set gateway.authentication.passwords to keys/passwords, then "
            "`penstock password USER`; or for a trial set gateway.authentication.anonymous",
        )
        return
    verdict = Verdict.WARNING if gateway.authentication.anonymous else Verdict.OK
    yield Finding(TOPIC, "clients", verdict, ", ".join(ways))
    if gateway.open_mode:
        yield Finding(
            TOPIC,
            "commands",
            Verdict.WARNING,
            "open mode: every client may reserve and administer",
            "set gateway.open_mode to false, and define rights",
        )
