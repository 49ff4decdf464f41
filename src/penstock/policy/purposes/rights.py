"""Who may claim which purpose, give purpose commands, and define event types.

    PUBLISH !DEFINE/ward-vitals  {from, fields}  ──▶ right to define it? ──▶ new, or an extension?
                                                      └──▶ checked with all definitions ──▶ stored

Rules that hold here:
- A right to define names streams and the topics below which their messages come. Both must cover
  what is defined: the name is that of a topic of the event log, where others may have rights.
- What a type that is there says stays: its fields, who it is about, where its records come from.
  By command it gets further topics and optional fields, and loses nothing: whoever made a field
  sensitive, or named the data subject, is not overruled by who may define. A message is read by
  the first pattern that fits, and a field that some pattern fills is filled by no payload: so
  further patterns come behind, and fill no field that none filled before.
- Topics have one type, as far as clients say: a second one could ask for fields that nobody sends,
  turn attributes that others filter by into something else, or keep records that no erasure finds.
- How records are kept (`source`, `format`, `adds`, `erasure`, `tolerance`) is not for clients.
- As long as no purpose is declared, every purpose may be used. From the first declaration
  on a subscription is made for a declared one, or for none.
- That holds for what clients have subscribed to before, too: a purpose that nobody has
  declared, or that is no longer declared, lets nothing pass.
- A right to a purpose is a right to all purposes below it, and to none above it: who may
  claim `care` may claim `care/nursing`, and who may claim `care/nursing` not `care`.
- Nobody may claim what is not given to them. In open mode everybody may claim everything.
- Who they are is said by their subjects: `user:NAME`, `client:ID`, `group:NAME`, `anyone`.
- Whether a right is asked for at all is a setting (`claims_need_right`): the authorizer
  looks at it before it asks here.
- A right to a filter is a right to every filter it covers, and to no other: who may reserve
  `a/+` may not reserve `a/#`. A leading wildcard gives no right to `$…`.
- Nobody has a right that is not given. The open mode gives all of them to everybody; it is
  for trials.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from penstock.errors import InvalidError, PenstockError, UsageError, quote
from penstock.model.document import Document, Key
from penstock.model.kinds import Purpose, Stream
from penstock.model.kinds.fields import named_levels, plain_filter
from penstock.model.purposes import lineage
from penstock.model.topics import check_filter, covers, overlaps, parse_subscribed
from penstock.policy.decision import Considered, Explanation, Part, list_considered
from penstock.policy.purposes.commands import (
    Advertise,
    Command,
    DefineType,
    Presubscribe,
    Reserve,
    ShowAffected,
    ShowCombined,
)

TYPE_LIMIT: Final = 1_000
"""How many streams there may be whose names one grant covers, for another to be defined by it."""
_REST: Final = "*"
_SHOWN: Final = 3


class TypeGrant(NamedTuple):
    """Streams that somebody may define, and the filters below which their messages come."""

    stream: str
    """A name, or the beginning of names with `*` behind it."""
    below: tuple[str, ...]

    def names(self, stream: str) -> bool:
        """Tell whether it is about a stream."""
        if self.stream.endswith(_REST):
            return stream.startswith(self.stream.removesuffix(_REST))
        return stream == self.stream

    def admits(self, stream: str, filters: Iterable[str]) -> bool:
        """Tell whether a stream whose messages come from these topics may be defined."""
        return self.names(stream) and all(
            any(covers(there, it) for there in self.below) for it in filters
        )

    def __str__(self) -> str:
        return f"{self.stream} below {', '.join(self.below)}"


def check_extension(held: Document | None, body: Mapping[str, Any]) -> None:
    """Refuse what a type that is there would lose, or would say otherwise."""
    if held is None:
        return
    before = Stream.model_validate({"name": held.name, **held.body})
    try:
        after = Stream.model_validate({"name": held.name, **body})
    except ValidationError:
        return  # the check of all definitions says what is wrong
    now = {it.name: it for it in after.fields}
    for field in before.fields:
        if now.get(field.name) != field:
            raise _stays(f"the field {field.name!r}")
    known = {it.name for it in before.fields}
    for field in after.fields:
        if field.name not in known and not field.optional:
            raise UsageError(
                f"the field {field.name!r} is new, and messages that are sent do not have it",
                fix="make it optional",
            )
    if after.patterns[: len(before.patterns)] != before.patterns:
        raise _stays("what stands under `from`, in its order and before what is new,")
    filled = _levels(after.patterns) - _levels(before.patterns)
    taken = sorted(filled & known)
    if taken:
        raise _stays(f"that no topic fills the field {taken[0]!r}")
    free = {"fields", "patterns", "description"}
    for name in Stream.model_fields:
        if name not in free and getattr(before, name) != getattr(after, name):
            raise _stays(f"what it says under `{name}`")


def check_topics(
    name: str, filters: Iterable[str], stored: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse new topics that feed another type; `stored` has all streams by their names."""
    held = {plain_filter(it) for it in stored.get(name, {}).get("from", ())}
    new = [it for it in filters if it not in held]
    taken = (
        overlaps(plain_filter(pattern), it)
        for other, body in stored.items()
        if other != name
        for pattern in body.get("from", ())
        for it in new
    )
    if any(taken):
        raise UsageError(
            "messages on these topics are of another type already",
            fix="name other topics, or ask whoever applies definitions",
        )


