"""Steps of what people chose and asked for, and of who is signed in at the console."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

_OUT = "opt-out"
_CONTROLS = sa.text(
    "SELECT name, body FROM revisions"
    " WHERE kind = 'control' AND superseded IS NULL AND body IS NOT NULL"
)
_CHANGES = sa.text("SELECT subject, purpose, choice, at FROM consent_changes ORDER BY epoch")
_STATES = sa.text("SELECT subject, control, category, state, version, at FROM rights_states")
_AMEND = sa.text(
    "UPDATE rights_states SET purposes = :purposes"
    " WHERE subject = :subject AND control = :control AND category = :category"
)


def make_consent() -> None:
    """Make the tables of changes of mind, and of what the key behind them is known by."""
    op.create_table(
        "consent_changes",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("mark", sa.String(32), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("subject", sa.String(32), nullable=False),
        sa.Column("purpose", sa.String(256), nullable=False),
        sa.Column("choice", sa.String(8), nullable=False),
        sa.PrimaryKeyConstraint("epoch", name="pk_consent_changes"),
    )
    op.create_index("ix_consent_changes_subject_purpose", "consent_changes", ["subject", "purpose"])
    op.create_table(
        "consent_key",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("fingerprint", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_consent_key"),
    )


def make_requests() -> None:
    """Make the tables of requests, of progress at services, of choices and addresses."""
    op.create_table(
        "rights_requests",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("publisher", sa.String(256), nullable=False),
        sa.Column("idempotency_key", sa.String(128), nullable=False),
        sa.Column("control", sa.String(256), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("categories", sa.Text(), nullable=False),
        sa.Column("subject", sa.String(32), nullable=False),
        sa.Column("sealed", sa.LargeBinary()),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("finished", sa.BigInteger()),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rights_requests"),
        sa.UniqueConstraint(
            "publisher", "idempotency_key", name="uq_rights_requests_publisher_idempotency_key"
        ),
    )
    op.create_index("ix_rights_requests_subject", "rights_requests", ["subject"])
    op.create_index("ix_rights_requests_at", "rights_requests", ["at"])
    op.create_table(
        "rights_progress",
        sa.Column("request", sa.String(32), nullable=False),
        sa.Column("subscriber", sa.String(256), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("action", sa.String(8), nullable=False),
        sa.Column("next_at", sa.BigInteger()),
        sa.Column("deadline", sa.BigInteger()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(32)),
        sa.Column("leased_until", sa.BigInteger()),
        sa.Column("trouble", sa.String(64), nullable=False),
        sa.Column("updated", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("request", "subscriber", name="pk_rights_progress"),
        sa.ForeignKeyConstraint(
            ["request"], ["rights_requests.id"], name="fk_rights_progress_request"
        ),
    )
    op.create_index("ix_rights_progress_next_at", "rights_progress", ["next_at"])
    op.create_index("ix_rights_progress_subscriber", "rights_progress", ["subscriber", "status"])
    op.create_table(
        "rights_states",
        sa.Column("subject", sa.String(32), nullable=False),
        sa.Column("control", sa.String(256), nullable=False),
        sa.Column("category", sa.String(256), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "control", "category", name="pk_rights_states"),
    )
    op.create_table(
        "rights_contacts",
        sa.Column("subject", sa.String(32), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", name="pk_rights_contacts"),
    )


def make_notices() -> None:
    """Make the outbox of notices; say who is notified, and when a service had to be done."""
    op.add_column(
        "rights_requests", sa.Column("notify", sa.Text(), nullable=False, server_default="[]")
    )
    op.add_column("rights_progress", sa.Column("due", sa.BigInteger()))
    op.add_column("rights_progress", sa.Column("completed", sa.BigInteger()))
    op.drop_index("ix_rights_progress_next_at", "rights_progress")
    op.create_index("ix_rights_progress_action_next_at", "rights_progress", ["action", "next_at"])
    op.create_table(
        "rights_notices",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("channel", sa.String(16), nullable=False),
        sa.Column("request", sa.String(32), nullable=False),
        sa.Column("subscriber", sa.String(256), nullable=False),
        sa.Column("address", sa.LargeBinary()),
        sa.Column("next_at", sa.BigInteger()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(32)),
        sa.Column("leased_until", sa.BigInteger()),
        sa.Column("trouble", sa.String(64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("sent", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_rights_notices"),
        sa.ForeignKeyConstraint(
            ["request"], ["rights_requests.id"], name="fk_rights_notices_request"
        ),
    )
    op.create_index("ix_rights_notices_next_at", "rights_notices", ["next_at"])
    op.create_index("ix_rights_notices_request", "rights_notices", ["request"])


def make_profiles() -> None:
    """Say what each choice prohibits; make the history of choices, and the enforcement points.

    What was prohibited stays prohibited. A state of a control that is on record gets the purposes
    that its definition names now, as far as they are prohibited for the person; what no state
    accounts for becomes a choice of the purpose itself.
    """
    purposes = sa.Column("purposes", sa.Text(), nullable=False, server_default="[]")
    op.add_column("rights_states", purposes)
    op.create_table(
        "rights_choices",
        sa.Column("subject", sa.String(32), nullable=False),
        sa.Column("control", sa.String(256), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("purposes", sa.Text(), nullable=False),
        sa.Column("origin", sa.String(256), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "control", "version", name="pk_rights_choices"),
    )
    op.create_table(
        "enforcement_points",
        sa.Column("holder", sa.String(32), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("lease", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("holder", name="pk_enforcement_points"),
    )
    _account_for_prohibitions(op.get_bind())


def _account_for_prohibitions(connection: sa.Connection) -> None:
    controls = {row.name: json.loads(row.body) for row in connection.execute(_CONTROLS)}
    newest: dict[str, dict[str, tuple[str, int]]] = {}
    for row in connection.execute(_CHANGES):
        newest.setdefault(row.subject, {})[row.purpose] = (row.choice, row.at)
    past: list[dict[str, object]] = []
    accounted: set[tuple[str, str]] = set()
    for row in connection.execute(_STATES).all():
        named = controls.get(row.control, {}).get("purposes", ())
        if row.category:
            named = [f"{purpose}/{row.category}" for purpose in named]
        chosen = newest.get(row.subject, {})
        if row.state == _OUT:
            named = [it for it in named if chosen.get(it, ("",))[0] == _OUT]
            accounted.update((row.subject, purpose) for purpose in named)
        key = {"subject": row.subject, "control": row.control}
        amended = {**key, "category": row.category, "purposes": json.dumps(named)}
        connection.execute(_AMEND, amended)
        past.append(
            {**key, "version": row.version, "state": row.state, "at": row.at, "origin": "",
             "purposes": {row.category: named}}
        )  # fmt: skip
    direct: list[dict[str, object]] = []
    for subject, chosen in newest.items():
        for version, (purpose, (choice, at)) in enumerate(sorted(chosen.items()), 1):
            if choice != _OUT or (subject, purpose) in accounted:
                continue
            made = {
                "subject": subject,
                "control": "",
                "state": choice,
                "version": version,
                "at": at,
            }
            direct.append({**made, "category": purpose, "purposes": json.dumps([purpose])})
            past.append({**made, "origin": "", "purposes": {purpose: [purpose]}})
    columns = ("subject", "control", "version", "state", "purposes", "origin", "at")
    history = sa.table("rights_choices", *(sa.column(name) for name in columns))
    states = sa.table(
        "rights_states",
        *map(sa.column, ("subject", "control", "category", "state", "version", "at", "purposes")),
    )
    if direct:
        connection.execute(states.insert(), direct)
    joined: dict[tuple[object, ...], dict[str, object]] = {}
    for it in past:
        same = joined.setdefault(
            (it["subject"], it["control"], it["version"]), {**it, "purposes": {}}
        )
        same["purposes"] = {**same["purposes"], **it["purposes"]}  # type: ignore[dict-item]
    if joined:
        rows = [{**it, "purposes": json.dumps(it["purposes"])} for it in joined.values()]
        connection.execute(history.insert(), rows)


def add_publishers_of_contacts() -> None:
    """Let addresses belong to a front end; whose the old ones are, nobody knows."""
    op.drop_table("rights_contacts")
    op.create_table(
        "rights_contacts",
        sa.Column("subject", sa.String(32), nullable=False),
        sa.Column("publisher", sa.String(256), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "publisher", name="pk_rights_contacts"),
    )


def make_erasures() -> None:
    """Make the tables of erasures: steps that are done, and the evidence of what was erased."""
    op.create_table(
        "rights_erasure_steps",
        sa.Column("request", sa.String(32), nullable=False),
        sa.Column("step", sa.String(300), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request"],
            ["rights_requests.id"],
            name="fk_rights_erasure_steps_request",
        ),
        sa.PrimaryKeyConstraint("request", "step", name="pk_rights_erasure_steps"),
    )
    op.create_table(
        "rights_evidence",
        sa.Column("request", sa.String(32), nullable=False),
        sa.Column("subscriber", sa.String(256), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("entry", sa.BigInteger(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request"], ["rights_requests.id"], name="fk_rights_evidence_request"
        ),
        sa.PrimaryKeyConstraint("request", "subscriber", name="pk_rights_evidence"),
    )


def make_person_keys() -> None:
    """Make the tables of keys under which records of people are sealed."""
    op.create_table(
        "person_keys",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(32), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_person_keys"),
        sa.UniqueConstraint("subject", name="uq_person_keys_subject"),
    )
    op.create_table(
        "person_key_destructions",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_person_key_destructions"),
    )


def index_requests_by_publisher() -> None:
    """Let a page of a publisher's requests be found without a look at all of them."""
    op.create_index("ix_rights_requests_publisher_at", "rights_requests", ["publisher", "at"])


def make_sessions() -> None:
    """Make the tables of sessions and links."""
    op.create_table(
        "console_sessions",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("user", sa.String(256), nullable=False),
        sa.Column("proof", sa.String(64), nullable=False),
        sa.Column("made", sa.BigInteger(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_console_sessions"),
    )
    op.create_index("ix_console_sessions_user", "console_sessions", ["user"])
    op.create_table(
        "console_links",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_console_links"),
    )


def make_registrations() -> None:
    """Make the table of services and front ends that somebody asks to be defined."""
    op.create_table(
        "rights_registrations",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("user", sa.String(256), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("decided_by", sa.String(256)),
        sa.Column("decided", sa.BigInteger()),
        sa.Column("reason", sa.Text(), nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id", name="pk_rights_registrations"),
    )
    op.create_index("ix_rights_registrations_user", "rights_registrations", ["user"])
    op.create_index("ix_rights_registrations_status", "rights_registrations", ["status"])
