"""Quotas of kept sessions against a naive model, over drawn series of what clients do."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store.database import Database
from penstock.store.session_state import SessionQuotaError, SessionQuotas
from penstock.store.sessions import CONNECTED, Begin, Forget, Hold, Leave, Return, Sessions
from tests.support.scale import scaled

QUOTAS = SessionQuotas(per_user=2, per_address=1)
WHO = st.sampled_from([("ann", ""), ("bob", ""), ("anonymous", "10.0.0.1"), ("anonymous", "::1")])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "return", "leave", "end", "hold", "forget", "sweep", "wait"]),
        st.sampled_from("uvwxyz"),
        WHO,
        st.sampled_from([1, 60, 3_600]),
    ),
    max_size=30,
)


@dataclass
class Model:
    """Sessions by client: whose they are, and when they end."""

    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    held: dict[str, tuple[tuple[str, str], datetime]] = field(default_factory=dict)

    def kept(self) -> dict[str, tuple[str, str]]:
        return {name: who for name, (who, ends) in self.held.items() if ends > self.now}

    def room(self, client: str, who: tuple[str, str]) -> bool:
        others = [it for name, it in self.kept().items() if name != client]
        return others.count(who) < (1 if who[1] else 2)


@settings(max_examples=scaled(60), deadline=None)
@given(steps=STEPS)
def test_nobody_has_more_sessions_than_they_may_and_nobody_loses_one(
    steps: list[tuple[str, str, tuple[str, str], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = Model()
    with Database.open(f"sqlite:///{tmp_path_factory.mktemp('quotas')}/s.db") as database:
        sessions = Sessions(database, clock=lambda: model.now, quotas=QUOTAS)
        for number, (step, client, who, seconds) in enumerate(steps):
            owner, seen = sessions.owner(client), sessions.load(client)
            until = model.now + timedelta(seconds=seconds)
            if step == "begin":
                previous = owner.holder if owner else None
                begun = Begin(client, who[0], f"h{number}", previous, seconds, who[1])
                if model.room(client, who):
                    sessions.apply([begun])
                    model.held[client] = (who, until + CONNECTED)
                else:
                    with pytest.raises(SessionQuotaError):
                        sessions.apply([begun])
            elif step == "return" and seen is not None:
                sessions.apply([Return(client, f"h{number}", seen, seconds)])
                model.held[client] = (model.held[client][0], until + CONNECTED)
            elif step in {"leave", "hold"} and owner is not None:
                longer = CONNECTED if step == "hold" else timedelta()
                kind = Hold if step == "hold" else Leave
                sessions.apply([kind(client, owner.holder, seconds)])
                model.held[client] = (model.held[client][0], until + longer)
            elif step == "end" and owner is not None:
                sessions.apply([Leave(client, owner.holder, 0)])
                del model.held[client]
            elif step == "forget" and owner is not None:
                sessions.apply([Forget(client, owner.holder)])
                del model.held[client]
            elif step == "sweep":
                sessions.sweep()
            elif step == "wait":
                model.now = until
            kept = model.kept()
            known = {it: sessions.owner(it) for it in "uvwxyz"}
            assert {it for it, found in known.items() if found} == set(kept)
            count = sessions.count()
            of_each = [list(kept.values()).count(it) for it in set(kept.values())]
            assert (count.kept, count.owners, count.most) == (
                len(kept),
                len(of_each),
                max(of_each, default=0),
            )
