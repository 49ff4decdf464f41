"""Commands to the gateway: purposes written into topics, the responses, and what can go wrong.

    !RESERVE/home/HASH{marketing,operational|marketing/analytics}
    !AP/home/sensors/HASH{operational/billing}
    !AP/home/sensors/HASH{operational/billing|r.power > 3000}

Rules that hold here:
- The levels `HASH` and `PLUS` stand for `#` and `+`, which are illegal in topics that are
  published, and in front of a brace in the eyes of Paho. A filter with such a level of its
  own is refused.
- `{}` removes a reservation, `{|}` reserves for nobody.
- What cannot be written so that it is read back the same is refused.
- Keywords and characters can be changed; the gateway must use the same.
- Any MQTT client can carry a command; a response is JSON, or a drawing as text.
- Errors name the filter and the purpose.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.errors import DeniedError, PenstockError, UnavailableError, quote

_UNSPECIFIED = 0x80
"""The only failure that MQTT 3.1.1 knows; up to here a code says nothing about the cause."""


class NotationError(PenstockError):
    """A filter, a client id or a purpose cannot be written in a topic."""


class NotConnectedError(UnavailableError):
    """There is no connection, or none could be made."""


class NoAnswerError(UnavailableError):
    """The gateway did not answer in time."""


class RefusedError(DeniedError):
    """The gateway refused; `filter` and `purpose` say what, `reason` says why where known."""

    def __init__(self, action: str, *, code: int, reason: str | None, fix: str) -> None:
        cause = reason or ("no reason given" if code <= _UNSPECIFIED else f"code {code:#04x}")
        super().__init__(f"{action} was refused: {cause}", fix=fix)
        self.code = code
        self.reason = reason
        self.filter: str | None = None
        self.purpose: str | None = None


def refused_subscription(
    filter_: str,
    purpose: str | None,
    *,
    code: int,
    reason: str | None,
    content: str | None = None,
) -> RefusedError:
    """Return the error for a refused SUBSCRIBE."""
    purposes = f"for the purpose {quote(purpose)}" if purpose else "without a purpose"
    fix = "ask with `penstock check` which purposes the topic is reserved for"
    if content is not None:
        fix += ", and see that the content filter names fields of the stream"
    error = RefusedError(
        f"the subscription to {quote(filter_)} {purposes}", code=code, reason=reason, fix=fix
    )
    error.filter, error.purpose = filter_, purpose
    return error


def refused_message(action: str, *, code: int, reason: str | None) -> RefusedError:
    """Return the error for a refused PUBLISH: a message or a command."""
    return RefusedError(
        action,
        code=code,
        reason=reason,
        fix="ask the operator for the right, or correct what the reason names",
    )


AP_PROPERTY = "purpose-ap"
AIP_PROPERTY = "purpose-aip"
PIP_PROPERTY = "purpose-pip"
CONTENT_PROPERTY = "content-filter"
_CODED = {it: f"%{ord(it):02X}" for it in "%+#{}\0"}
_PURPOSE_LIMIT = 255
_MARKS = frozenset("{}|,+#")


@dataclass(frozen=True, slots=True)
class Notation:
    """The keywords and characters of commands."""

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

    def reservation(self, filter_: str, aip: Iterable[str], pip: Iterable[str]) -> str:
        """Write a reservation; without any purpose it is for nobody."""
        return f"{self.prefix}{self.reserve}/{self.published(filter_)}{self.purposes(aip, pip)}"

    def release(self, filter_: str) -> str:
        """Write the removal of a reservation."""
        return f"{self.prefix}{self.reserve}/{self.published(filter_)}{self.opening}{self.closing}"

    def advertisement(self, filter_: str) -> str:
        """Write that something will be published; the payload says for how many seconds."""
        return f"{self.prefix}{self.advertise}/{self.published(filter_)}"

    def withdrawal(self, filter_: str) -> str:
        """Write the end of an advertisement."""
        return f"{self.advertisement(filter_)}{self.opening}{self.closing}"

    def definition(self, stream: str) -> str:
        """Write that a type is defined; the payload says what it is, as JSON."""
        return f"{self.prefix}{self.define}/{_some(stream, 'stream')}"

    def subscription(
        self, filter_: str, purpose: str | None = None, content: str | None = None
    ) -> str:
        """Write a filter of a SUBSCRIBE or an UNSUBSCRIBE with its purpose and content filter."""
        written = f"{self.prefix}{self.access}/{self.published(filter_)}"
        if content is None:
            return written + self._enclosed(purpose or "")
        inside = self.check_purpose(purpose) if purpose is not None else ""
        # What cannot stand in a filter is written as codes; wild cards least of all.
        coded = "".join(_CODED.get(it, it) for it in content)
        for mark in (self.opening, self.closing):
            coded = coded.replace(mark, "".join(f"%{byte:02X}" for byte in mark.encode()))
        return f"{written}{self.opening}{inside}{self.divider}{coded}{self.closing}"

    def one_message(self, topic: str, aip: Iterable[str], pip: Iterable[str]) -> str:
        """Write the topic of a message with purposes of its own."""
        start = f"{self.prefix}{self.intended}/{_some(topic, 'topic')}"
        return start + self.purposes(aip, pip)

    def presubscription(self, client_id: str, filter_: str, purpose: str | None) -> str:
        """Write a purpose for the later, plain subscription of a client; None removes it."""
        if not client_id or set("/+#\0") & set(client_id):
            raise NotationError(
                f"client id {quote(client_id)} cannot stand in a presubscription",
                fix="use a client id without / + #",
            )
        marked = f"{self.opening}{self.closing}" if purpose is None else self._enclosed(purpose)
        return self.command(self.presubscribe, client_id, self.published(filter_) + marked)

    def command(self, *words: str) -> str:
        """Write a command of the administration."""
        return "/".join((self.prefix + self.administer, *words))

    def published(self, filter_: str) -> str:
        """Write a filter so that it may stand in any topic."""
        stand_ins = {"#": self.rest, "+": self.one}
        levels = _some(filter_, "filter").split("/")
        taken = next((level for level in levels if level in stand_ins.values()), None)
        if taken is not None:
            raise NotationError(
                f"filter {quote(filter_)} has a level {quote(taken)}, which stands for a wildcard",
                fix="rename the level, or choose other words in the notation",
            )
        written = "/".join(stand_ins.get(level, level) for level in levels)
        if set("#+") & set(written):
            raise NotationError(
                f"filter {quote(filter_)} has a wildcard inside a level",
                fix="let + and # be levels of their own",
            )
        return written

    def purposes(self, aip: Iterable[str], pip: Iterable[str]) -> str:
        """Write a set of allowed and prohibited purposes."""
        allowed = self.separator.join(self.check_purpose(purpose) for purpose in list_purposes(aip))
        prohibited = self.separator.join(
            self.check_purpose(purpose) for purpose in list_purposes(pip)
        )
        # An empty pair of braces would remove the reservation, the opposite of {|}.
        divider = self.divider if prohibited or not allowed else ""
        return f"{self.opening}{allowed}{divider}{prohibited}{self.closing}"

    def check_purpose(self, purpose: str) -> str:
        """Return the purpose if the gateway would take it: MQTT 3.1.1 could not say that not."""
        marks = {*_MARKS, self.opening, self.closing, self.divider, self.separator}
        if (
            not purpose
            or len(purpose) > _PURPOSE_LIMIT
            or purpose != purpose.strip()
            or not purpose.isprintable()
            or "" in purpose.split("/")
            or any(mark in purpose for mark in marks)
        ):
            raise NotationError(
                f"{quote(purpose)} is not a purpose",
                fix="use a path such as marketing/individualized, of at most "
                f"{_PURPOSE_LIMIT} characters, without {' '.join(sorted(marks))}",
            )
        return purpose

    def _enclosed(self, purpose: str) -> str:
        return f"{self.opening}{self.check_purpose(purpose)}{self.closing}"


NOTATION = Notation()


def _some(text: str, noun: str) -> str:
    if not text:
        raise NotationError(f"the {noun} is empty", fix=f"name a {noun}")
    return text


def list_purposes(purposes: Iterable[str]) -> list[str]:
    """Return the purposes as a list; one text on its own is a slip, not a list of letters."""
    if isinstance(purposes, str):
        raise NotationError(
            f"purposes {quote(purposes)} are one text", fix=f"write [{quote(purposes)}]"
        )
    return list(purposes)


@dataclass(frozen=True, slots=True)
class Purposes:
    """Allowed and prohibited intended purposes, each in alphabetical order."""

    allowed: tuple[str, ...] = ()
    prohibited: tuple[str, ...] = ()


def read_combined(payload: bytes) -> Purposes | None:
    """Read the effective purposes of a topic; None where it is not reserved."""
    return _purposes(json.loads(payload)["purposes"])


def read_affected(payload: bytes) -> dict[str, Purposes]:
    """Read the reservations that apply to topics of a filter."""
    listed = json.loads(payload)["reservations"]
    return {filter_: _purposes(given) or Purposes() for filter_, given in listed.items()}


def _purposes(given: Any) -> Purposes | None:
    if given is None:
        return None
    return Purposes(tuple(given["allow"]), tuple(given["prohibit"]))
