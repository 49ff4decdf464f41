"""Longest durations and subject filters against a model that looks at everybody at every moment.

A case is left when its situation has lasted for its longest duration, whatever was saved, loaded
or held in between; it begins only for those whom the filter involves in a case of their own. The
next deadline is the very moment at which time alone changes something: followers rely on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cep.engine import Engine
from penstock.cep.event_binding import Packet
from penstock.cep.program import Program
from penstock.cep.steps import TransitionCause
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from tests.support.scale import scaled

SOURCE = """
{kind: vocabulary, name: v, object: {k: string},
 subject: {uid: string, groups: "list(string)", floor: int, friends: "list(string)"}}
---
{kind: event, name: Up, attributes: {k: string}, packet: {filters: [up], set: {k: o.k}}}
---
{kind: event, name: Down, attributes: {k: string}, packet: {filters: [down], set: {k: o.k}}}
---
{kind: group, name: patients, members: ["user:ann", "user:bob", "user:cid"]}
---
{kind: attributes, name: "user:ann", values: {floor: 1, friends: [ann, bob]}}
---
{kind: attributes, name: "user:bob", values: {floor: 2, friends: [bob]}}
---
{kind: attributes, name: "anyone", values: {floor: 0}}
---
kind: plan
name: p
situations: [{id: Low, level: 1}, {id: High, level: 2}, {id: Past, level: 3}]
evolutions:
  - {event: Up, to: Low}
  - {event: Up, from: Low, to: High}
  - {event: Up, from: Past, to: Past}
  - {event: Down, from: Low}
  - {after: 9s, from: Low}
  - {after: 4s, from: High, to: Past}
  - {after: 7s, from: Past, to: Low}
---
{kind: scenario, name: s, plan: p, attribute: k, subject_filter: 'FILTER'}
"""
NAMES = ("ann", "bob", "cid", "dee")  # nobody knows dee
FILTERS = {
    "true": NAMES,
    "s.uid == c.subject": NAMES,
    '"patients" in s.groups': NAMES[:3],
    "s.floor >= 1": NAMES[:2],
    "s.floor == 0": NAMES[2:],
    # Who has no friends is involved in nothing: cid and dee.
    "c.subject in s.friends": NAMES[:2],
    's.friends.subset(["bob", "cid"])': ("bob",),
    's.uid.startsWith("d") || s.friends.size() > 1': ("ann", "dee"),
    "s.friends.size() / s.floor > 99": (),
}
PROGRAMS: dict[str, Program] = {
    text: compile_program(
        DefinitionSet.build(read_text(SOURCE.replace("FILTER", text)).documents).definitions
    )
    for text in FILTERS
}
TABLE = {
    (None, "up"): "Low",
    ("Low", "up"): "High",
    ("Past", "up"): "Past",
    ("Low", "down"): None,
}
LONGEST: dict[str, tuple[int, str | None]] = {
    "Low": (9_000, None),
    "High": (4_000, "Past"),
    "Past": (7_000, "Low"),
}

steps = st.tuples(
    st.integers(0, 6_000),
    st.sampled_from(["up", "up", "down", "time", "hold", "set", "reload"]),
    st.sampled_from(NAMES),
)
Made = tuple[str, str | None, str | None, int, str]


@dataclass
class Model:
    """Where everybody stands, since when, and until when somebody holds them there."""

    involved: tuple[str, ...]
    cases: dict[str, tuple[str, int]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)

    def due(self) -> list[tuple[int, int, str]]:
        """Return when time alone moves whom: of one moment, ends of holds come first."""
        return sorted(
            (self.held[who], 0, who)
            if who in self.held
            else (since + LONGEST[situation][0], 1, who)
            for who, (situation, since) in self.cases.items()
        )

    def advance(self, now: int) -> None:
        while (due := self.due()) and due[0][0] <= now:
            at, _, who = due[0]
            situation, _ = self.cases[who]
            if who in self.held:
                self.move(who, None, at, TransitionCause.TIME)
            else:
                self.move(who, LONGEST[situation][1], at, TransitionCause.DURATION)

    def move(self, who: str, target: str | None, at: int, cause: TransitionCause) -> None:
        source = self.cases.pop(who, (None, 0))[0]
        self.held.pop(who, None)
        if target is not None:
            self.cases[who] = target, at
        self.made.append((who, source, target, at, cause.value))

    def take(self, word: str, who: str, at: int) -> None:
        self.advance(at)
        source = self.cases.get(who, (None, 0))[0]
        if (source, word) in TABLE and who in self.involved and who not in self.held:
            self.move(who, TABLE[source, word], at, TransitionCause.EVENT)


@settings(max_examples=scaled(200), deadline=None)
@given(st.sampled_from(sorted(FILTERS)), st.lists(steps, max_size=40))
def test_time_leads_on_as_the_model_says(text: str, chosen: list[tuple[int, str, str]]) -> None:
    model, engine = Model(FILTERS[text]), Engine(PROGRAMS[text])
    now = 1_000_000
    for pause, word, who in chosen:
        now += pause
        model.made.clear()
        if word == "reload":
            engine = Engine.load(engine.program, engine.save())
            continue
        if word in {"up", "down"}:
            packet = Packet(word, {"topic": word, "payload": {}}, {}, {"k": who})
            outcome = engine.prepare(packet, now).commit()
            model.take(word, who, now)
        elif word == "time" or who not in model.involved:
            outcome = engine.advance(now)
            model.advance(now)
        else:
            hold = 3_000 if word == "hold" else 0
            outcome = engine.set_situation("s", who, "Past", now, hold)
            model.advance(now)
            model.move(who, "Past", now, TransitionCause.HAND)
            if hold:
                model.held[who] = now + hold
        made = [(it.subject, it.source, it.target, it.at, it.cause.value)
                for it in outcome.transitions]  # fmt: skip
        assert made == model.made
        assert {who: it for _, who, it, _ in engine.situations()} == {
            who: situation for who, (situation, _) in model.cases.items()
        }
        assert engine.next_deadline() == min((at for at, *_ in model.due()), default=None)
        assert engine.next_timer() == engine.next_deadline()


def test_timers_that_were_cancelled_do_not_pile_up() -> None:
    engine = Engine(PROGRAMS["true"])
    for number in range(20_000):
        word = "up" if number % 2 == 0 else "down"
        packet = Packet(word, {"topic": word, "payload": {}}, {}, {"k": f"p{number // 2 % 3}"})
        engine.prepare(packet, 1_000 + number // 100).commit()
    assert len(engine._context._durations) <= 200
