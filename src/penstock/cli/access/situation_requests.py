"""Situations by hand: `start`, `end`, `approve`, `withdraw` and `requests`.

    start, end ──▶ recorded with the reason ──▶ (a second person approves) ──▶ carried out

Rules that hold here:
- Nothing is set here: the gateway that detects does it, in order with all that happens.
- Who asks and who approves prove who they are. What they may is `store.detection.break_glass`.
- Somebody is held for as long as is asked for, and approved, in one request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.access.situation_session import Desk, open_desk
from penstock.cli.output import Function, json_option, show, table
from penstock.errors import PenstockError, UsageError, quote

if TYPE_CHECKING:
    from penstock.store.detection.break_glass import Wish
    from penstock.store.detection.tables import Request

WAIT_SECONDS = 10.0
_LOOK_SECONDS = 0.1


class NotDoneError(PenstockError):
    """A request was recorded and could not be carried out."""

    exit_code = 1


def _read_hold(text: str | None) -> int:
    """Return a duration such as 30m in milliseconds."""
    from penstock.cep.scenario_instances import LONGEST_HOLD
    from penstock.config.settings import SECONDS, parse_duration

    if text is None:
        return 0
    try:
        hold = round(parse_duration(text) * 1000)
    except ValueError:
        raise UsageError(
            f"{quote(text)} is not a duration",
            fix=f"write a number with a unit ({', '.join(SECONDS)}), such as 30m",
        ) from None
    if not 0 < hold <= LONGEST_HOLD:
        raise UsageError(
            f"nobody can be held in a situation for {quote(text)}", fix="hold them for 7d at most"
        )
    return hold


def _proof_options(function: Function) -> Function:
    named = click.option(
        "--as",
        "user",
        metavar="USER",
        help="The user who asks, proved by the password; default in open mode: the login name.",
    )
    file = click.option(
        "--password-file",
        type=click.Path(path_type=Path),
        help="A file of mode 0600 that holds the user's password; default: ask for it.",
    )
    return named(file(function))


_reason_option = click.option(
    "--reason", required=True, help="The reason; kept in the history, its digest in the audit log."
)
_wait_option = click.option(
    "--wait",
    type=click.FloatRange(0, 3600),
    default=WAIT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until a gateway has carried it out.",
)


@click.command()
@click.argument("scenario")
@click.argument("subject")
@click.argument("situation")
@_reason_option
@click.option(
    "--hold",
    metavar="DURATION",
    help="Hold the situation against events for this long, such as 30m; then it ends. At most 7d.",
)
@click.option("--yes", is_flag=True, help="Accept SUBJECT even if the name is unknown.")
@_proof_options
@_wait_option
@json_option
def start(
    *,
    scenario: str,
    subject: str,
    situation: str,
    reason: str,
    hold: str | None,
    yes: bool,
    user: str | None,
    password_file: Path | None,
    wait: float,
    as_json: bool,
) -> int:
    """Put SUBJECT into SITUATION of SCENARIO by hand: break the glass.

    Events move SUBJECT on from there as usual, unless the situation is held. The plan's actions
    are not carried out.
    """
    from penstock.store.detection.break_glass import Wish

    wish = Wish(scenario, subject, situation, reason, _read_hold(hold), sure=yes)
    return _ask(wish, (user, password_file), wait, as_json=as_json)


@click.command()
@click.argument("scenario")
@click.argument("subject")
@_reason_option
@_proof_options
@_wait_option
@json_option
def end(
    *,
    scenario: str,
    subject: str,
    reason: str,
    user: str | None,
    password_file: Path | None,
    wait: float,
    as_json: bool,
) -> int:
    """End the situation of SUBJECT in SCENARIO by hand, held or not."""
    from penstock.store.detection.break_glass import Wish

    wish = Wish(scenario, subject, None, reason)
    return _ask(wish, (user, password_file), wait, as_json=as_json)


@click.command()
@click.argument("request")
@_proof_options
@_wait_option
@json_option
def approve(
    *, request: str, user: str | None, password_file: Path | None, wait: float, as_json: bool
) -> int:
    """Approve somebody else's request."""
    with open_desk() as desk:
        actor = desk.authenticate(user, password_file)
        asked = desk.glass.approve(request, actor)
        return _follow(desk, asked, wait, as_json=as_json)


