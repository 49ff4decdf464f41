"""The checks of views and hierarchies, which know all masks and anonymizers.

    masks → groups of k persons → masks → a record of the view
                                          ├ groups: alike for k persons
                                          └ beside them: identifiers, tokens, exact times, …

Rules that hold here:
- Two topics never have one name, whether of a stream or of a view.
- A view that makes groups bears no risk that it does not acknowledge.
- A set loads this module when it holds a view or a hierarchy: who has none loads no masks.
- k-anonymity and its relatives promise something about the fields that they generalize. Each
  field beside those is looked at: does it tell persons apart, or link their records?
- A risk has a name, `NAME` or `NAME:FIELD`. A definition that bears it is refused unless
  `accept_risk` lists this name. So a field that the stream gets later is not covered by what
  was acknowledged for another.
- What is acknowledged without need is refused too: it would cover a later mistake.
- Only declarations are looked at. What values tell is measured: `penstock views risk`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from pydantic import ValidationError

from penstock.definitions.differential_privacy import DifferentialPrivacy
from penstock.definitions.k_anonymity import Diverse, KAnonymization
from penstock.definitions.views import Definitions, ViewPlan, find_plan, hierarchies_of, read_steps
from penstock.errors import Problem, quote
from penstock.lang.tree import find_references
from penstock.masks import Hierarchy, Mask, Schema, derive_schema
from penstock.masks.fields import DATES
from penstock.masks.generalization import Blurring, Suppression
from penstock.masks.substitution import ConditionalSubstitution, Substitution
from penstock.masks.tokenization import Tokenization
from penstock.model import kinds
from penstock.model.definition import Definition
from penstock.model.document import Document, Key
from penstock.model.kinds.roles import Permission
from penstock.model.kinds.views import REAL_TIME

Finding = tuple[Key, Problem]
Kind = TypeVar("Kind", bound=Definition)


def check_views(views: Iterable[kinds.View], definitions: Definitions) -> Iterator[Finding]:
    """Yield what is wrong with views; places are within the view."""
    hierarchies = hierarchies_of(definitions)
    written = list(views)
    definitions = _complete_views(definitions)
    topics: dict[str, list[Key]] = {}
    for other in definitions.values():
        if isinstance(other, kinds.Stream | kinds.View):
            topics.setdefault(other.topic, []).append(other.key)
    for own in written:
        found = definitions[own.key]
        view = found if isinstance(found, kinds.View) else own
        for key in topics[view.topic]:
            if key != view.key:
                message = f"its topic {quote(view.topic)} is the topic of {key} too"
                yield view.key, Problem("name", message, "rename one of them")
        stream = find(definitions, kinds.Stream, view.stream)
        problems: list[Problem] = []
        if stream is None:  # a dangling reference, which is told elsewhere
            read_steps(view, problems)
        else:
            if view.encoding == "avro" and (stream.source is None or stream.source.kafka is None):
                message = "Avro topics are at Kafka, and the stream is not"
                fix = "set source: kafka of the stream, or format: avro for files"
                problems.append(Problem("encoding", message, fix))
            plan = find_plan(view, stream, hierarchies, problems)
            if plan is not None:
                problems += _check_trigger(view, stream, plan)
                problems += check_grouping_risks(
                    view, stream, plan, definitions, partial(_plan_of, definitions, hierarchies)
                )
        named = find(definitions, kinds.Transformation, own.transformation or "")
        if named is not None:
            problems = [_place_behind(it, len(named.anonymizers)) for it in problems]
            problems += _check_transformation(own, named)
        yield from ((view.key, problem) for problem in problems)


def _check_trigger(view: kinds.View, stream: kinds.Stream, plan: ViewPlan) -> Iterator[Problem]:
    """Yield what keeps a view from running in real time, where it is to."""
    if view.trigger != REAL_TIME:
        return
    stored = [it for it in plan.before if isinstance(it, Tokenization) and it.method != "pseudonym"]
    for wrong, message, fix in (
        (
            stream.source is None or stream.source.kafka is None,
            f"the stream {quote(stream.name)} is not read from Kafka",
            "set source: kafka of the stream",
        ),
        (
            view.format != "topic",
            f"records in {view.format} are published in batches",
            "set format: topic",
        ),
        (view.encoding != "json", "Avro is written in batches", "leave encoding out"),
        (stream.format == "avro", "Avro is read in batches", "feed the stream as JSON"),
        (
            stream.erasure == "shred" or stream.sealed is not None,
            "sealed records are opened in batches",
            "leave trigger out",
        ),
        (
            bool(plan.stateful),
            "records of windows and groups wait for others",
            "leave such anonymizers to another view",
        ),
        (bool(stored), "tokens of a vault or a cipher are made in batches", "method: pseudonym"),
    ):
        if wrong:
            yield Problem("trigger", f"{message}, and real time takes each as it comes", fix)


def _complete_views(definitions: Definitions) -> Definitions:
    """Return definitions with views that do by themselves what their transformations do."""
    found = {
        key: it.behind(named)
        for key, it in definitions.items()
        if isinstance(it, kinds.View)
        and (named := find(definitions, kinds.Transformation, it.transformation or ""))
    }
    return {**definitions, **found} if found else definitions


def _place_behind(problem: Problem, count: int) -> Problem:
    """Say where a problem stands in a view whose first anonymizers are a transformation's."""
    at = re.match(r"anonymizers\[(\d+)\]", problem.place)
    if at is None:
        return problem
    number = int(at[1]) - count
    place = f"anonymizers[{number}]{problem.place[at.end() :]}" if number >= 0 else "transformation"
    return Problem(place, problem.message, problem.fix)


