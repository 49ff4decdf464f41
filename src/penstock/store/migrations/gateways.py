"""Steps of what gateways keep: sessions, wills, and the situations of emergency scenarios."""

import time

import sqlalchemy as sa
from alembic import op

_WEEK = 7 * 86_400


def make_sessions() -> None:
    """Make the tables of sessions and of their subscriptions."""
    op.create_table(
        "sessions",
        sa.Column("client", sa.String(64), nullable=False),
        sa.Column("principal", sa.String(256), nullable=False),
        sa.Column("last_number", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("client", name="pk_sessions"),
    )
    op.create_index("ix_sessions_expires", "sessions", ["expires"])
    op.create_table(
        "session_subscriptions",
        sa.Column("client", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("filter", sa.Text(), nullable=False),
        sa.Column("purpose", sa.String(256), nullable=True),
        sa.Column("options", sa.Integer(), nullable=False),
        sa.Column("identifier", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["client"],
            ["sessions.client"],
            name="fk_session_subscriptions_client",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("client", "number", name="pk_session_subscriptions"),
    )


def add_session_holders() -> None:
    """Give sessions a holder; those there are have none until they are taken up again."""
    holder = sa.Column("holder", sa.String(32), nullable=False, server_default="")
    op.add_column("sessions", holder)


def make_situations() -> None:
    """Make the tables of detection, situations, transitions and requests by hand."""
    op.create_table(
        "detectors",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("holder", sa.String(32), nullable=False),
        sa.Column("place", sa.String(256), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("held_until", sa.BigInteger(), nullable=False),
        sa.Column("trouble", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_detectors"),
    )
    op.create_table(
        "detection_snapshots",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("through", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_detection_snapshots"),
    )
    op.create_table(
        "detection_steps",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", "number", name="pk_detection_steps"),
    )
    op.create_table(
        "situations",
        sa.Column("scenario", sa.String(256), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("situation", sa.String(256), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scenario", "subject", name="pk_situations"),
    )
    op.create_table(
        "transitions",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("scenario", sa.String(256), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("source", sa.String(256), nullable=True),
        sa.Column("target", sa.String(256), nullable=True),
        sa.Column("event", sa.String(256), nullable=True),
        sa.Column("cause", sa.String(16), nullable=False),
        sa.Column("request", sa.String(32), nullable=True),
        sa.PrimaryKeyConstraint("number", name="pk_transitions"),
    )
    op.create_index("ix_transitions_subject", "transitions", ["subject"])
    op.create_index("ix_transitions_at", "transitions", ["at"])
    op.create_table(
        "situation_requests",
        sa.Column("request", sa.String(32), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("scenario", sa.String(256), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("situation", sa.String(256), nullable=True),
        sa.Column("actor", sa.String(256), nullable=False),
        sa.Column("reason", sa.String(2000), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("approver", sa.String(256), nullable=True),
        sa.Column("settled", sa.BigInteger(), nullable=True),
        sa.Column("trouble", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("request", name="pk_situation_requests"),
    )
    op.create_index("ix_situation_requests_state", "situation_requests", ["state"])


def add_detector_addresses() -> None:
    """Say where detectors are reached, and how long others rely on what they replicated."""
    address = sa.Column("address", sa.String(300), nullable=False, server_default="")
    told_for = sa.Column("told_for", sa.Integer(), nullable=False, server_default="0")
    op.add_column("detectors", address)
    op.add_column("detectors", told_for)


def make_wills() -> None:
    """Make the tables of wills, and of the gateways that keep them."""
    op.create_table(
        "will_keepers",
        sa.Column("keeper", sa.String(32), nullable=False),
        sa.Column("place", sa.String(256), nullable=False),
        sa.Column("held_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("keeper", name="pk_will_keepers"),
    )
    op.create_table(
        "wills",
        sa.Column("number", sa.String(32), nullable=False),
        sa.Column("keeper", sa.String(32), nullable=False),
        sa.Column("client", sa.String(64), nullable=False),
        sa.Column("principal", sa.String(256), nullable=False),
        sa.Column("expiry", sa.BigInteger(), nullable=False),
        sa.Column("packet", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_wills"),
    )
    op.create_index("ix_wills_keeper", "wills", ["keeper"])
    op.create_index("ix_wills_client", "wills", ["client"])


def add_situation_holds() -> None:
    """Let requests hold somebody, in milliseconds; none that was made before does."""
    hold = sa.Column("hold", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("situation_requests", hold)


def make_persisted_subscriptions() -> None:
    """Make the table of what PERSIST found: nothing was persisted before."""
    op.create_table(
        "persisted_subscriptions",
        sa.Column("client", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("filter", sa.Text(), nullable=False),
        sa.Column("purpose", sa.String(256), nullable=True),
        sa.Column("options", sa.Integer(), nullable=False),
        sa.Column("identifier", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["client"],
            ["sessions.client"],
            name="fk_persisted_subscriptions_client",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("client", "number", name="pk_persisted_subscriptions"),
    )


def add_session_quotas() -> None:
    """Add the address of anonymous clients, hidden; sessions without an end get one in a week."""
    address = sa.Column("address", sa.String(64), nullable=False, server_default="")
    op.add_column("sessions", address)
    op.create_index("ix_sessions_principal_address", "sessions", ["principal", "address"])
    sessions = sa.table("sessions", sa.column("expires", sa.BigInteger()))
    ends = int((time.time() + _WEEK) * 1_000_000)
    op.execute(sessions.update().where(sessions.c.expires.is_(None)).values(expires=ends))


def make_client_requests() -> None:
    """Make the tables of what people ask gateways about their clients."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "client_requests",
        sa.Column("number", number, autoincrement=True, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("verb", sa.String(8), nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_client_requests"),
        # Numbers are never reused: a gateway remembers the last that it has answered.
        sqlite_autoincrement=True,
    )
    op.create_table(
        "client_answers",
        sa.Column("request", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("gateway", sa.String(32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("request", "gateway", name="pk_client_answers"),
    )


def add_content_filters() -> None:
    """Add what events a subscription is for; those there are, are for all."""
    for table in ("session_subscriptions", "persisted_subscriptions"):
        op.add_column(table, sa.Column("content", sa.Text(), nullable=True))


def make_group_keys() -> None:
    """Make the tables of the keys of key groups, and of the groups themselves."""
    op.create_table(
        "group_keys",
        sa.Column("resource", sa.String(32), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("resource", "generation", name="pk_group_keys"),
    )
    op.create_table(
        "key_groups",
        sa.Column("resource", sa.String(32), nullable=False),
        sa.Column("side", sa.String(16), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("resource", "side", name="pk_key_groups"),
    )
    op.create_table(
        "group_key_changes",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_group_key_changes"),
    )


def make_detection_erasures() -> None:
    """Make the table of what detection is asked to forget of people."""
    op.create_table(
        "detection_erasures",
        sa.Column("request", sa.String(32), nullable=False),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("attributes", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("settled", sa.BigInteger()),
        sa.Column("forgotten", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("request", name="pk_detection_erasures"),
    )
    op.create_index("ix_detection_erasures_settled", "detection_erasures", ["settled"])


def add_clients_away() -> None:
    """Add who is away from a session; of those there are, nobody can tell."""
    op.add_column("sessions", sa.Column("away", sa.Text(), nullable=True))


def make_spent_nonces() -> None:
    """Make the table of nonces that were used."""
    op.create_table(
        "spent_nonces",
        sa.Column("nonce", sa.String(96), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("nonce", name="pk_spent_nonces"),
    )
    op.create_index("ix_spent_nonces_until", "spent_nonces", ["until"])
