"""Purpose limitation by example: each rule of the requirements, in the mode it belongs to."""

from __future__ import annotations

import pytest

from penstock.errors import UsageError
from penstock.model.purposes import PurposeError, PurposeSet
from penstock.model.topics import TopicError
from penstock.policy.purposes.engine import PurposeEngine
from penstock.policy.purposes.explanations import explain_topic
from penstock.policy.purposes.settings import Mode, PurposeSettings
from tests.support.policy.purpose_sets import parse_purposes
from tests.support.policy.purposes import delivers, passes

ON_SUBSCRIBE = PurposeSettings(filter_on_subscribe=True, filter_on_publish=False)
HYBRID = PurposeSettings(filter_hybrid=True)
LAXER = PurposeSettings(filter_hybrid=True, hybrid_partial=True)
ALL = [PurposeSettings(), ON_SUBSCRIBE, HYBRID]


def make(settings: PurposeSettings | None = None, **reserved: str) -> PurposeEngine:
    engine = PurposeEngine(settings)
    for filter_, text in reserved.items():
        engine.reserve(filter_, parse_purposes(text))
    return engine


def tell(engine: PurposeEngine) -> list[object]:
    """Return what an engine holds."""
    subscriptions = [(it.client, it.text, it.ap, it.active) for it in engine.subscriptions]
    reservations = sorted((filter_, str(held)) for filter_, held in engine.reservations.items())
    return [engine.settings, reservations, subscriptions, len(engine.presubscriptions)]


def accepts(engine: PurposeEngine, filter_: str, ap: str | None) -> bool:
    return engine.subscribe("client", filter_, ap).allowed


@pytest.mark.parametrize("settings", ALL)
def test_the_car_sharing_example(settings: PurposeSettings) -> None:
    location = "country1/area3/vehicle2342/location"
    engine = make(settings)
    engine.reserve(
        f"{location}/#", parse_purposes("{operational,marketing|marketing/individualized}")
    )
    assert engine.subscribe("billing", f"{location}/city", "operational/billing").allowed
    assert delivers(engine, "billing", f"{location}/city")
    refused = engine.subscribe("adverts", f"{location}/city", "marketing/individualized")
    assert refused.allowed is (settings.mode is Mode.ON_PUBLISH)
    assert not delivers(engine, "adverts", f"{location}/city")
    told = explain_topic(engine.reservations, f"{location}/city", "marketing/individualized")
    assert "prohibits" in str(told)


@pytest.mark.parametrize("settings", ALL)
def test_without_a_purpose_reserved_topics_are_closed(settings: PurposeSettings) -> None:
    engine = make(settings, a="{x}")
    engine.subscribe("client", "a")
    engine.subscribe("client", "b")
    assert not delivers(engine, "client", "a")
    assert delivers(engine, "client", "b")


@pytest.mark.parametrize(
    ("reserved", "filter_", "ap", "expected"),
    [
        ({"a/b/#": "{x}"}, "a/+/c", "x", True),
        ({"a/b/#": "{x}"}, "a/+/c", "y", False),  # a partial overlap
        ({"a/b/#": "{x}"}, "a/+", "y", False),  # a/b/# covers a/b
        ({"a/b/#": "{x}"}, "b/#", "y", True),
        ({"a/#": "{x}"}, "a/b", "x", True),
        ({"a/#": "{x}", "a/b": "{|x/y}"}, "a/#", "x", True),  # prohibitions only
        ({"a/#": "{x}", "a/b": "{|x/y}"}, "a/#", "x/y", False),
        ({"a/b": "{|y}"}, "a/#", "x", False),  # nothing allows a/b
        ({"a/#": "{x}", "a/b": "{z}"}, "a/#", "x", False),  # taken at its word
        ({"a/#": "{x}", "a/b": "{|}"}, "a/#", "x", False),  # for nobody
        ({"#": "{|z}", "a/#": "{x}"}, "a/#", "x", True),  # covering ones are one union
        ({"$SYS/#": "{x}"}, "#", None, True),
        ({"$SYS/#": "{x}"}, "$SYS/+", None, False),
    ],
)
def test_filtering_on_subscribe(
    reserved: dict[str, str],
    filter_: str,
    ap: str | None,
    expected: bool,  # noqa: FBT001
) -> None:
    assert accepts(make(ON_SUBSCRIBE, **reserved), filter_, ap) is expected