def _check_transformation(
    view: kinds.View, transformation: kinds.Transformation
) -> Iterator[Problem]:
    """Yield why a transformation cannot serve a view."""
    if transformation.stream != view.stream:
        what = f"it is of the stream {transformation.stream!r}, and the view of {view.stream!r}"
        yield Problem("transformation", what, "name one of the view's stream")
    if transformation.set or transformation.into is not None:
        what = "it adds to messages or converts them, and a view has neither message nor topic"
        yield Problem("transformation", what, "name one with anonymizers and remove alone")


def _plan_of(
    definitions: Definitions, hierarchies: Mapping[str, Hierarchy], view: kinds.View
) -> ViewPlan | None:
    stream = find(definitions, kinds.Stream, view.stream)
    return None if stream is None else find_plan(view, stream, hierarchies, [])


def check_rest(document: Document, definitions: Definitions) -> Iterator[Problem]:
    """Yield what is wrong with the anonymizers of a view that other fields keep from being one."""
    body = {name: document.body.get(name) for name in ("stream", "anonymizers")}
    try:
        view = kinds.View.model_validate({"name": document.name, **body})
    except ValidationError:
        return  # told already
    stream = find(definitions, kinds.Stream, view.stream)
    if stream is not None:
        problems: list[Problem] = []
        find_plan(view, stream, hierarchies_of(definitions), problems)
        # What is wrong with its window is told already.
        yield from (it for it in problems if it.place.startswith("anonymizers"))


def check_hierarchies(
    found: Iterable[kinds.Hierarchy],
    definitions: Definitions,  # noqa: ARG001
) -> Iterator[Finding]:
    """Yield what keeps hierarchies from being trees."""
    for hierarchy in found:
        try:
            Hierarchy.model_validate(hierarchy.nested())
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                text, _, fix = detail["msg"].removeprefix("Value error, ").partition(" → ")
                yield hierarchy.key, Problem("", text, fix or None)


def find(definitions: Definitions, kind: type[Kind], name: str) -> Kind | None:
    """Return one definition, if there is such a one."""
    found = definitions.get(Key(kind.kind, name))
    return found if isinstance(found, kind) else None


PLACE: Final = "accept_risk"
MEANINGS: Final[Mapping[str, str]] = {
    "identifier": "{} names a person, and stands beside the groups: who reads it needs no "
    "quasi-identifier",
    "pseudonym": "{} is a token beside the groups: it links the records of one person, and the "
    "groups of these records have few persons in common, often one",
    "quasi-identifier": "{} is declared a quasi-identifier, and the groups leave it out: within "
    "a group it tells persons apart",
    "time": "{} is an exact time beside the groups: who knows when a person was there finds the "
    "record",
    "derived": "{} is made of a field that the groups hide, and tells of it beside them",
    "split-groups": "a mask after the groups changes {} for some records of a group and not for "
    "others, so that fewer than k are alike",
    "sensitive": "{} is declared sensitive, and the groups do not mix its values",
    "generalized-sensitive": "{} is declared sensitive, and is generalized: all persons of a "
    "group have a value in the range that it publishes",
    "no-subject": "the stream {} does not say whom a record is about, so that k counts records: "
    "k records of one person make a group",
    "joined-view": "the same role reads the view {} of this stream: its records can be joined "
    "with these, and what one hides the other tells",
}
"""The names of risks, and what each means; `{}` is what it is about."""
FIXES: Final[Mapping[str, str]] = {
    "identifier": "name it in keys, or suppress it",
    "pseudonym": "name it in keys, or suppress it",
    "quasi-identifier": "add it to quasi_identifiers, or suppress it",
    "time": "bucketize it, or suppress it",
    "derived": "put the mask after the groups, or suppress it",
    "split-groups": "put the mask before the groups",
    "sensitive": "add it to sensitive, or suppress it",
    "generalized-sensitive": "take it out of quasi_identifiers, and use l_diversity",
    "no-subject": "give the stream a subject",
    "joined-view": "give the views to different roles",
}


