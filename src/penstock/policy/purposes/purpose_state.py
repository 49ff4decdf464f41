"""The state of purpose limitation as JSON data: what is stored, and reading it back.

Rules that hold here:
- What is written reads back as the same state, and the same state is written the same way,
  whatever the stores and caches were.
- Reading checks everything and lists all problems at once; nothing is half read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.errors import InvalidError, PenstockError, Problem, UsageError, quote
from penstock.model.purposes import PurposeSet, check_purpose, parse_purposes
from penstock.model.topics import check_filter, parse_subscribed
from penstock.policy.filters.store import check_depth
from penstock.policy.purposes.settings import PurposeSettings, check_setting
from penstock.policy.purposes.subscriptions import Subscription

STATE_FORMAT = 1
_PROBLEM_LIMIT = 20
_QOS = (0, 1, 2)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PurposeState:
    """Everything that purpose limitation knows."""

    settings: PurposeSettings = field(default_factory=PurposeSettings)
    reservations: tuple[tuple[str, PurposeSet], ...] = ()
    presubscriptions: tuple[tuple[str, str, str], ...] = ()
    subscriptions: tuple[Subscription, ...] = ()


def write_state(state: PurposeState) -> dict[str, Any]:
    """Return the state as JSON data."""
    return {
        "format": STATE_FORMAT,
        "settings": state.settings.as_dict(),
        "reservations": sorted([filter_, str(held)] for filter_, held in state.reservations),
        "presubscriptions": sorted(list(stored) for stored in state.presubscriptions),
        "subscriptions": [
            {
                "client": stored.client,
                "filter": stored.text,
                "ap": stored.ap,
                "qos": stored.qos,
                "options": stored.options,
                "identifier": stored.identifier,
                "owner": stored.owner,
                "active": stored.active,
            }
            for stored in sorted(state.subscriptions, key=lambda s: (s.client, s.text))
        ],
    }


def read_state(data: Any) -> PurposeState:
    """Read a state back from JSON data."""
    if not isinstance(data, dict) or data.get("format") != STATE_FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        problem = Problem("format", f"is {quote(found)}", f"this version reads {STATE_FORMAT}")
        raise InvalidError("stored purposes", [problem])
    problems: list[Problem] = []
    state = PurposeState(
        _read_settings(data.get("settings", {}), problems),
        tuple(_read_each(data, "reservations", _read_reservation, problems)),
        tuple(_read_each(data, "presubscriptions", _read_presubscription, problems)),
        tuple(_read_each(data, "subscriptions", _read_subscription, problems)),
    )
    problems += _find_conflicts(state.subscriptions)
    if problems:
        raise InvalidError("stored purposes", problems[:_PROBLEM_LIMIT])
    return state


def _read_settings(data: Any, problems: list[Problem]) -> PurposeSettings:
    settings = PurposeSettings()
    for name, value in data.items() if isinstance(data, dict) else [("", data)]:
        try:
            check_setting(name)
            settings = settings.change(name, value=_need(value, bool))
        except PenstockError as error:
            problems.append(Problem(f"settings.{name}", error.message, error.fix))
    return settings


def _read_each(
    data: dict[str, Any], part: str, read: Callable[[Any], T], problems: list[Problem]
) -> Iterator[T]:
    items = data.get(part, [])
    if not isinstance(items, list):
        problems.append(Problem(part, f"is {quote(items)}", "write a list"))
        return
    for place, item in enumerate(items):
        try:
            yield read(item)
        except PenstockError as error:
            problems.append(Problem(f"{part}[{place}]", error.message, error.fix))


def _find_conflicts(subscriptions: Iterable[Subscription]) -> Iterator[Problem]:
    """Find subscriptions that cannot stand side by side."""
    seen: set[tuple[str, str]] = set()
    groups: dict[tuple[str, str], str | None] = {}
    for there in subscriptions:
        if (there.client, there.text) in seen:
            yield Problem("subscriptions", f"{quote(there.text)} is there twice for one client")
        seen.add((there.client, there.text))
        group = there.text, there.owner
        if there.group is not None and groups.setdefault(group, there.ap) != there.ap:
            yield Problem("subscriptions", f"members of {quote(there.text)} differ in purpose")


def _read_reservation(item: Any) -> tuple[str, PurposeSet]:
    filter_, text = _need_texts(item, 2)
    purposes = parse_purposes(text)
    if purposes is None:
        raise UsageError(f"filter {quote(filter_)} is reserved with {{}}", fix="leave it out")
    return check_depth(check_filter(filter_)), purposes


def _read_presubscription(item: Any) -> tuple[str, str, str]:
    client, filter_, ap = _need_texts(item, 3)
    check_depth(parse_subscribed(filter_).filter)
    return client, filter_, check_purpose(ap)


def _read_subscription(item: Any) -> Subscription:
    fields = _need(item, dict)
    ap = fields.get("ap")
    qos = _need(fields.get("qos"), int)
    if qos not in _QOS:
        raise UsageError(f"QoS is {quote(qos)}", fix="store 0, 1 or 2")
    subscribed = parse_subscribed(_need(fields.get("filter"), str))
    check_depth(subscribed.filter)
    read = Subscription(
        _need(fields.get("client"), str),
        subscribed,
        None if ap is None else check_purpose(_need(ap, str)),
        qos,
        options=_need(fields.get("options", 0), int),
        identifier=_need(fields.get("identifier", 0), int),
        owner=_need(fields.get("owner", ""), str),
    )
    read.active = _need(fields.get("active", True), bool)
    return read


def _need_texts(item: Any, count: int) -> list[str]:
    texts = _need(item, list)
    if len(texts) != count:
        raise UsageError(f"{quote(item)} has {len(texts)} parts", fix=f"store {count}")
    return [_need(text, str) for text in texts]


def _need(value: Any, kind: type[T]) -> T:
    # A bool is an int to Python, but not to a reader of JSON.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"{quote(value)} is not of type {kind.__name__}", fix="store it anew")
    return value
