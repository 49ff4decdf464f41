"""The rules that decide on access, compiled: policies, preferences, rights on the broker's topics.

The broker's own topics begin with `$`: `$SYS/#` tells how many clients there are and what they do,
`$CONTROL/#` commands a broker. Clients reach the broker as the gateway does, so the broker cannot
tell them apart.

Rules that hold here:
- What a rule looks at is known before it is evaluated: it tells what a decision depends on,
  and so what may be remembered.
- The index finds the rules of a topic by walking its levels, and those of a principal by name:
  a decision costs what matches, not the number of rules.
- Who reads a topic of the broker needs the right to monitor it. A right to a filter is a right
  to every filter it covers, and to no other. A leading wildcard means no such topic (MQTT5 4.7.2).
- Who writes to one needs the right to administer.
- Nobody has a right that is not given. In open mode everybody has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import reduce
from itertools import islice
from operator import attrgetter, or_
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.errors import quote
from penstock.lang import Expression
from penstock.lang.tree import Matches, Quantifier, find_references, walk
from penstock.model.topics import covers
from penstock.policy.access.emergencies import Emergency
from penstock.policy.access.principals import Action, Principal
from penstock.policy.decision import (
    VOLATILE,
    Considered,
    Depends,
    Explanation,
    Part,
    list_considered,
)
from penstock.policy.filter_tree import FilterTree
from penstock.policy.role_derivation import Relation

_OF_ROOT: Final = {
    "s": Depends.NOTHING,
    "o": Depends.OBJECT,
    "e": Depends.ENVIRONMENT,
    "t": Depends.MESSAGE,
    "d": Depends.NOTHING,  # rows of tables: what their keys depend on is asked of the keys
}
_OF_FIELD: Final[Mapping[tuple[str, ...], Depends]] = {
    ("e", "time"): Depends.TIME,
    ("t", "topic"): Depends.NOTHING,
    ("t", "user"): Depends.PUBLISHER,
    ("t", "clientId"): Depends.PUBLISHER,
}
BRIEF: Final = 12
"""Nodes of expressions: two comparisons of attributes, with room for a `!`."""
_COSTLY: Final = (Matches, Quantifier)


class RoleArguments:
    """What the arguments of a role must be: constants, or attributes of who asks and the message.

    A value that is missing is none that a role has.
    """

    __slots__ = ("_constants", "_places", "expressions", "role", "text")

    def __init__(
        self,
        text: str,
        role: str,
        constants: Mapping[int, str],
        attributes: Mapping[int, Expression],
    ) -> None:
        self.text = text
        self.role = role
        self.expressions = tuple(attributes.values())
        self._places = tuple(sorted({*constants, *attributes}))
        self._constants = tuple(constants.get(at) for at in self._places)

    def function(self, relation: Relation, condition: Callable[..., Any]) -> Callable[..., Any]:
        """Return what tells of s, o, e and t whether somebody with these instances is meant."""
        places, constants = self._places, self._constants
        functions = iter([it.function for it in self.expressions])
        values = tuple(None if it is not None else next(functions) for it in constants)

        def holds(*roots: Any) -> bool:
            wanted = []
            for constant, value_of in zip(constants, values, strict=True):
                value = constant if value_of is None else value_of(*roots)
                if type(value) is not str:
                    return False
                wanted.append(value)
            return bool(relation.find(places, tuple(wanted))) and condition(*roots) is True

        return holds

    def admits(self, relation: Relation, roots: Mapping[str, Any]) -> bool:
        """Tell the same of one message, plainly."""
        functions = iter(self.expressions)
        wanted = [
            it if it is not None else next(functions).evaluate(**roots).value
            for it in self._constants
        ]
        return all(type(it) is str for it in wanted) and any(
            all(values[at] == it for at, it in zip(self._places, wanted, strict=True))
            for values in relation.facts
        )


class Policy:
    """A policy or, with `emergency`, an emergency policy.

    With `arguments` it is for those alone whose role has them.
    """

    __slots__ = ("action", "arguments", "condition", "emergency", "filter", "name", "subject")

    def __init__(
        self,
        name: str,
        subject: str,
        filter_: str,
        action: Action,
        condition: Expression,
        emergency: Emergency | None = None,
        arguments: RoleArguments | None = None,
    ) -> None:
        self.name = name
        self.subject = subject
        self.filter = filter_
        self.action = action
        self.arguments = arguments
        self.condition = condition
        self.emergency = emergency

    @property
    def meant(self) -> str:
        """Whom it is for, as it was written."""
        return self.subject if self.arguments is None else self.arguments.text

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """All that it evaluates."""
        return (self.condition, *(self.arguments.expressions if self.arguments else ()))

    def function_for(self, principal: Principal) -> Callable[..., Any]:
        """Return what tells of s, o, e and t whether it grants to somebody."""
        if self.arguments is None:
            return self.condition.function
        relation = principal.roles.relations[self.arguments.role]
        return self.arguments.function(relation, self.condition.function)


class Preference:
    """A preference: `subject` is the user whose messages it is about.

    With `readers` it holds for those alone whom they mean.
    """

    __slots__ = ("condition", "filter", "name", "readers", "subject")

    def __init__(
        self,
        name: str,
        subject: str,
        filter_: str,
        condition: Expression,
        readers: frozenset[str] = frozenset(),
    ) -> None:
        self.readers = readers
        self.name = name
        self.subject = subject
        self.filter = filter_
        self.condition = condition

    def admits(self, principal: Principal) -> bool:
        """Tell whether it can hold for somebody at all."""
        return not self.readers or not self.readers.isdisjoint(principal.subjects)


def depends_on(expression: Expression) -> Depends:
    """Tell what an expression looks at besides the principal and the topic."""
    return reduce(or_, map(_depends_on_path, find_references(expression.tree)), Depends.NOTHING)


def _depends_on_path(path: tuple[str, ...]) -> Depends:
    root, *fields = path
    if not fields and root != "s":
        return VOLATILE  # the whole of a root: anything may be in it
    return _OF_FIELD.get(path[:2], _OF_ROOT[root])


def are_brief(expressions: Iterable[Expression]) -> bool:
    """Tell whether to evaluate all of these costs no more than to look up what they said."""
    nodes = list(islice((node for it in expressions for node in walk(it.tree)), BRIEF + 1))
    return len(nodes) <= BRIEF and not any(isinstance(it, _COSTLY) for it in nodes)


def fields_of(expressions: Iterable[Expression], root: str) -> tuple[str, ...]:
    """Return the fields of a root that expressions look at."""
    # Paths in parts: a field's name may have dots.
    paths = [path for it in expressions for path in find_references(it.tree)]
    return tuple(sorted({path[1] for path in paths if path[0] == root and len(path) > 1}))


R = TypeVar("R", bound=Policy | Preference)

Bucket = dict[str, tuple[R, ...]]
"""The rules of one filter, by subject, in the order of their names."""


class RuleIndex(Generic[R]):
    """Rules by name, and by filter and subject."""

    __slots__ = ("_by_name", "_tree")

    def __init__(self) -> None:
        self._by_name: dict[str, R] = {}
        self._tree: FilterTree[Bucket[R]] = FilterTree()

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[R]:
        return iter(self._by_name.values())

    def put(self, rule: R) -> None:
        """Add a rule, in the place of one with its name."""
        self.remove(rule.name)
        self._by_name[rule.name] = rule
        bucket = self._tree.get(rule.filter)
        if bucket is None:
            bucket = {}
            self._tree.set(rule.filter, bucket)
        rules = (*bucket.get(rule.subject, ()), rule)
        bucket[rule.subject] = tuple(sorted(rules, key=attrgetter("name")))

    def remove(self, name: str) -> None:
        """Remove the rule with this name, if there is one."""
        rule = self._by_name.pop(name, None)
        if rule is None:
            return
        bucket: Bucket[R] = self._tree.get(rule.filter) or {}
        left = tuple(other for other in bucket[rule.subject] if other is not rule)
        if left:
            bucket[rule.subject] = left
            return
        del bucket[rule.subject]
        if not bucket:
            self._tree.remove(rule.filter)

    def concerns(self, subjects: Collection[str], filter_: str) -> bool:
        """Tell whether some rule for these subjects is about some topic of a filter."""
        return any(
            not bucket.keys().isdisjoint(subjects)
            for bucket in self._tree.overlapping_values(filter_)
        )

    def matching(self, topic: str) -> tuple[Bucket[R], ...]:
        """Return the rules of all filters that match a topic."""
        return tuple(self._tree.matching(topic))


def pick(buckets: Iterable[Bucket[R]], subjects: Iterable[str]) -> list[R]:
    """Return the rules for these subjects, in the order of their names."""
    wanted = tuple(subjects)
    found = [rule for bucket in buckets for subject in wanted for rule in bucket.get(subject, ())]
    found.sort(key=attrgetter("name"))
    return found


MARK: Final = "$"
MONITOR: Final = "right to monitor"
ADMINISTER: Final = "administer"


class MonitorGrant(NamedTuple):
    """A filter of the broker's topics that somebody may read, and the definition that says so."""

    subject: str
    filter: str
    rule: str


