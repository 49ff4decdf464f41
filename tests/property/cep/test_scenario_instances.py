"""Which scenarios an event concerns, against a walk through all of them."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.cep.context import EngineContext, Row
from penstock.cep.program import CompiledEvolution, CompiledPlan, CompiledScenario, Program
from penstock.cep.scenario_instances import ScenarioInstances

EVENTS = ("A", "B", "C")
NAMES = ("ann", "bob", "cid")
ATTRIBUTES = ("k", "l")

evolutions = st.builds(
    CompiledEvolution, st.sampled_from(EVENTS), st.none(), st.just("On"), priority=st.integers(0, 2)
)
plans = st.lists(evolutions, max_size=4)
scenarios = st.tuples(
    st.sampled_from(["p", "q"]),
    st.sampled_from(ATTRIBUTES),
    st.none() | st.frozensets(st.sampled_from(NAMES)),
)
rows = st.fixed_dictionaries(
    {}, optional={it: st.sampled_from(NAMES) | st.none() for it in ATTRIBUTES}
)


@given(
    plans,
    plans,
    st.lists(scenarios, max_size=8),
    st.lists(st.tuples(st.sampled_from([*EVENTS, "Other"]), rows), max_size=5),
)
@example(
    [CompiledEvolution("A", None, "On")],
    [],
    [("p", "k", frozenset({"bob"})), ("p", "k", None), ("q", "k", frozenset({"bob"}))],
    [("A", {"k": "bob"})],
)
def test_scenarios_take_their_turns_in_order(
    p: list[CompiledEvolution],
    q: list[CompiledEvolution],
    made: list[tuple[str, str, frozenset[str] | None]],
    told: list[tuple[str, dict[str, str | None]]],
) -> None:
    program = Program(
        plans={
            name: CompiledPlan(name, {"On": 1}, tuple(them)) for name, them in (("p", p), ("q", q))
        },
        scenarios={
            f"s{number}": CompiledScenario(f"s{number}", *it) for number, it in enumerate(made)
        },
    )
    detected = [(event, Row(uid, 0, values)) for uid, (event, values) in enumerate(told)]
    instances = ScenarioInstances(program, EngineContext())
    found = [
        (instance.scenario.name, event, row.uid)
        for instance, event, row in instances.arrange(detected)
        if instance.find(event, row) is not None
    ]
    expected = []
    for name, scenario in sorted(program.scenarios.items()):
        rank = program.plans[scenario.plan].rank()
        known = [item for item in detected if item[0] in rank]
        for event, row in sorted(known, key=lambda item: rank[item[0]]):
            subject = row.values.get(scenario.attribute)
            listed = scenario.subjects is None or subject in scenario.subjects
            if subject is not None and listed:
                expected.append((name, event, row.uid))
    assert found == expected