def _levels(patterns: Iterable[str]) -> set[str]:
    """Return the fields that levels of topics fill."""
    return {name for it in patterns for name in named_levels(it).values()}


def _stays(what: str) -> UsageError:
    return UsageError(
        f"the type is defined, and {what} stays as it is",
        fix="add topics and optional fields; for all else ask whoever applies definitions",
    )


def check_room(grants: Iterable[TypeGrant], name: str, streams: Iterable[str]) -> None:
    """Refuse one type too many."""
    there = list(streams)
    if name in there:
        return
    for grant in grants:
        if grant.names(name) and sum(map(grant.names, there)) < TYPE_LIMIT:
            return
    raise UsageError(
        f"there are {TYPE_LIMIT} streams whose names this right covers",
        fix="extend one of them, or ask whoever applies definitions",
    )


def explain_faults(name: str, error: InvalidError) -> PenstockError:
    """Say what is wrong with a type in one line; nothing of definitions of others."""
    place = f"stream/{name}"
    own = [it for it in error.problems if f"{it.place}.".startswith(f"{place}.")]
    told = [str(it) for it in own[:_SHOWN]] or ["it does not go with other definitions"]
    return UsageError("; ".join(told), fix="correct it, and define it again")


UNDECLARED = "declared purposes"
_COMPARED = 1_000


class DeclaredPurposes:
    """The names of the purposes of the present epoch."""

    __slots__ = ("_names",)
    kinds = frozenset({Purpose.kind})
    """What they follow."""

    def __init__(self) -> None:
        # A dict, because it keeps its order: the first ones are those compared.
        self._names: dict[str, None] = {}

    def take(self, documents: Container[Key], changed: Iterable[Key]) -> None:
        """Take over a set of definitions of which these may differ from what was known."""
        for key in changed:
            if key.kind != Purpose.kind:
                continue
            if key in documents:
                self._names[key.name] = None
            else:
                self._names.pop(key.name, None)

    def admits(self, purpose: str | None) -> bool:
        """Tell whether an access purpose may be used."""
        return purpose is None or not self._names or purpose in self._names

    def object_to(self, purpose: str | None) -> str:
        """Say what is wrong with an access purpose; nothing where it may be used."""
        if purpose is None or self.admits(purpose):
            return ""
        near = self.nearest(purpose)
        fix = f"did you mean {near!r}?" if near else "declare it, or use one that is declared"
        return f"there is no purpose {quote(purpose)} → {fix}"

    def nearest(self, purpose: str) -> str | None:
        """Return the declared purpose that a misspelt one may mean."""
        # Comparing takes long for many names, and anybody may ask.
        some = [name for name, _ in zip(self._names, range(_COMPARED), strict=False)]
        return next(iter(difflib.get_close_matches(purpose, some, n=1)), None)


UNCLAIMED: Final = "right to claim"
_NOBODY: Final[Mapping[str, str]] = {}


class Grant(NamedTuple):
    """A purpose that somebody may claim, and the definition that says so."""

    subject: str
    purpose: str
    rule: str


