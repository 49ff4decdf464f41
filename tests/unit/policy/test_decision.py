"""Decisions as text and data."""

from __future__ import annotations

from penstock.policy.decision import CONSIDERED_LIMIT, Considered, Explanation, list_considered


def test_a_decision_is_its_outcome_and_says_why() -> None:
    considered, more = list_considered([Considered("rule a", "allows")])
    decision = Explanation(allowed=True, rule="rule a", reason="it allows x", considered=considered)
    assert decision
    assert not more
    assert str(decision) == "allowed by rule a: it allows x\n  rule a: allows"
    assert decision.as_dict() == {
        "allowed": True,
        "rule": "rule a",
        "reason": "it allows x",
        "considered": [{"rule": "rule a", "effect": "allows"}],
        "more": False,
        "situation": None,
    }


def test_long_lists_are_cut() -> None:
    considered, more = list_considered(Considered(str(n), "") for n in range(1_000))
    assert len(considered) == CONSIDERED_LIMIT
    assert more
    cut = Explanation(allowed=False, rule="r", reason="why", considered=considered, more=more)
    assert not cut
    assert str(cut).endswith("…")
