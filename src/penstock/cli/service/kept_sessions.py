"""What `penstock status` says of sessions that outlive their connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from penstock.cli.session import open_database, refuse_missing_store
from penstock.errors import PenstockError, UnavailableError

if TYPE_CHECKING:
    from penstock.config import Config


def count_kept_sessions(config: Config) -> dict[str, Any]:
    """Count the sessions of all gateways of the store; nothing where there is no store yet."""
    try:
        refuse_missing_store(config)
    except UnavailableError:
        return {}
    from penstock.clock import utc_now
    from penstock.store.session_quotas import count_sessions

    limits = config.gateway.limits
    allowed = {"per_user": limits.sessions_per_user, "per_address": limits.sessions_per_address}
    try:
        with open_database(config) as database, database.read() as connection:
            found = count_sessions(connection, utc_now())
    except PenstockError as error:
        return {"sessions": {"error": error.message, **allowed}}
    counts = {"kept": found.kept, "owners": found.owners, "most": found.most}
    return {"sessions": {**counts, **allowed}}


def render_kept_sessions(console: Console, data: dict[str, Any]) -> None:
    """Write one line, where there is something to say."""
    found = data.get("sessions")
    if found is None:
        return
    if "error" in found:
        said = f"cannot be counted: {found['error']}"
    else:
        said = (
            f"{found['kept']} kept, of {found['owners']} users or addresses; the most for one is "
            f"{found['most']} (limits: {found['per_user']} a user, {found['per_address']} an "
            "address)"
        )
    console.print(Text.assemble(("sessions: ", "bold"), said))