@pytest.mark.parametrize(
    ("reserved", "filter_", "ap", "expected", "laxer"),
    [
        ({"a/#": "{x}"}, "a/b", "y", False, False),
        ({"a/#": "{x}", "a/b": "{y}"}, "a/#", "y", False, True),  # only a/b is open to it
        ({"a/b": "{x}"}, "a/#", "y", True, True),  # the filter itself is not reserved
        ({"#": "{|y}", "a/b": "{y}"}, "a/#", "y", False, False),  # prohibited everywhere
        ({"a/#": "{x}", "a/b": "{|x}"}, "a/#", "x", True, True),  # a part is not the filter
    ],
)
def test_hybrid_refuses_what_the_combined_purposes_of_the_filter_do_not_allow(
    reserved: dict[str, str],
    filter_: str,
    ap: str | None,
    expected: bool,  # noqa: FBT001
    laxer: bool,  # noqa: FBT001
) -> None:
    assert accepts(make(HYBRID, **reserved), filter_, ap) is expected
    assert accepts(make(LAXER, **reserved), filter_, ap) is laxer


def test_strict_mode() -> None:
    engine = make(PurposeSettings(allow_without_reservation=False), **{"a/#": "{x}"})
    engine.subscribe("client", "#", "x")
    assert delivers(engine, "client", "a/b")
    assert not delivers(engine, "client", "b")
    strict = PurposeSettings(allow_without_reservation=False, filter_on_subscribe=True)
    assert accepts(make(strict, **{"a/#": "{x}"}), "a/+", "x")
    assert not accepts(make(strict, **{"a/#": "{x}"}), "#", "x")


def test_reservations_pause_and_resume_with_the_quality_of_service() -> None:
    engine = make(ON_SUBSCRIBE)
    made = engine.subscribe("client", "a/#", "x", 2, options=8, identifier=7).subscription
    changes = engine.reserve("a/b/c", parse_purposes("{y}"))
    assert changes.paused == (made,)
    assert not delivers(engine, "client", "a/z")
    assert not engine.reserve("a/b/d", parse_purposes("{y}"))
    changes = engine.reserve("a/b/c", parse_purposes("{}"))
    assert not changes
    (resumed,) = engine.reserve("a/b/d", parse_purposes("{x}")).resumed
    assert resumed is made
    assert (resumed.qos, resumed.options, resumed.identifier) == (2, 8, 7)
    assert delivers(engine, "client", "a/b/d")


def test_changing_the_mode_pauses_and_resumes() -> None:
    engine = make(None, **{"a/b": "{y}"})
    made = engine.subscribe("client", "a/#", "x").subscription
    assert delivers(engine, "client", "a/c")
    on_subscribe = engine.settings.change("filter_on_subscribe", value=True)
    assert engine.configure(on_subscribe).paused == (made,)
    assert not engine.configure(on_subscribe.change("auto_persist", value=True))
    assert engine.configure(PurposeSettings()).resumed == (made,)
    assert engine.settings == PurposeSettings()


def test_any_matching_subscription_will_do() -> None:
    engine = make(None, **{"a/b": "{x}"})
    engine.subscribe("client", "a/#", "y")
    engine.subscribe("client", "a/+", "x")
    assert delivers(engine, "client", "a/b")
    assert not delivers(engine, "client", "a/b", filters=["a/#"])
    assert delivers(engine, "client", "a/b", filters=["a/#", "a/+"])
    assert not delivers(engine, "client", "a/b", filters=["not/subscribed"])


@pytest.mark.parametrize(
    ("own", "ap", "expected"),
    [
        ("{x}", "x", True),
        ("{y}", "x", False),  # y is not what the topic allows, x not what the message does
        ("{y}", "y", False),  # a message cannot widen what its topic allows
        ("{x/deep}", "x", False),
        ("{x/deep}", "x/deep", True),
        ("{|x/deep}", "x", True),
        ("{|x/deep}", "x/deep", False),
        ("{|}", "x", False),
    ],
)
@pytest.mark.parametrize("settings", ALL)
def test_messages_narrow_their_topic(
    settings: PurposeSettings,
    own: str,
    ap: str,
    expected: bool,  # noqa: FBT001
) -> None:
    engine = make(settings, a="{x}")
    engine.subscribe("client", "a", ap)
    message = parse_purposes(own)
    assert delivers(engine, "client", "a", message) is expected


