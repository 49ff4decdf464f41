"""What `check` and `explain` answer about views and topics at Kafka: as its ACLs will have it.

Rules that hold here:
- Kafka decides by roles alone. Purposes, policies and situations are about MQTT topics; who asks
  with them about Kafka is told so.
- The answer is what the definitions ask for; `penstock rbac diff` compares what Kafka has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import Function, show, table
from penstock.cli.session import configuration
from penstock.errors import UsageError, quote

if TYPE_CHECKING:
    from penstock.kafka import WantedAccess
    from penstock.policy.decision import Explanation
    from penstock.store.database import Database

MOST_USERS: Final = 12


def kafka_options(function: Function) -> Function:
    """Add `--view` and `--kafka-topic`: names of what is at Kafka."""
    view = click.option("--view", metavar="VIEW", help="Ask about this view, as Kafka decides.")
    topic = click.option(
        "--kafka-topic", metavar="TOPIC", help="Ask about this topic of Kafka, such as a stream's."
    )
    return view(topic(function))


def choose_subject(topic: str | None, view: str | None, kafka_topic: str | None) -> None:
    """Refuse a question about nothing, and one about two things."""
    if sum(it is not None for it in (topic, view, kafka_topic)) != 1:
        raise UsageError(
            "what to ask about is not said, or more than one thing",
            fix="give one: an MQTT topic, --view VIEW, or --kafka-topic TOPIC",
        )


def refuse_others(given: Mapping[str, object]) -> None:
    """Refuse options that say nothing about Kafka."""
    wrong = [option for option, value in given.items() if value]
    if wrong:
        raise UsageError(
            f"{', '.join(wrong)} is for MQTT topics; Kafka decides by users and roles",
            fix="leave it out, or ask about an MQTT topic with --topic",
        )


def explain_access(
    access: WantedAccess, database: Database, user: str, topic: str, action: str
) -> Explanation:
    """Decide as Kafka does once it has what the definitions ask for."""
    from penstock.kafka.acls import user_status
    from penstock.policy.decision import Explanation
    from penstock.store.kafka_users import KafkaUsers

    if user == configuration().kafka.user:
        reason = "it is Penstock's own, a super user of Kafka"
        return Explanation(allowed=True, rule=f"user {user}", reason=reason)
    login = "none"
    if user in access.users:
        row = KafkaUsers(database).user(user)
        login = user_status(access, user, row, behind=False).login
    return access.explain(user, topic, action, login=login)


def find_topic(access: WantedAccess, view: str | None, kafka_topic: str | None) -> str:
    """Return the topic that is asked about."""
    if view is None:
        return kafka_topic or ""
    if view not in access.views:
        names = ", ".join(sorted(access.views)) or "none yet"
        raise UsageError(f"there is no view {quote(view)}", fix=f"views are {names}")
    return access.views[view].topic


def show_readers(access: WantedAccess, topic: str, epoch: int, *, as_json: bool) -> None:
    """Say which roles and users may read and write a topic of Kafka."""
    rows = [
        (role, str(found), sorted(access.users_of([role])))
        for action in ("read", "write")
        for role, found in access.giving(topic, action).items()
    ]
    told = [{"role": role, "may": may, "users": users} for role, may, users in rows]
    data: dict[str, Any] = {"kafka_topic": topic, "epoch": epoch, "roles": told}

    def render(target: Console) -> None:
        target.print(Text.assemble("topic of Kafka ", (topic, "bold")))
        shown = table("role", "may", "users")
        for role, may, holders in rows:
            users = [it for it in holders if not access.users[it].blocked]
            more = [f"{len(users) - MOST_USERS} more"] if len(users) > MOST_USERS else []
            shown.add_row(role, may, ", ".join(users[:MOST_USERS] + more) or "none")
        target.print(shown if rows else "no role may read or write it: Kafka refuses everybody")
        target.print(f"under epoch {epoch}; `penstock rbac diff` compares Kafka", style="dim")

    show(as_json, data, render)
