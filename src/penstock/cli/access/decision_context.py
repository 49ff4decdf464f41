"""What `check` and `explain` decide under besides the request, and what they say about Kafka.

Rules that hold here:
- Without `--situation` the answer is the one that the gateway gives that detects. With it the
  question is hypothetical: no situation is there but those that are given.
- What somebody opted out of is told to nobody without the right to administer consent, proved by
  a password; every such question is in the audit log, the person by pseudonym.
- Without `--data-subject` the choices of people are left out of the answer: an answer must not
  tell by a topic what its person chose.
- The answer says which of these it was, and which situations it looked at.
- Kafka decides by roles alone. Purposes, policies and situations are about MQTT topics; who asks
  with them about Kafka is told so. The answer is what the definitions ask for; `penstock rbac
  diff` compares what Kafka has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import Function, show, table
from penstock.cli.session import (
    asking_consent,
    believe_appointments,
    configuration,
    open_consent,
    open_database,
    prove,
    refuse_missing_store,
)
from penstock.errors import UsageError, quote

if TYPE_CHECKING:
    from penstock.definitions import DefinitionSet
    from penstock.policy.access.emergencies import RecordedSituations, Situations
    from penstock.policy.consent import DataSubjects, OptOutIndex
    from penstock.store.database import Database
    from penstock.store.definitions.checked import CheckedDefinitions

NONE = "none"


@dataclass(frozen=True, slots=True)
class Held:
    """A situation that holds, or is supposed to; then nobody knows since when."""

    scenario: str
    subject: str
    """As the store has it."""
    situation: str
    since: datetime | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON data."""
        since = self.since.isoformat() if self.since else None
        return {
            "scenario": self.scenario,
            "subject": self.subject,
            "situation": self.situation,
            "since": since,
        }

    def __str__(self) -> str:
        since = f", since {self.since:%Y-%m-%d %H:%M:%S}" if self.since else ""
        return f"{self.scenario} of {self.subject}: {self.situation}{since}"


@dataclass(frozen=True, slots=True)
class KnownSituations:
    """What a question is asked under."""

    source: str
    """`live` or `supposed`."""
    held: Sequence[Held]
    situations: Situations
    trouble: str = ""
    """Why no situation is known, where none is."""


@contextmanager
def open_questions() -> Iterator[tuple[CheckedDefinitions, Database]]:
    """Open definitions and situations, to ask about them."""
    from penstock.store.definitions.checked import CheckedDefinitions
    from penstock.store.definitions.history import Definitions

    settings = configuration()
    refuse_missing_store(settings)
    with open_database(settings) as database:
        trusts = believe_appointments(settings)
        yield CheckedDefinitions(Definitions(database), trusts=trusts), database


def situation_option(function: Function) -> Function:
    """Add `--situation`; it arrives as the parameter `situation`, to `know_situations` with."""
    return click.option(
        "--situation",
        multiple=True,
        metavar="SCENARIO/SUBJECT=SITUATION",
        help="Suppose that the scenario's subject is in this situation, and nobody else in "
        "any; `none`: nobody is. Default: the situations that hold now.",
    )(function)


def know_situations(
    given: tuple[str, ...], definitions: DefinitionSet, database: Database
) -> KnownSituations:
    """Return the situations that are supposed, or else those that hold now."""
    from penstock.definitions.authorizer import suppose_situations
    from penstock.model.kinds import Scenario
    from penstock.policy.access.emergencies import SituationBoard
    from penstock.store.detection.situations import read_live
    from penstock.store.detection.tables import as_stored

    supposed = parse_situations(given)
    if supposed is not None:
        rows = suppose_situations(definitions, supposed)
        held = [Held(scenario, as_stored(subject), it) for scenario, subject, it in rows]
        return KnownSituations("supposed", held, SituationBoard(rows))
    live = read_live(database, datetime.now(UTC))
    held = [Held(it.scenario, it.subject, it.situation, it.since) for it in live.standing]
    # Where no scenario is defined, nobody has anything to detect.
    trouble = live.trouble if definitions.of(Scenario) else ""
    return KnownSituations("live", [] if trouble else held, live, trouble)


