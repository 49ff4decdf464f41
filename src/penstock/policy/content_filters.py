"""Content filters: subscriptions that ask for events with certain attributes only.

    SUBSCRIBE home/+/vitals   r.pulse > 120 && r.ward == "3"
                                      └── access predicate ──▶ index ─┐
    message ──▶ types ──▶ `r`, once for all readers ──────────────────┴▶ candidates ──▶ evaluated

Rules that hold here:
- A filter is an expression over `r`, the attributes of the event. What errs, or is missing, is no
  match: the message is not delivered.
- The index answers for all filters at once which of them a message may match, by one predicate
  of each: an equality, or a range of numbers. It may name one too many, never one too few. What
  it names is evaluated when its own subscriber is served, so that a filter costs its owner.
- A message that few readers ask about is not worth the index: the first are evaluated directly.
- A filter lives as long as a subscription holds it, and no longer: it ends with the subscription,
  not when memory is tidied. Owners share nothing: what one has is
  neither found, counted nor refused because of another.
- Its text is bounded in length and in nodes, an owner's filters in number. What it may cost for one
  message is bounded, too: no quantifier, no sets, one pattern, and no text of any length (`types`).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

from penstock.errors import UsageError, quote
from penstock.lang import (
    BOOL,
    Expression,
    ExpressionError,
    RecordType,
    Scope,
    compile_expression,
    tree,
)
from penstock.lang.errors import FaultError
from penstock.lang.operations import SET_OPERATIONS
from penstock.lang.syntax import split_tokens
from penstock.policy.access.requests import Message
from penstock.policy.content_index import ContentIndex, Predicate, find_predicate
from penstock.policy.event_types import EventTypes

ROOT: Final = "r"
TEXT_LIMIT: Final = 1_024
NODE_LIMIT: Final = 100
OWNER_LIMIT: Final = 1_000
"""How many different filters the clients of one user may hold at a gateway."""
PATTERN_LIMIT: Final = 100
"""How many of them may search for a pattern: each takes up to a megabyte."""
DIRECT: Final = 4
"""So many readers of a message are evaluated before the index is asked."""

_SEARCH: Final = "matches"
_COSTLY: Final = SET_OPERATIONS | {"exists", "all"}
"""What looks at every level of a text: one message could keep a gateway busy for minutes."""


class ContentError(UsageError):
    """A content filter is malformed, or there are too many."""


class ContentLimitError(ContentError):
    """Somebody has as many content filters as they may have."""


class CompiledContent:
    """One filter of one owner; `serial` names it in the index."""

    __slots__ = ("__weakref__", "function", "predicate", "searches", "serial", "text")

    def __init__(self, serial: int, expression: Expression) -> None:
        self.serial = serial
        self.text = expression.text
        self.searches = any(isinstance(it, tree.Matches) for it in tree.walk(expression.tree))
        self.predicate = find_predicate(expression.tree)
        self.function = expression.function


class ContentFilter:
    """What events one subscription is for. Once ended it matches nothing; its text stays."""

    __slots__ = ("compiled", "text")

    def __init__(self, compiled: CompiledContent) -> None:
        self.text = compiled.text
        self.compiled: CompiledContent | None = compiled

    def end(self) -> None:
        """Let go of what was compiled."""
        self.compiled = None


class Look:
    """What filters have made of one message."""

    __slots__ = ("asked", "candidates", "generation", "record", "upto")

    def __init__(self, record: Mapping[str, Any], generation: int) -> None:
        self.record = record
        self.generation = generation
        self.asked = 0
        self.candidates: set[int] | None = None
        self.upto = 0
        """The last filter that the candidates know of."""


class ContentFilters:
    """The content filters of all subscriptions of a gateway."""

    def __init__(self, types: EventTypes | None = None, *, direct: int = DIRECT) -> None:
        self.types = types or EventTypes()
        self._direct = direct
        self._index = ContentIndex()
        self._held: dict[str, weakref.WeakValueDictionary[Any, CompiledContent]] = {}
        self._last = 0
        # A filter may end in the midst of anything, by the garbage collector: it is put aside.
        self._ended: deque[tuple[str, int, Predicate | None]] = deque()

    def __len__(self) -> int:
        self._tidy()
        return len(self._index)

    @property
    def in_use(self) -> bool:
        """Whether somebody may have a filter."""
        return bool(self._held)

    def check(
        self, text: str, filter_: str, visible: Callable[[str], bool] = lambda _: True
    ) -> None:
        """Refuse a text that is no filter for messages of these topics; say so in one line."""
        self._compile(text, self.types.describe(filter_, visible))

    def hold(
        self, owner: str, text: str, filter_: str, visible: Callable[[str], bool] | None = None
    ) -> ContentFilter:
        """Return the filter of an owner for messages of these topics, made if it has none.

        With `visible`, errors tell of no type that the owner could not read.
        """
        if visible is not None:
            self.check(text, filter_, visible)
        record = self.types.describe(filter_)
        held = self._held.get(owner)
        known = held.get((text, record)) if held is not None else None
        if known is not None:
            return ContentFilter(known)
        try:
            expression = self._compile(text, record)
        except ContentError:
            if visible is None:
                raise
            # It is right by the types that the owner may read: the others are not to be named.
            raise ContentError(
                "what the content filter asks for has no single type under this topic filter",
                fix="subscribe to fewer topics",
            ) from None
        self._tidy()
        held = self._held.get(owner)
        if held is None:
            held = self._held[owner] = weakref.WeakValueDictionary()
        if len(held) >= OWNER_LIMIT:
            raise ContentLimitError(
                f"there are {OWNER_LIMIT} different content filters of yours",
                fix="end subscriptions, or let clients use the same filters",
            )
        made = CompiledContent(self._last + 1, expression)
        if made.searches and sum(it.searches for it in held.values()) >= PATTERN_LIMIT:
            raise ContentLimitError(
                f"there are {PATTERN_LIMIT} different content filters of yours that have a pattern",
                fix="compare with ==, startsWith or contains, or end subscriptions",
            )
        self._last = made.serial
        held[text, record] = made
        self._index.add(made.serial, made.predicate)
        ended = (owner, made.serial, made.predicate)
        weakref.finalize(made, self._ended.append, ended).atexit = False
        return ContentFilter(made)

    def admits(self, content: ContentFilter, message: Message) -> bool:
        """Tell whether a message matches a filter."""
        compiled, look = content.compiled, message.look
        if compiled is None:
            return False
        if look is None or look.generation != self.types.generation:
            look = message.look = Look(self.types.read(message), self.types.generation)
        look.asked += 1
        if look.candidates is None and look.asked > self._direct:
            self._tidy()
            look.candidates, look.upto = self._index.search(look.record), self._last
        if (
            look.candidates is not None
            and compiled.predicate is not None
            and compiled.serial <= look.upto
            and compiled.serial not in look.candidates
        ):
            return False
        try:
            return compiled.function(look.record) is True
        except Exception:  # noqa: BLE001 - whatever goes wrong, the answer is no
            return False

    def candidates(self, record: Mapping[str, Any]) -> set[int]:
        """Return the serials of the filters that a record may match: one search for all."""
        self._tidy()
        return self._index.search(record) | self._index.others

    def _compile(self, text: str, record: RecordType) -> Expression:
        if len(text) > TEXT_LIMIT:
            raise ContentError(
                f"a content filter has {len(text)} characters; at most {TEXT_LIMIT} are taken",
                fix="write a shorter one, or several subscriptions",
            )
        if not record.fields:
            raise ContentError(
                "no type of messages is known to you under this filter",
                fix="leave the content filter out, or subscribe where a stream declares fields",
            )
        _check_cost(text)
        try:
            made = compile_expression(text, Scope(((ROOT, record),)), BOOL)
        except ExpressionError as error:
            raise _in_one_line(error) from None
        nodes = sum(1 for _ in tree.walk(made.tree))
        if nodes > NODE_LIMIT:
            raise ContentError(
                f"a content filter has {nodes} parts; at most {NODE_LIMIT} are taken",
                fix="write a simpler one",
            )
        return made

    def _tidy(self) -> None:
        """Take filters out that nobody holds any more."""
        while self._ended:
            owner, serial, predicate = self._ended.popleft()
            self._index.discard(serial, predicate)
            if owner in self._held and not len(self._held[owner]):
                del self._held[owner]


def _check_cost(text: str) -> None:
    """Refuse what may take long, before anything of it is compiled."""
    try:
        tokens = split_tokens(text)
    except FaultError:
        return  # the compiler says what is wrong
    called = [name.value for name, sign in pairwise(tokens) if sign.value == "("]
    costly = sorted(_COSTLY.intersection(it for it in called if isinstance(it, str)))
    if costly:
        raise ContentError(
            f"a content filter has no {costly[0]}: it would look at each level of a text",
            fix="compare attributes, with .level(…), .includes(…) or .contains(…) for texts",
        )
    if called.count(_SEARCH) > 1:
        raise ContentError(
            "a content filter has more than one pattern",
            fix='join them in one: .matches(r"…|…")',
        )


def _in_one_line(error: ExpressionError) -> ContentError:
    """Say what is wrong without the drawing: reason strings have no lines."""
    told = [
        f"at character {it.span.start + 1}: {it.message}" + (f" ({it.fix})" if it.fix else "")
        for it in error.faults[:3]
    ]
    shown = quote("".join(c if c.isprintable() else " " for c in error.text))
    return ContentError(
        f"the content filter {shown} is wrong, {'; '.join(told)}",
        fix="correct it, and subscribe again",
    )