@dataclass(frozen=True, slots=True)
class GroupingRisk:
    """One risk of a view."""

    name: str
    about: str
    """The field, view or stream."""

    @property
    def text(self) -> str:
        """How `accept_risk` names it."""
        return self.name if self.name == "no-subject" else f"{self.name}:{self.about}"

    def problem(self) -> Problem:
        """Say what it means, and what to do."""
        meaning = MEANINGS[self.name].format(quote(self.about))
        fix = f"{FIXES[self.name]}; or acknowledge it: accept_risk: [{self.text}]"
        return Problem(PLACE, f"{self.text}: {meaning}", fix)


PlanOf = Callable[[kinds.View], ViewPlan | None]


def check_grouping_risks(
    view: kinds.View,
    stream: kinds.Stream,
    plan: ViewPlan,
    definitions: Mapping[Key, Definition],
    plan_of: PlanOf,
) -> Iterator[Problem]:
    """Yield the risks that a view bears and does not acknowledge, and those it does in vain."""
    found = {risk.text: risk for risk in find_grouping_risks(view, stream, plan)}
    joined = _find_joined(view, stream, plan, definitions, plan_of)
    found |= {risk.text: risk for risk in joined}
    for text, risk in found.items():
        if text not in view.accept_risk:
            yield risk.problem()
    for index, text in enumerate(view.accept_risk):
        if text not in found:
            name = text.partition(":")[0]
            known = name in MEANINGS
            why = "the view does not bear this risk" if known else "there is no risk of this name"
            fix = "leave it out" if known else f"risks are {', '.join(MEANINGS)}"
            yield Problem(f"{PLACE}[{index}]", f"{quote(text)}: {why}", fix)


def find_grouping_risks(
    view: kinds.View, stream: kinds.Stream, plan: ViewPlan
) -> Iterator[GroupingRisk]:
    """Yield the risks that a view bears by itself; none where it makes no groups."""
    step = plan.stateful[0] if plan.stateful else None
    if not isinstance(step, KAnonymization):
        return
    if stream.subject is None:
        yield GroupingRisk("no-subject", view.stream)
    trace = Trace.of(plan, stream)
    sensitive = set(stream.named("sensitive"))
    mixed = {it.key for it in step.sensitive} if isinstance(step, Diverse) else sensitive
    for name in sorted(trace.groups & sensitive):
        yield GroupingRisk("generalized-sensitive", name)
    for name in sorted(trace.split):
        yield GroupingRisk("split-groups", name)
    for name, kind in plan.output.items():
        if name in trace.groups | trace.hidden:
            continue
        exact = kind.type in DATES or (name == stream.time and name not in trace.masked)
        known = _find_known(name, stream, trace) or ("time" if exact else None)
        if known is not None:
            yield GroupingRisk(known, name)
        if name in trace.derived:
            yield GroupingRisk("derived", name)
        if name in sensitive - mixed:
            yield GroupingRisk("sensitive", name)


def _find_known(name: str, stream: kinds.Stream, trace: Trace) -> str | None:
    """Return what a field beside the groups tells persons apart by, as it is declared."""
    if name in trace.tokens:
        return "pseudonym"
    if name in trace.identifiers:
        return "identifier"
    return "quasi-identifier" if name in stream.named("quasi-identifier") else None


