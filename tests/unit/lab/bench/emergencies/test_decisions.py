"""The benchmark of decisions measures what it says."""

from __future__ import annotations

from penstock_lab.bench.emergencies.decisions import READ, Home


def test_a_home_asks_questions_that_are_granted_and_denied() -> None:
    home = Home(1, 300)
    figures = home.measure()
    assert set(figures) == {
        "after a change",
        "payload",
        *(
            f"{what}, {when}"
            for what in ("read", "write", "changing")
            for when in ("first", "again")
        ),
    }
    assert all(figure > 0 for figure in figures.values())
    assert 0 < home.share_allowed() < 1
    questions = home.draw_questions(READ)
    assert len({(it.principal.user, it.topic, it.payload) for it in questions}) == 300