class PurposeClaims:
    """What everybody may claim."""

    __slots__ = ("_claimants", "_open")

    def __init__(self, grants: Iterable[Grant] = (), *, open_mode: bool = False) -> None:
        self._open = open_mode
        self._claimants: dict[str, dict[str, str]] = {}
        for subject, purpose, rule in grants:
            self._claimants.setdefault(purpose, {}).setdefault(subject, rule)

    def admits(self, subjects: Collection[str], purpose: str) -> bool:
        """Tell whether one whom these subjects mean may claim a purpose."""
        claimants = self._claimants
        return self._open or any(
            not claimants.get(it, _NOBODY).keys().isdisjoint(subjects) for it in lineage(purpose)
        )

    def explain(self, subjects: Collection[str], purpose: str) -> Explanation:
        """Say the same, and which rights were looked at."""
        if self._open:
            return Explanation(
                allowed=True, rule="open mode", reason="everybody may claim", part=Part.CLAIMS
            )
        covering = sorted(self._covering(purpose))
        given = [it for it in covering if it.subject in subjects]
        theirs = {it.rule for it in given}
        others = {it.rule for it in covering} - theirs
        considered, more = list_considered(
            [
                *(Considered(rule, f"lets them claim {purpose}") for rule in sorted(theirs)),
                *(Considered(rule, "is for others") for rule in sorted(others)),
            ]
        )
        if given:
            first = given[0]
            reason = f"it lets them claim {first.purpose}"
            return Explanation(
                True,  # noqa: FBT003
                first.rule,
                reason,
                considered,
                more,
                part=Part.CLAIMS,
            )
        reason = f"nothing gives them the right to claim {purpose}"
        return Explanation(
            False,  # noqa: FBT003
            UNCLAIMED,
            reason,
            considered,
            more,
            part=Part.CLAIMS,
        )

    def covering(self, purposes: Iterable[str]) -> list[Grant]:
        """Return what lets somebody claim one of these purposes, or one below it."""
        wanted = list(purposes)
        below = {
            claimed
            for claimed in self._claimants
            if any(it in lineage(claimed) or claimed in lineage(it) for it in wanted)
        }
        return sorted(
            Grant(subject, purpose, rule)
            for purpose in below
            for subject, rule in self._claimants[purpose].items()
        )

    def _covering(self, purpose: str) -> Iterator[Grant]:
        for it in lineage(purpose):
            for subject, rule in self._claimants.get(it, _NOBODY).items():
                yield Grant(subject, it, rule)


@dataclass(frozen=True, slots=True)
class CommandRights:
    """What a principal may command."""

    reserve: tuple[str, ...] = ()
    presubscribe: tuple[str, ...] = ()
    administer: bool = False
    everything: bool = False
    advertise: tuple[str, ...] = ()
    define: tuple[TypeGrant, ...] = ()

    def __post_init__(self) -> None:
        below = (it for grant in self.define for it in grant.below)
        for filter_ in (*self.reserve, *self.presubscribe, *self.advertise, *below):
            check_filter(filter_)

    @property
    def may_ask(self) -> bool:
        """Whether there are questions that a principal with these rights may ask."""
        return self.everything or self.administer or bool(self.reserve)

    def may(self, command: Command) -> Explanation:
        """Decide whether a principal with these rights may give a command."""
        if self.everything:
            return Explanation(allowed=True, rule="open mode", reason="everybody may do everything")
        match command:
            case Reserve(filter=reserved):
                told = _decide("reserve", self.reserve, reserved)
            case Advertise(filter=advertised):
                told = _decide("advertise", self.advertise, advertised)
            case DefineType():
                told = _decide_type(self.define, command)
            case Presubscribe(filter=text):
                told = _decide("presubscribe", self.presubscribe, parse_subscribed(text).filter)
            case ShowCombined(topic=asked) | ShowAffected(filter=asked) if not self.administer:
                told = _decide("reserve", self.reserve, asked)
            case _:
                may = "may administer" if self.administer else "may not administer"
                told = Explanation(self.administer, "administer", f"the principal {may}")
        return told


OPEN_RIGHTS = CommandRights(everything=True)


def _decide_type(granted: tuple[TypeGrant, ...], command: DefineType) -> Explanation:
    considered = []
    for there in granted:
        admits = there.admits(command.stream, command.filters)
        says = "covers it" if admits else "does not cover"
        considered.append(Considered(f"define {there}", says))
        if admits:
            reason = f"it covers {quote(command.stream)} and its topics"
            return Explanation(True, "define", reason, tuple(considered))  # noqa: FBT003
    reason = f"no right to define covers {quote(command.stream)} and its topics"
    return Explanation(False, "define", reason, tuple(considered))  # noqa: FBT003


def _decide(right: str, granted: tuple[str, ...], filter_: str) -> Explanation:
    considered = tuple(
        Considered(f"{right} {there}", "covers it" if covers(there, filter_) else "does not cover")
        for there in granted
    )
    for there in granted:
        if covers(there, filter_):
            return Explanation(
                True,  # noqa: FBT003
                f"{right} {there}",
                f"it covers {quote(filter_)}",
                considered,
            )
    return Explanation(
        False,  # noqa: FBT003
        right,
        f"no right to {right} covers {quote(filter_)}",
        considered,
    )