@dataclass(slots=True)
class Trace:
    """What becomes of the fields of a stream on their way through a view."""

    identifiers: frozenset[str]
    identifying: frozenset[str]
    groups: frozenset[str]
    hidden: set[str] = field(default_factory=set)
    """Those that hold the same in every record, or chance."""
    masked: set[str] = field(default_factory=set)
    tokens: set[str] = field(default_factory=set)
    derived: set[str] = field(default_factory=set)
    split: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, plan: ViewPlan, stream: kinds.Stream) -> Trace:
        """Follow the masks of a view, before its groups and after them."""
        step = plan.stateful[0] if plan.stateful else None
        grouping = step if isinstance(step, KAnonymization) else None
        groups = frozenset(it.key for it in grouping.quasi_identifiers) if grouping else frozenset()
        added = [stream.adds.topic] if stream.adds and stream.adds.topic else []
        subject = [stream.subject] if stream.subject else []
        identifiers = frozenset([*stream.named("identifier"), *subject, *added])
        identifying = identifiers | groups | frozenset(stream.named("quasi-identifier"))
        trace = cls(identifiers, identifying, groups)
        trace._follow(plan.before, plan.schema)
        for it in plan.stateful:
            trace.masked |= set(getattr(it, "keys", ()))
        if grouping:
            trace.hidden |= set(grouping.keys)
            trace.tokens -= groups
            # From here on they are alike for k persons.
            trace.identifying -= groups
            trace.derived -= groups
        trace._follow(plan.after, plan.gathered, behind=True)
        return trace

    def _follow(self, masks: tuple[Mask, ...], schema: Schema, *, behind: bool = False) -> None:
        for mask in masks:
            for name in mask.keys:
                self._take(mask, name, schema, behind=behind)
            schema = derive_schema([mask], schema)

    def _take(self, mask: Mask, name: str, schema: Schema, *, behind: bool) -> None:
        self.masked.add(name)
        if _hides(mask):
            self.hidden.add(name)
            self.derived.discard(name)
        elif isinstance(mask, ConditionalSubstitution):
            asked = _asked_fields(mask, name, schema) - {name} - self.hidden
            if asked & self.identifying:
                self.derived.add(name)
                self.hidden.discard(name)
        elif isinstance(mask, Tokenization | Substitution):
            # A substitute that the value chooses links records as a token does.
            is_token = isinstance(mask, Tokenization) or name in self.identifiers
            if is_token and name not in self.hidden:
                self.tokens.add(name)
        if behind and name in self.groups and _splits(mask):
            self.split.add(name)


def _hides(mask: Mask) -> bool:
    """Whether nothing of a value is left."""
    if isinstance(mask, Substitution):
        return mask.random or len(set(mask.substitution_list)) == 1
    if isinstance(mask, Blurring):
        return mask.n_fields is None and not mask.keep_length
    return isinstance(mask, Suppression)


def _splits(mask: Mask) -> bool:
    """Whether records with the same value may get different ones."""
    return isinstance(mask, ConditionalSubstitution) or (
        isinstance(mask, Substitution) and mask.random
    )


def _asked_fields(mask: ConditionalSubstitution, name: str, schema: Schema) -> set[str]:
    paths = list(find_references(mask.condition(name, schema).tree))
    named = {path[1] for path in paths if path[1:]}
    return named if all(path[1:] for path in paths) else set(schema)


def _find_joined(
    view: kinds.View,
    stream: kinds.Stream,
    plan: ViewPlan,
    definitions: Mapping[Key, Definition],
    plan_of: PlanOf,
) -> Iterator[GroupingRisk]:
    """Yield the views that the same role reads, and that tell more of the same records."""
    if not (plan.stateful and isinstance(plan.stateful[0], KAnonymization)):
        return
    own, readers = Trace.of(plan, stream), _readers(view, definitions)
    told = plan.output.keys() - own.groups - own.hidden
    for other in definitions.values():
        if not isinstance(other, kinds.View) or other.stream != view.stream or other == view:
            continue
        if not readers & _readers(other, definitions):
            continue
        theirs = plan_of(other)
        if theirs is None or any(isinstance(it, DifferentialPrivacy) for it in theirs.stateful):
            continue
        trace = Trace.of(theirs, stream)
        telling = (trace.identifiers | own.identifying | own.groups | trace.tokens) - trace.hidden
        # Where the other view has all that this one tells, nobody needs this one.
        more = told & (trace.masked | trace.hidden)
        if telling & theirs.output.keys() and (more or trace.groups):
            yield GroupingRisk("joined-view", other.name)


def _readers(view: kinds.View, definitions: Mapping[Key, Definition]) -> set[str]:
    """Return the roles that read a view: by its own word, by permission, by including such."""
    roles = [it for it in definitions.values() if isinstance(it, kinds.Role)]
    found = set(view.roles)
    for role in roles:
        if any(it.allow == "read" and _covers(it, view) for it in role.permissions):
            found.add(role.name)
    while more := {it.name for it in roles if set(it.includes) & found} - found:
        found |= more
    return found


def _covers(permission: Permission, view: kinds.View) -> bool:
    word, name = permission.target
    match word:
        case "view":
            return name == view.name
        case "topic":
            return name == view.topic
        case "prefix":
            return view.topic.startswith(name)
        case _:
            return False
