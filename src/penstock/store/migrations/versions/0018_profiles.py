"""Profiles: what each choice prohibits, the history of choices, and the points that enforce them.

What was prohibited stays prohibited. A state of a control that is on record gets the purposes that
its definition names now, as far as they are prohibited for the person; what no state accounts for
becomes a choice of the purpose itself.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

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


def upgrade() -> None:
    """Add the column and the tables, and account for every prohibition."""
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