def parse_situations(given: tuple[str, ...]) -> dict[str, str] | None:
    """Read the option; None where it was not given."""
    if not given:
        return None
    if given == (NONE,):
        return {}
    situations: dict[str, str] = {}
    for text in given:
        instance, equals, situation = text.rpartition("=")
        if not equals or not instance or not situation:
            raise UsageError(
                f"--situation {quote(text)} names no situation",
                fix="write --situation SCENARIO/SUBJECT=SITUATION, or `none` alone",
            )
        situations[instance] = situation
    return situations


def tell_seen(known: KnownSituations, witness: RecordedSituations) -> dict[str, Any]:
    """Return as JSON data which situations a decision looked at."""
    seen = witness.seen
    looked = [it for it in known.held if _is_seen(it, seen)]
    return {
        "source": known.source,
        "trouble": known.trouble or None,
        "looked_at": [it.as_dict() for it in looked],
    }


def render_seen(console: Console, known: KnownSituations, witness: RecordedSituations) -> None:
    """Tell which situations a decision looked at."""
    for it in known.held:
        if _is_seen(it, witness.seen):
            console.print(Text(f"{it} ({known.source})"))
    if known.trouble:
        console.print(Text(f"the current situations are unknown: {known.trouble}", "yellow"))


def _is_seen(held: Held, seen: Mapping[tuple[str, str | None], tuple[str, ...]]) -> bool:
    from penstock.store.detection.tables import as_stored

    if held.situation in seen.get((held.scenario, None), ()):
        return True
    return any(
        scenario == held.scenario and subject is not None and as_stored(subject) == held.subject
        for scenario, subject in seen
    )


LEFT_OUT = "what people opted out of is not looked at: name one of them with --data-subject"


@dataclass(frozen=True, slots=True)
class KnownChoices:
    """The opt-outs and choices that the answer may rely on."""

    data_subject: str | None
    opt_outs: OptOutIndex
    prohibited: list[str] = field(default_factory=list)
    """The purposes that the person opted out of."""


def data_subject_options(function: Function) -> Function:
    """Add the options that say whom the question is about, and who asks."""
    named = click.option(
        "--data-subject",
        metavar="PERSON",
        help="The person whom messages are about, as streams name them; their opt-outs "
        "count. Needs --as.",
    )
    return named(asking_consent("asker", required=False)(function))


def know_choices(
    data_subject: str | None, user: str | None, password_file: Path | None
) -> KnownChoices:
    """Return the opt-outs and choices that the answer may rely on; refuse who may not know them."""
    from penstock.policy.consent import NOBODY
    from penstock.store.consent import Choice

    if data_subject is None:
        return KnownChoices(None, NOBODY)
    if user is None:
        raise UsageError(
            "what a person opted out of is not told to everybody",
            fix="say who asks: --as USER, with the right to administer",
        )
    with open_consent() as administration:
        prove(administration, user, password_file)
        standings = administration.show(user, data_subject)
        opt_outs = administration.book.opt_outs().make_index()
    chosen = {it.purpose for it in standings if it.choice is Choice.OPT_OUT and it.purpose}
    return KnownChoices(data_subject, opt_outs, sorted(chosen))


def tell_consent(known: KnownChoices, subjects: DataSubjects, topic: str) -> dict[str, Any]:
    """Say whether opt-outs were looked at, as JSON data; refuse a person the topic contradicts."""
    keys = subjects.of(topic)
    told = {it.fixed for it in keys if it.fixed is not None}
    if known.data_subject is not None and told - {known.data_subject}:
        raise UsageError(
            "the topic tells that its messages are about somebody else",
            fix="let --topic and --data-subject name the same person",
        )
    return {"looked_at": known.data_subject is not None, "found_in": [it.place for it in keys]}


def render_consent(console: Console, consent: dict[str, Any]) -> None:
    """Print what the answer leaves open."""
    if not consent["looked_at"] and consent["found_in"]:
        console.print(Text(LEFT_OUT, "yellow"))
    elif consent["looked_at"] and not consent["found_in"]:
        text = "no stream with a subject reads this topic: no opt-out reaches its messages"
        console.print(Text(text, "yellow"))


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
            "name one thing to ask about",
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
