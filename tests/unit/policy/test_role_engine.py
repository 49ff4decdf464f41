"""Sessions with roles: whom a change concerns, the time, choices, limits, explanations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.model.role_terms import Variable, parse_term
from penstock.policy import role_derivation
from penstock.policy.role_engine import Appointment, RoleEngine
from penstock.policy.role_program import (
    APPOINTMENT,
    ROLE,
    ActivationRule,
    Atom,
    Constraint,
    Program,
    RoleShape,
)

P, Q = Variable("p"), Variable("q")
NIGHT = 22


def is_day(_s: Mapping[str, Any], e: Mapping[str, Any], _r: Mapping[str, str]) -> bool:
    return bool(e["time"].hour < NIGHT)


def make_engine(*, timed: bool = False) -> RoleEngine:
    engine = RoleEngine()
    constraints = (Constraint(is_day, membership=True, timed=True),) if timed else ()
    engine.replace(
        Program(
            {
                "doctor": RoleShape(("p",), excludes=("auditor",)),
                "treating": RoleShape(("p", "q"), includes=("staff",)),
                "staff": RoleShape(),
                "auditor": RoleShape(),
            },
            (
                ActivationRule(
                    "doctors",
                    "doctor",
                    (P,),
                    (Atom((APPOINTMENT, "qualified"), (P,), membership=True),),
                    constraints,
                ),
                ActivationRule(
                    "treating",
                    "treating",
                    (P, Q),
                    (
                        Atom((ROLE, "doctor"), (P,), membership=True),
                        Atom((APPOINTMENT, "treats"), (P, Q)),
                    ),
                ),
            ),
        )
    )
    engine.put(Appointment("q", ("qualified", ("ann",)), "user:ann", valid_until=10_000))
    engine.put(Appointment("t", ("treats", ("ann", "p1")), "group:ward"))
    return engine


WARD = frozenset({"ward"})


def names(engine: RoleEngine, user: str = "ann", client: str | None = "c") -> list[str]:
    return engine.activate(user, client, WARD, {}).names()


def test_a_session_keeps_what_is_not_watched_and_loses_what_is() -> None:
    engine = make_engine()
    engine.open("ann", "c", None)
    assert names(engine) == ["doctor", "staff", "treating"]
    engine.remove("t")  # no membership condition: looked at when it was activated
    assert engine.stale() == [("ann", "c")]
    assert names(engine) == ["doctor", "staff", "treating"]
    assert names(engine, client="other") == ["doctor"]  # without the session all counts
    assert engine.due == 10_000
    assert not engine.advance(9_999)
    assert engine.advance(10_000)
    assert engine.stale() == [("ann", "c")]
    assert names(engine) == []
    engine.put(Appointment("q", ("qualified", ("ann",)), "user:ann"))
    assert names(engine) == ["doctor"]  # the other one ended for good
    engine.close("ann", "c")
    assert engine.stale() == []


def test_a_change_concerns_the_sessions_of_its_holder_alone() -> None:
    engine = make_engine()
    for user in ("ann", "bob"):
        engine.open(user, user, None)
        names(engine, user, user)
    engine.put(Appointment("x", ("qualified", ("bob",)), "user:bob"))
    assert engine.stale() == [("bob", "bob")]
    engine.put(Appointment("y", ("treats", ("bob", "p2")), "group:ward"))
    assert sorted(engine.stale()) == [("ann", "ann"), ("bob", "bob")]
    assert names(engine, "bob", "bob") == ["doctor", "staff", "treating"]


def test_constraints_on_the_time_are_looked_at_once_a_second() -> None:
    engine = make_engine(timed=True)
    engine.remove("q")
    engine.put(Appointment("q", ("qualified", ("ann",)), "user:ann"))
    hour = 3_600_000
    engine.advance(21 * hour + 500)
    engine.open("ann", "c", None)
    assert "doctor" in names(engine)
    assert engine.due == 21 * hour + 1000
    assert not engine.advance(21 * hour + 600)
    assert engine.stale() == []
    assert not engine.advance(22 * hour)  # nobody but the session
    assert engine.stale() == [("ann", "c")]
    assert names(engine) == []
    assert engine.due is not None  # it may become day again
    engine.close("ann", "c")
    assert engine.due is None


def look_at(at: Mapping[str, Any]) -> bool:
    return bool(at["time"].minute % 2)


def test_what_time_says_the_same_of_everybody_is_looked_at_once_for_all() -> None:
    """A session is stale where such a constraint says otherwise, or where it looks at more."""
    asked = 0

    def common(_s: Mapping[str, Any], e: Mapping[str, Any], _r: Mapping[str, str]) -> bool:
        nonlocal asked
        asked += 1
        return look_at(e)

    def own(_s: Mapping[str, Any], e: Mapping[str, Any], _r: Mapping[str, str]) -> bool:
        return look_at(e)

    engine = RoleEngine()
    constraints = {
        "odd": Constraint(common, membership=True, timed=True, common=True),
        "mine": Constraint(own, membership=True, timed=True),
    }
    engine.replace(
        Program(
            {name: RoleShape() for name in constraints},
            tuple(
                ActivationRule(name, name, (), (Atom((APPOINTMENT, name), ()),), (it,))
                for name, it in constraints.items()
            ),
        )
    )
    minute = 60_000
    engine.advance(minute)
    people = [f"p{number}" for number in range(100)]
    for user in people:
        engine.put(Appointment(user, ("odd", ()), f"user:{user}"))
        engine.open(user, "c", None)
        assert names(engine, user) == ["odd"]
    engine.put(Appointment("eve", ("mine", ()), "user:eve"))
    engine.open("eve", "c", None)
    names(engine, "eve")
    # What was seen before the first second began is looked at once more.
    engine.advance(minute + 1000)
    for user, client in engine.stale():
        names(engine, user, client)
    asked = 0
    engine.advance(minute + 2000)
    assert (engine.stale(), asked) == ([("eve", "c")], 1)
    names(engine, "eve")
    engine.advance(2 * minute)
    assert sorted(engine.stale()) == sorted([("eve", "c"), *((user, "c") for user in people)])
    assert [names(engine, user) for user in (*people, "eve")] == [[]] * 101


def test_what_held_within_a_second_ends_with_it() -> None:
    """Between two looks a constraint was another: who was looked at then is looked at again."""
    engine = make_engine()
    within = Constraint(
        lambda _s, e, _r: e["time"].microsecond > 0, membership=True, timed=True, common=True
    )
    rule = ActivationRule("r", "staff", (), (), (within,))
    engine.replace(Program({"staff": RoleShape()}, (rule,)))
    engine.open("ann", "c", None)
    engine.advance(20_000)
    assert names(engine) == []
    engine.advance(21_000)
    assert names(engine) == []
    engine.advance(21_500)
    engine.open("bob", "c", None)
    assert names(engine, "bob") == ["staff"]
    engine.advance(22_000)
    assert ("bob", "c") in engine.stale()
    assert names(engine, "bob") == []
    engine.advance(23_000)
    assert engine.stale() == []


def test_a_choice_limits_what_counts_and_solves_exclusions() -> None:
    engine = make_engine()
    engine.assign("ann", ("auditor",))
    assert names(engine, client=None) == []  # both exclude each other, and nobody chose
    told = list(engine.explain(engine.activate("ann", None, WARD, {}), {"doctor", "treating"}))
    assert "exclude each other" in told[0].effect
    assert "needs role doctor" in told[1].effect
    engine.open("ann", "c", ["auditor"])
    assert names(engine) == ["auditor"]
    engine.open("ann", "c", ["treating"])
    assert names(engine) == ["staff", "treating"]  # the doctor is needed, and not used
    active = engine.activate("ann", "c", WARD, {})
    (told_doctor,) = engine.explain(active, {"doctor"})
    assert told_doctor.effect == "active, but not chosen for the session"
    engine.open("ann", "c", ["nobody"])
    assert names(engine) == []


def test_nobody_has_no_roles_and_more_than_can_be_watched_are_none(monkeypatch: Any) -> None:
    engine = make_engine()
    assert engine.activate(None, "c", WARD, {}).names() == []
    monkeypatch.setattr(role_derivation, "INSTANCE_LIMIT", 2)
    assert names(engine) == []
    (told,) = engine.explain(engine.activate("ann", None, WARD, {}), {"doctor"})
    assert "more than 2" in told.effect


def test_subjects_with_values_mean_instances() -> None:
    engine = make_engine()
    texts = ['role:treating(_, "p1")', 'role:treating(_, "p2")', "role:treating(_, _)"]
    engine.watch((text, parse_term(text.removeprefix("role:"))) for text in texts)
    found = set(engine.subjects(engine.activate("ann", None, WARD, {})))
    assert found == {"role:doctor", "role:staff", "role:treating", texts[0], texts[2]}


def test_another_engine_adopts_sessions_and_choices_and_nothing_active() -> None:
    engine = make_engine()
    engine.advance(5)
    engine.open("ann", "c", ["doctor"])
    names(engine)
    engine.remove("q")
    other = make_engine()
    other.remove("t")
    other.adopt(engine)
    assert other.now == 5
    assert names(other) == ["doctor"]