class BrokerTopics:
    """What everybody may do with the broker's own topics."""

    __slots__ = ("_administrators", "_monitors", "_open")

    def __init__(
        self,
        monitors: Iterable[MonitorGrant] = (),
        administrators: Iterable[tuple[str, str]] = (),
        *,
        open_mode: bool = False,
    ) -> None:
        self._open = open_mode
        self._monitors = tuple(sorted(monitors))
        self._administrators = tuple(sorted(administrators))

    def admits(self, subjects: Collection[str], action: Action, filter_: str) -> bool:
        """Tell whether one whom these subjects mean may read or write such a filter or topic."""
        if self._open:
            return True
        if action == "write":
            return any(subject in subjects for subject, _ in self._administrators)
        return any(it.subject in subjects and covers(it.filter, filter_) for it in self._monitors)

    def explain(self, subjects: Collection[str], action: Action, filter_: str) -> Explanation:
        """Say the same, and which rights were looked at."""
        part = Part.BROKER_TOPICS
        if self._open:
            return Explanation(
                allowed=True, rule="open mode", reason="everybody may do everything", part=part
            )
        if action == "write":
            theirs = [rule for subject, rule in self._administrators if subject in subjects]
            others = [rule for subject, rule in self._administrators if subject not in subjects]
            missing, rule = "may write to the broker's own topics", ADMINISTER
        else:
            covering = [it for it in self._monitors if covers(it.filter, filter_)]
            theirs = [it.rule for it in covering if it.subject in subjects]
            others = [it.rule for it in covering if it.subject not in subjects]
            missing, rule = f"has the right to monitor {quote(filter_)}", MONITOR
        considered, more = list_considered(
            [
                *(Considered(it, "lets them") for it in sorted(set(theirs))),
                *(Considered(it, "is for others") for it in sorted(set(others) - set(theirs))),
            ]
        )
        if theirs:
            reason = f"it covers {quote(filter_)}"
            return Explanation(True, theirs[0], reason, considered, more, part=part)  # noqa: FBT003
        reason = f"the principal is none that {missing}"
        return Explanation(False, rule, reason, considered, more, part=part)  # noqa: FBT003
