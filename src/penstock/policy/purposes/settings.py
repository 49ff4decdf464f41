"""Settings of purpose limitation: how purposes are written into topics, and what is filtered when.

Rules that hold here:
- Everything that begins with the prefix is a command or malformed, never a message: a
  mistyped command must not reach subscribers.
- Keywords are whole topic levels. They and the characters are non-empty, contain neither
  `/`, wildcards nor NUL, and cannot be mistaken for one another.
- Every combination of filters means something, so that settings can be changed one by one:
  `filter_on_subscribe` goes before `filter_hybrid`; with neither, deliveries are filtered,
  whatever `filter_on_publish` says. There is no way to switch filtering off.
- `filter_on_publish` beside `filter_on_subscribe` checks each delivery once more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum

from penstock.errors import UsageError, quote
from penstock.model.purposes import PurposeError, PurposeSet, check_purpose, read_purposes


@dataclass(frozen=True, slots=True)
class Notation:
    """The words and characters of commands."""

    prefix: str = "!"
    reserve: str = "RESERVE"
    access: str = "AP"
    intended: str = "AIP"
    advertise: str = "ADVERTISE"
    define: str = "DEFINE"
    administer: str = "PBAC"
    presubscribe: str = "PRESUB"
    setting: str = "SET"
    clear: str = "CLEAR"
    reset: str = "RESET"
    persist: str = "PERSIST"
    reload: str = "RELOAD"
    tree: str = "TREE"
    combined: str = "CRES"
    affected: str = "ARES"
    rest: str = "HASH"
    one: str = "PLUS"
    opening: str = "{"
    closing: str = "}"
    divider: str = "|"
    separator: str = ","
    prefix_bytes: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        named = [(f.name, getattr(self, f.name)) for f in fields(self) if f.init]
        for name, text in named:
            if not text or any(c in text for c in "/+#\0"):
                raise UsageError(
                    f"the notation has {quote(text)} for {name}",
                    fix="use at least one character, and neither '/', '+', '#' nor NUL",
                )
        for group in (_OPENERS, _VERBS, _WILDCARDS, _MARKS):
            _check_distinct(self, group)
        object.__setattr__(self, "prefix_bytes", self.prefix.encode())

    def is_command(self, topic: str) -> bool:
        """Tell whether a topic or filter is addressed to the gateway itself."""
        return topic.startswith(self.prefix)

    def is_question(self, text: str) -> bool:
        """Tell whether a topic or filter is that of questions which are answered in public."""
        first, *levels = text.split("/", 2)
        return (
            first == self.prefix + self.administer
            and len(levels) > 1
            and levels[0] in (self.combined, self.affected)
            and bool(levels[1])
        )

    def split_marked(self, text: str) -> tuple[str, str]:
        """Split `path{inside}`; the path may contain braces, purposes may not."""
        start = text.rfind(self.opening)
        if start < 0 or not text.endswith(self.closing):
            raise UsageError(
                f"{quote(text)} does not end with purposes",
                fix=f"end with {self.opening}…{self.closing}",
            )
        return text[:start], text[start + len(self.opening) : -len(self.closing)]

    def read_set(self, inside: str) -> PurposeSet | None:
        """Read `aip,…|pip,…`; nothing at all gives None."""
        return read_purposes(inside, divider=self.divider, separator=self.separator)

    def read_purpose(self, inside: str) -> str:
        """Read the one purpose of a subscription."""
        for mark in (self.divider, self.separator):
            if mark in inside:
                raise PurposeError(
                    f"{quote(inside)} names more than one purpose",
                    fix="subscribe for exactly one purpose",
                )
        return check_purpose(inside)

    def read_filter(self, text: str) -> str:
        """Put wildcards in place of the levels that stand for them."""
        if self.rest not in text and self.one not in text:
            return text
        wildcards = {self.rest: "#", self.one: "+"}
        return "/".join(wildcards.get(level, level) for level in text.split("/"))


_OPENERS = ("reserve", "access", "intended", "advertise", "define", "administer")
_VERBS = (
    "presubscribe",
    "setting",
    "clear",
    "reset",
    "persist",
    "reload",
    "tree",
    "combined",
    "affected",
)
_WILDCARDS = ("rest", "one")
_MARKS = ("opening", "closing", "divider", "separator")


def _check_distinct(notation: Notation, names: tuple[str, ...]) -> None:
    taken: dict[str, str] = {}
    for name in names:
        text = getattr(notation, name)
        if text in taken:
            raise UsageError(
                f"the notation has {quote(text)} for both {taken[text]} and {name}",
                fix="choose different texts",
            )
        taken[text] = name


class Mode(Enum):
    """When compatibility is decided."""

    ON_SUBSCRIBE = "on subscribe"
    ON_PUBLISH = "on publish"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class PurposeSettings:
    """What can be switched while messages flow."""

    allow_without_reservation: bool = True
    claims_need_right: bool = False
    filter_on_subscribe: bool = False
    filter_on_publish: bool = True
    filter_hybrid: bool = False
    hybrid_partial: bool = False
    hybrid_tag: bool = False
    use_tree_store: bool = True
    cache_reservations: bool = True
    cache_subscriptions: bool = True
    auto_persist: bool = True

    @property
    def mode(self) -> Mode:
        """Return the mode that these settings put in force."""
        if self.filter_on_subscribe:
            return Mode.ON_SUBSCRIBE
        return Mode.HYBRID if self.filter_hybrid else Mode.ON_PUBLISH

    @property
    def checks_deliveries(self) -> bool:
        """Tell whether the topic of each delivery is checked against its subscription."""
        return self.mode is not Mode.ON_SUBSCRIBE or self.filter_on_publish

    def change(self, name: str, *, value: bool) -> PurposeSettings:
        """Return the settings with one of them changed."""
        check_setting(name)
        return replace(self, **{name: value})

    def as_dict(self) -> dict[str, bool]:
        """Return all settings by name."""
        return asdict(self)


SETTING_NAMES = tuple(field.name for field in fields(PurposeSettings))


def check_setting(name: str) -> str:
    """Return the name if there is such a setting."""
    if name not in SETTING_NAMES:
        raise UsageError(
            f"there is no setting {quote(name)}", fix=f"choose one of {', '.join(SETTING_NAMES)}"
        )
    return name
