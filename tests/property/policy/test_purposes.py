"""Purpose limitation against a model that works everything out anew, by scanning.

A normal run takes 7,500 steps in seconds; a long one (`make test-long`) more
than 100,000.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.model.purposes import PurposeSet
from penstock.model.topics import covers, matches, overlaps, parse_subscribed
from penstock.policy.purposes.engine import Admission, PurposeEngine, SubscriptionChanges
from penstock.policy.purposes.explanations import explain_topic
from penstock.policy.purposes.settings import SETTING_NAMES, Mode, PurposeSettings
from penstock.policy.purposes.subscriptions import Subscription
from tests.support.policy.purposes import delivers, passes
from tests.support.scale import scaled

ALL_PURPOSES = ["p", "p/q", "p/q/r", "x", "x/y"]
NAMES = ["a", "b", "", "$s"]
# Lists to choose from instead of structures to build: a run then has room for many steps.
# The filters at the beginning are alike, so that rules and topics meet again and again.
MEETING = ["#", "a/#", "a/+", "a/b", "+/b", "a", "+/+/#"]
ALL_FILTERS = MEETING * 10 + [
    "/".join([*levels, *tail])
    for depth in (1, 2, 3)
    for levels in product(["a", "b", "+", "", "$s"], repeat=depth)
    for tail in ([], ["#"])
    if [*levels, *tail] != [""]
]
ALL_TOPICS = [
    "/".join(levels)
    for depth in (1, 2, 3, 4)
    for levels in product([*NAMES, "z"], repeat=depth)
    if levels != ("",)
]
ALL_SETS = [
    PurposeSet.of(aip, pip)
    for aip in ([], ["p"], ["p/q"], ["x"], ["p", "x/y"], ["p/q/r", "x"])
    for pip in ([], ["p"], ["p/q"], ["x/y"])
]
PROBES = ["a", "a/b", "a/b/b", "z/b", "a/", "/b/a", "$s", "$s/b"]
SUBSCRIBED = [*ALL_FILTERS * 2, *(f"$share/g/{text}" for text in ALL_FILTERS)]
CLIENTS = ["one", "two", "three"]
MAYBE_PURPOSES = [*ALL_PURPOSES, None]
MAYBE_SETS = [*ALL_SETS, None, None, None, None]
FLAGS = [False, True]

# What can be done, how often, and the choices for each argument.
KINDS: dict[str, tuple[int, list[list[Any]]]] = {
    "reserve": (12, [ALL_FILTERS, MAYBE_SETS]),
    "subscribe": (12, [CLIENTS, SUBSCRIBED, MAYBE_PURPOSES, [0, 1, 2]]),
    "publish": (6, [[None, None, *ALL_SETS]]),
    "set_setting": (2, [list(SETTING_NAMES), FLAGS]),
    "presubscribe": (4, [CLIENTS, SUBSCRIBED, MAYBE_PURPOSES]),
    "unsubscribe": (2, [CLIENTS, list(range(20))]),
    "end_session": (1, [CLIENTS]),
    "restart": (2, []),
    "reset": (1, []),
    "clear": (1, []),
}
WEIGHTED = [kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]
ACTIONS = st.sampled_from(WEIGHTED).flatmap(
    lambda kind: st.tuples(st.just(kind), st.tuples(*map(st.sampled_from, KINDS[kind][1])))
)


@dataclass
class Model:
    """The requirements in their plainest form: lists and loops, nothing kept."""

    settings: PurposeSettings = field(default_factory=PurposeSettings)
    reservations: dict[str, PurposeSet] = field(default_factory=dict)
    presubscriptions: dict[tuple[str, str], str] = field(default_factory=dict)
    subscriptions: dict[tuple[str, str], str | None] = field(default_factory=dict)

    def allows(self, topic: str, ap: str | None) -> bool:
        sets = [held for filter_, held in self.reservations.items() if matches(filter_, topic)]
        if not sets:
            return self.settings.allow_without_reservation
        line = [] if ap is None else [p for p in ALL_PURPOSES if (ap + "/").startswith(p + "/")]
        allowed = any(purpose in held.aip for held in sets for purpose in line)
        prohibited = any(purpose in held.pip for held in sets for purpose in line)
        return allowed and not prohibited

    def admits(self, filter_: str, ap: str | None, mode: Mode) -> bool:
        """Tell whether a subscription to the filter stands in a mode."""
        around = {f: held for f, held in self.reservations.items() if overlaps(f, filter_)}
        covering = [held for f, held in around.items() if covers(f, filter_)]
        partial = [held for f, held in around.items() if not covers(f, filter_)]
        union = PurposeSet(
            frozenset(p for held in covering for p in held.aip),
            frozenset(p for held in covering for p in held.pip),
        )
        default = self.settings.allow_without_reservation
        if mode is Mode.ON_SUBSCRIBE:
            as_a_whole = union.compatible(ap) if covering else default
            return as_a_whole and all(
                held.union(union).compatible(ap) if held.prohibits_only else held.compatible(ap)
                for held in partial
            )
        if mode is Mode.HYBRID and not self.settings.hybrid_partial:
            return union.compatible(ap) if covering else default
        if mode is Mode.HYBRID:
            if union.effect(ap) < 0:
                return False
            if any(held.compatible(ap) for held in [*covering, *partial]):
                return True
            return default and not covering
        return True

    def purpose_of(self, client: str, text: str) -> str | None:
        """Return the purpose of a plain subscription."""
        filter_ = parse_subscribed(text).filter
        held = {f: ap for (c, f), ap in self.presubscriptions.items() if c == client}
        for exact in (text, filter_):
            if exact in held:
                return held[exact]
        covering = [f for f in held if covers(f, filter_)]
        ranks = {"#": 2, "+": 1}
        covering.sort(key=lambda f: ([ranks.get(level, 0) for level in f.split("/")], f))
        return held[covering[0]] if covering else None

    def subscribe(self, client: str, text: str, ap: str | None) -> bool:
        ap = ap if ap is not None else self.purpose_of(client, text)
        self.subscriptions.pop((client, text), None)
        shared = parse_subscribed(text).group is not None
        peers = [other for (_, there), other in self.subscriptions.items() if there == text]
        if shared and any(other != ap for other in peers):
            return False
        if not self.admits(parse_subscribed(text).filter, ap, self.settings.mode):
            return False
        self.subscriptions[client, text] = ap
        return True

    def active(self) -> set[tuple[str, str]]:
        return {
            (client, text)
            for (client, text), ap in self.subscriptions.items()
            if self.admits(parse_subscribed(text).filter, ap, self.settings.mode)
        }

    def delivers(self, client: str, topic: str, message: PurposeSet | None) -> set[str]:
        """Return the subscriptions of the client that the message may pass through."""
        return {
            text
            for owner, text in self.active()
            if owner == client
            and matches(parse_subscribed(text).filter, topic)
            and self.allows(topic, self.subscriptions[owner, text])
            and narrowed(message, self.subscriptions[owner, text])
        }


def narrowed(message: PurposeSet | None, ap: str | None) -> bool:
    if message is None:
        return True
    if ap is None or message.effect(ap) < 0:
        return False
    return message.compatible(ap) or (not message.aip and bool(message.pip))


def names(subscriptions: tuple[Subscription, ...]) -> set[tuple[str, str]]:
    return {(subscription.client, subscription.text) for subscription in subscriptions}


class PurposeMachine(RuleBasedStateMachine):
    """Drives engine and model side by side."""

    @initialize(
        initial=st.builds(PurposeSettings, *[st.booleans()] * len(SETTING_NAMES)),
        cache_limit=st.sampled_from([0, 2, 12, 1000]),
    )
    def begin(self, initial: PurposeSettings, cache_limit: int) -> None:
        self.cache_limit = cache_limit
        self.initial = initial
        self.engine = PurposeEngine(initial, cache_limit=cache_limit)
        self.model = Model(initial)
        self.seen: Counter[tuple[str, Mode]] = Counter()

    @rule(action=ACTIONS)
    def step(self, action: tuple[str, tuple[Any, ...]]) -> None:
        """Do one thing; a single rule, so that each run has its share of all of them."""
        kind, arguments = action
        getattr(self, kind)(*arguments)

    def expect(self, before: set[tuple[str, str]], changes: SubscriptionChanges) -> None:
        after = self.model.active()
        assert names(changes.paused) == before - after
        assert names(changes.resumed) == after - before
        assert len(changes.paused) + len(changes.resumed) == len(before ^ after)
        self.seen["paused", self.model.settings.mode] += len(changes.paused)
        self.seen["resumed", self.model.settings.mode] += len(changes.resumed)

    def reserve(self, filter_: str, purposes: PurposeSet | None) -> None:
        before = self.model.active()
        if purposes is None:
            self.model.reservations.pop(filter_, None)
        else:
            self.model.reservations[filter_] = purposes
        self.expect(before, self.engine.reserve(filter_, purposes))

    def presubscribe(self, client: str, filter_: str, ap: str | None) -> None:
        self.engine.presubscribe(client, filter_, ap)
        if ap is None:
            self.model.presubscriptions.pop((client, filter_), None)
        else:
            self.model.presubscriptions[client, filter_] = ap

    def subscribe(self, client: str, text: str, ap: str | None, qos: int) -> None:
        had = (client, text) in self.model.subscriptions
        admission: Admission = self.engine.subscribe(client, text, ap, qos)
        assert admission.allowed == self.model.subscribe(client, text, ap)
        assert (admission.replaced is not None) == had
        assert (admission.subscription is not None) == admission.allowed
        if admission.replaced is not None:
            assert not admission.replaced.active
        if admission.subscription is not None:
            assert admission.subscription.qos == qos
            assert admission.subscription.ap == self.model.subscriptions[client, text]
        self.seen["accepted" if admission.allowed else "refused", self.model.settings.mode] += 1

    def unsubscribe(self, client: str, choice: int) -> None:
        held = sorted(text for owner, text in self.model.subscriptions if owner == client)
        text = held[choice % len(held)] if held else "nothing"
        gone = self.engine.unsubscribe(client, text)
        assert (gone is not None) == bool(held)
        self.model.subscriptions.pop((client, text), None)

    def end_session(self, client: str) -> None:
        held = {key for key in self.model.subscriptions if key[0] == client}
        assert names(self.engine.end_session(client)) == held
        for key in held:
            del self.model.subscriptions[key]

    def restart(self) -> None:
        """Gateways stop and start; clients resume their sessions without subscribing."""
        settings_before, held = self.engine.settings, list(self.engine.subscriptions)
        reservations = list(self.engine.reservations.items())
        self.engine = PurposeEngine(settings_before, cache_limit=self.cache_limit)
        assert not self.engine.replace_reservations(reservations)
        for (client, filter_), ap in self.model.presubscriptions.items():
            self.engine.presubscribe(client, filter_, ap)
        for it in held:
            # A paused one is made while nothing forbids it.
            self.engine.configure(PurposeSettings())
            again = self.engine.subscribe(it.client, it.text, it.ap, it.qos, presubscribed=False)
            assert again.subscription is not None
        self.engine.configure(settings_before)

    def set_setting(self, name: str, value: bool) -> None:  # noqa: FBT001
        before = self.model.active()
        self.model.settings = self.model.settings.change(name, value=value)
        self.expect(before, self.engine.configure(self.model.settings))

    def reset(self) -> None:
        before = self.model.active()
        self.model.settings = self.initial
        self.expect(before, self.engine.configure(self.initial))

    def clear(self) -> None:
        before = self.model.active()
        self.model.reservations.clear()
        stored = list(self.model.presubscriptions)
        self.model.presubscriptions.clear()
        for client, filter_ in stored:
            self.engine.presubscribe(client, filter_, None)
        self.expect(before, self.engine.replace_reservations(()))

    def publish(self, message: PurposeSet | None) -> None:
        for client, topic in product(("one", "two", "three", "stranger"), PROBES):
            through = self.model.delivers(client, topic, message)
            assert delivers(self.engine, client, topic, message) == bool(through)
            for held in self.engine.subscriptions.of(client):
                if matches(held.filter, topic):
                    through_it = held.text in through
                    assert passes(self.engine, held, topic, message) == through_it
                    assert delivers(self.engine, client, topic, message, [held.text]) == through_it
                    self.seen["passed" if through_it else "stopped", self.model.settings.mode] += 1

    @invariant()
    def agree(self) -> None:
        assert dict(self.engine.reservations.items()) == self.model.reservations
        assert len(self.engine.presubscriptions) == len(self.model.presubscriptions)
        purposes = {(s.client, s.text): s.ap for s in self.engine.subscriptions}
        assert purposes == self.model.subscriptions
        assert len(self.engine.subscriptions) == len(purposes)
        active = {(s.client, s.text) for s in self.engine.subscriptions if s.active}
        assert active == self.model.active()
        tagging = self.model.settings.hybrid_tag and self.model.settings.mode is Mode.HYBRID
        for held in self.engine.subscriptions:
            whole = tagging and self.model.admits(held.filter, held.ap, Mode.ON_SUBSCRIBE)
            assert held.whole == whole
        for topic, ap in product(PROBES, ("p/q", "x", None)):
            expected = self.model.allows(topic, ap)
            assert self.engine.decide(topic, ap) == expected
            assert self.engine.decide(topic.encode(), ap) == expected
            assert explain_topic(self.engine.reservations, topic, ap).allowed == expected


TestPurposes = PurposeMachine.TestCase
TestPurposes.settings = settings(
    max_examples=scaled(50, long=750),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_long_walks() -> None:
    """Go further and wider than runs that are made to be shrunk; the seed repeats a walk."""
    seen: Counter[tuple[str, Mode]] = Counter()
    for seed in range(scaled(20, long=300)):
        try:
            seen += walk(random.Random(seed), 250)
        except AssertionError as error:
            error.add_note(f"in the walk with seed {seed}")
            raise
    # The walks are worth something only if they meet everything that can happen.
    for what, mode in product(["accepted", "passed", "stopped", "resumed"], Mode):
        assert seen[what, mode] > 20, (what, mode)
    for what, mode in product(["refused", "paused"], [Mode.ON_SUBSCRIBE, Mode.HYBRID]):
        assert seen[what, mode] > 20, (what, mode)
    assert seen["paused", Mode.ON_PUBLISH] == 0


def walk(choice: random.Random, steps: int) -> Counter[tuple[str, Mode]]:
    machine = PurposeMachine()
    initial = PurposeSettings(*(choice.random() < 0.5 for _ in SETTING_NAMES))
    on_subscribe, hybrid = choice.choice([(True, False), (False, True), (False, False)])
    initial = replace(initial, filter_on_subscribe=on_subscribe, filter_hybrid=hybrid)
    machine.begin(initial, choice.choice([0, 2, 12, 1000]))
    for _ in range(steps):
        kind = choice.choice(WEIGHTED)
        machine.step((kind, tuple(map(choice.choice, KINDS[kind][1]))))
        machine.agree()
    return machine.seen


@given(
    st.dictionaries(st.sampled_from(ALL_FILTERS), st.sampled_from(ALL_SETS), max_size=6),
    st.sampled_from(ALL_FILTERS),
    st.sampled_from(MAYBE_PURPOSES),
    st.booleans(),
)
@settings(max_examples=scaled(300), deadline=None)
def test_judging_a_filter_as_a_whole_errs_on_the_safe_side(
    reservations: dict[str, PurposeSet],
    filter_: str,
    ap: str | None,
    strict: bool,  # noqa: FBT001
) -> None:
    """Filtering on subscribe lets no forbidden topic in, and the laxer hybrid keeps none out."""
    for hybrid in (False, True):
        engine = PurposeEngine(
            PurposeSettings(
                allow_without_reservation=not strict,
                filter_on_subscribe=not hybrid,
                filter_hybrid=hybrid,
                hybrid_partial=hybrid,
            )
        )
        for reserved, purposes in reservations.items():
            engine.reserve(reserved, purposes)
        verdicts = {engine.decide(topic, ap) for topic in ALL_TOPICS if matches(filter_, topic)}
        accepted = engine.subscribe("client", filter_, ap).allowed
        if hybrid:
            assert accepted or True not in verdicts
        else:
            assert not accepted or False not in verdicts