def test_a_message_with_purposes_on_an_open_topic() -> None:
    engine = make()
    engine.subscribe("plain", "a")
    engine.subscribe("declared", "a", "x")
    assert delivers(engine, "plain", "a")
    assert not delivers(engine, "plain", "a", PurposeSet.of(["x"]))
    assert not delivers(engine, "plain", "a", PurposeSet.of([], ["z"]))
    assert delivers(engine, "declared", "a", PurposeSet.of([], ["z"]))


@pytest.mark.parametrize("settings", [ON_SUBSCRIBE, HYBRID])
def test_a_refused_subscription_ends_the_one_before(settings: PurposeSettings) -> None:
    engine = make(settings, a="{x}")
    first = engine.subscribe("client", "a", "x").subscription
    second = engine.subscribe("client", "a", "y")
    assert not second.allowed
    assert second.subscription is None
    assert second.replaced is first
    assert first is not None
    assert not passes(engine, first, "a")
    assert not delivers(engine, "client", "a")
    assert engine.unsubscribe("client", "a") is None


def test_presubscriptions_apply_to_plain_subscriptions() -> None:
    engine = make(None, **{"a/#": "{x}"})
    engine.presubscribe("client", "a/#", "x")
    for text in ("a/#", "a/b", "$share/g/a/c"):
        admitted = engine.subscribe("client", text).subscription
        assert admitted is not None
        assert admitted.ap == "x"
    given = engine.subscribe("client", "a/b", "y").subscription
    assert given is not None
    assert given.ap == "y"
    engine.presubscribe("client", "a/#", None)
    plain = engine.subscribe("client", "a/#").subscription
    assert plain is not None
    assert plain.ap is None


def test_nobody_sets_the_purpose_of_another_users_group() -> None:
    engine = PurposeEngine(PurposeSettings())
    assert engine.subscribe("one", "$share/g/a", "x", owner="ann").allowed
    assert engine.subscribe("two", "$share/g/a", "y", owner="bob").allowed
    assert not engine.subscribe("three", "$share/g/a", "y", owner="ann").allowed
    assert engine.subscribe("three", "$share/g/a", "y", owner="bob").allowed


def test_a_group_has_one_purpose() -> None:
    engine = make()
    assert engine.subscribe("one", "$share/g/a", "x").allowed
    refused = engine.subscribe("two", "$share/g/a", "y")
    assert "purpose x" in refused.decision.reason
    assert not engine.subscribe("two", "$share/g/a").allowed
    assert engine.subscribe("two", "$share/g/a", "x").allowed
    assert engine.subscribe("two", "$share/h/a", "y").allowed
    assert not engine.subscribe("one", "$share/g/a", "y").allowed
    assert engine.subscribe("two", "$share/g/a", "y").allowed, "alone, it may change its mind"


def test_sessions_keep_purposes_until_they_end() -> None:
    engine = make(None, a="{x}")
    engine.subscribe("client", "a", "x", 1)
    assert delivers(engine, "client", "a")
    assert [s.text for s in engine.end_session("client")] == ["a"]
    assert not delivers(engine, "client", "a")


def test_questions_about_topics_and_filters() -> None:
    engine = make(None, **{"a/#": "{x}", "a/b": "{y|z}", "c": "{w}"})
    assert str(engine.effective("a/b")) == "{x,y|z}"
    assert engine.effective("d") is None
    assert sorted(filter_ for filter_, _ in engine.affected("a/+")) == ["a/#", "a/b"]
    assert engine.tree() == "a\n  # {x}\n  b {y|z}\nc {w}"
    assert engine.tree(limit=1) == "a\n  # {x}\n… and 2 more"
    assert PurposeEngine().tree() == "nothing is reserved"