@click.command()
@click.argument("request")
@_proof_options
@json_option
def withdraw(*, request: str, user: str | None, password_file: Path | None, as_json: bool) -> None:
    """Withdraw a request that has not been carried out yet."""
    with open_desk() as desk:
        actor = desk.authenticate(user, password_file)
        asked = desk.glass.withdraw(request, actor)
    show(as_json, _request_data(asked), lambda out: out.print("the request is withdrawn"))


@click.command()
@click.option("--all", "everything", is_flag=True, help="Include those that are settled.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@json_option
def requests(everything: bool, limit: int, as_json: bool) -> None:
    """List manual requests, newest first: those that are pending, or all."""
    with open_desk() as desk:
        found = desk.situations.requests(settled=everything, limit=limit)

    def render(out: Console) -> None:
        shown = table("request", "at (UTC)", "who", "wants", "state", "why")
        for it in found:
            shown.add_row(
                it.request,
                f"{it.at:%Y-%m-%d %H:%M:%S}",
                Text(it.actor),
                Text(_tell_wish(it)),
                it.state.value,
                Text(f"{it.reason} ({it.trouble})" if it.trouble else it.reason),
            )
        if found:
            out.print(shown)
        else:
            out.print("no request waits" if not everything else "there never was a request")

    show(as_json, [_request_data(it) for it in found], render)


def _ask(wish: Wish, who: tuple[str | None, Path | None], wait: float, *, as_json: bool) -> int:
    with open_desk() as desk:
        actor = desk.authenticate(*who)
        asked = desk.request(wish, actor)
        two_persons = desk.config.gateway.emergencies.two_persons
        if not two_persons:
            return _follow(desk, asked, wait, as_json=as_json)
    told = (
        f"recorded; a second person must approve it within 15 minutes:\n"
        f"  penstock situation approve {asked.request} --as USER"
    )
    show(as_json, _request_data(asked), lambda out: out.print(told, soft_wrap=True))
    return 0


def _follow(desk: Desk, asked: Request, wait: float, *, as_json: bool) -> int:
    """Wait until the request is carried out, and say what became of it."""
    asked = _wait(lambda: desk.situations.find(asked.request), wait)
    data = _request_data(asked)
    if asked.state.value == "done":
        show(as_json, data, lambda out: out.print(Text(f"done: {_tell_wish(asked)}", "green")))
        return 0
    if asked.state.value == "ready":
        raise NotDoneError(
            f"the request {asked.request} is recorded, and no gateway has carried it out yet: "
            f"{_find_cause(desk)}",
            fix="start a gateway; after 15 minutes the request expires",
        )
    raise NotDoneError(
        f"the request {asked.request} is {asked.state.value}: {asked.trouble or 'see requests'}",
        fix="`penstock situation requests --all` lists all",
    )


def _wait(look: Callable[[], Request], seconds: float) -> Request:
    until = time.monotonic() + seconds
    while True:
        asked = look()
        if asked.state.value != "ready" or time.monotonic() >= until:
            return asked
        time.sleep(_LOOK_SECONDS)


def _find_cause(desk: Desk) -> str:
    from penstock.store.detection.journal import find_leader

    leader = find_leader(desk.database)
    if leader is None or not leader.is_alive(datetime.now(UTC)):
        return "none detects now"
    return leader.trouble or "it has not answered in time"


def _tell_wish(it: Request) -> str:
    held = f", held for {timedelta(milliseconds=it.hold)}" if it.hold else ""
    return f"{it.scenario} of {it.subject}: {it.situation or 'end'}{held}"


def _request_data(it: Request) -> dict[str, Any]:
    return {
        "request": it.request,
        "at": it.at.isoformat(),
        "scenario": it.scenario,
        "subject": it.subject,
        "situation": it.situation,
        "actor": it.actor,
        "reason": it.reason,
        "state": it.state.value,
        "approver": it.approver,
        "settled": it.settled.isoformat() if it.settled else None,
        "trouble": it.trouble,
        "hold_seconds": it.hold / 1000,
    }