@pytest.mark.parametrize("ap", ["", "a,b", "x/"])
def test_malformed_input_changes_nothing(ap: str) -> None:
    engine = make(None, a="{x}")
    engine.subscribe("client", "a", "x")
    before = tell(engine)
    with pytest.raises(PurposeError):
        engine.subscribe("client", "a", ap)
    with pytest.raises(PurposeError):
        engine.presubscribe("client", "a", ap)
    for filter_ in ("a/#/b", "", "/".join("a" * 201), "$share/g"):
        with pytest.raises(TopicError):
            engine.subscribe("client", filter_)
        with pytest.raises(TopicError):
            engine.presubscribe("client", filter_, "x")
    with pytest.raises(TopicError):
        engine.reserve("a+", PurposeSet())
    with pytest.raises(TopicError):
        engine.replace_reservations([("b", PurposeSet()), ("a+", PurposeSet())])
    with pytest.raises(UsageError):
        engine.settings.change("no_such_setting", value=True)
    with pytest.raises(UsageError):
        engine.presubscribe("", "a", "x")
    assert tell(engine) == before


def test_limits() -> None:
    engine = PurposeEngine(reservation_limit=1, presubscription_limit=1)
    engine.reserve("a", PurposeSet())
    engine.reserve("a", PurposeSet.of(["x"]))
    with pytest.raises(UsageError, match="limit of 1"):
        engine.reserve("b", PurposeSet())
    with pytest.raises(UsageError, match="limit of 1"):
        engine.replace_reservations([("b", PurposeSet()), ("c", PurposeSet())])
    engine.presubscribe("client", "a", "x")
    engine.presubscribe("client", "a", "y")
    with pytest.raises(UsageError, match="limit of 1"):
        engine.presubscribe("client", "b", "x")


def test_a_tagged_subscription_is_not_checked_as_long_as_it_is_whole() -> None:
    engine = make(PurposeSettings(filter_hybrid=True, hybrid_tag=True))
    made = engine.subscribe("client", "a/#", "x").subscription
    assert made is not None
    tags = [made.whole]
    assert not engine.reserve("a/b", parse_purposes("{y}"))
    tags.append(made.whole)
    assert not passes(engine, made, "a/b")
    assert passes(engine, made, "a/c")
    engine.reserve("a/b", None)
    tags.append(made.whole)
    assert tags == [True, False, True]


def test_the_refusal_of_a_wide_filter_looks_at_few_reservations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make(ON_SUBSCRIBE)
    engine.replace_reservations((f"a/{n}", PurposeSet.of(["x"])) for n in range(5_000))
    looked = 0
    overlapping = engine.reservations.overlapping

    def count(filter_: str) -> object:
        nonlocal looked
        for effects in overlapping(filter_):
            looked += 1
            yield effects

    monkeypatch.setattr(engine.reservations, "overlapping", count)
    assert not accepts(engine, "#", "y")
    assert looked == 1
    assert accepts(engine, "#", "x")
    assert looked == 5_001


def test_explanations_name_the_deciding_rule() -> None:
    engine = make(ON_SUBSCRIBE, **{"a/#": "{x}", "a/b": "{y|x/z}"})
    refused = engine.subscribe("client", "a/#", "x/z").decision
    assert refused.rule == "reservation a/b{y|x/z}"
    assert {item.rule for item in refused.considered} == {
        "reservation a/#{x}",
        "reservation a/b{y|x/z}",
    }
    assert engine.subscribe("client", "a/c", "w").decision.rule == "reservation a/#{x}"
    silent = explain_topic(engine.reservations, "a/b", None)
    assert silent.considered[0].effect == "asks for a purpose"
    assert explain_topic(engine.reservations, "b", None).rule == "allow_without_reservation"
    assert not delivers(engine, "stranger", "a")
    strict = make(PurposeSettings(allow_without_reservation=False, filter_on_subscribe=True))
    assert strict.subscribe("client", "b").decision.rule == "allow_without_reservation"
    strict.reserve("b/c", parse_purposes("{x}"))
    assert strict.subscribe("client", "b/#", "x").decision.rule == "allow_without_reservation"
    hybrid = make(HYBRID, **{"a/#": "{x}", "a/b": "{|x}"})
    assert hybrid.subscribe("client", "a/b", "x").decision.rule == "reservation a/b{|x}"
    assert hybrid.subscribe("client", "a/+", "y").decision.rule == "reservation a/#{x}"
    many = make(None)
    many.replace_reservations((f"a/{'+/' * n}#", PurposeSet.of(["x"])) for n in range(120))
    decision = explain_topic(many.reservations, "a" + "/b" * 125, "x")
    assert decision.more
    assert len(decision.considered) == 100
