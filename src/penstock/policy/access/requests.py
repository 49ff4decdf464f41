"""What the authorizer is asked: may somebody read or write a message, for a purpose, now.

Of a message, conditions see what it is about (`o`), and its user properties.

MQTT 5 lets the name of a property repeat (MQTT5 3.3.2.3.7), and subscribers see every value of it.
A condition sees one value or none: which of several counts is not for the machine to guess.

Rules that hold here:
- A property whose name repeats has no value: None in what gateways tell each other.
- A condition that asks for such a name, or for the properties as a whole, is not answered, not
  even with "it is missing": `!has(t.properties.x)` must not hold for a message that carries `x`.
  Who decides denies what raises.
- A payload is a JSON object as `json_text` reads it; anything else has no attributes. Two
  readers of one payload must see the same.
- An attribute that two definitions find with different values is missing.
- A payload is parsed at most once for a message, and only where something looks at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Never

from penstock.errors import PenstockError, UsageError
from penstock.json_text import read_object
from penstock.model.kinds import ObjectShape
from penstock.model.purposes import PurposeSet, check_purpose
from penstock.model.topics import check_topic
from penstock.policy.access.emergencies import NO_SITUATIONS, Situations
from penstock.policy.access.principals import ANONYMOUS, Action
from penstock.policy.purposes.subscriptions import Subscription


class RepeatedPropertyError(PenstockError):
    """A condition asked for a user property that a message carries more than once."""

    def __init__(self) -> None:
        super().__init__(
            "a user property that a condition asks for stands in the message more than once",
            fix="publish it once",
        )


def collect(pairs: Iterable[tuple[str, str]]) -> dict[str, str | None]:
    """Return user properties by name; a name that repeats has no value."""
    found: dict[str, str | None] = {}
    for name, value in pairs:
        found[name] = None if name in found else value
    return found


def guard(found: Mapping[str, str | None]) -> Mapping[str, Any]:
    """Return what conditions may look at."""
    return _Guarded(found) if None in found.values() else found


class _Guarded(Mapping[str, Any]):
    """User properties of which some repeat."""

    __slots__ = ("_found",)

    def __init__(self, found: Mapping[str, str | None]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> str:
        value = self._found[name]
        if value is None:
            raise RepeatedPropertyError
        return value

    def __iter__(self) -> Iterator[Never]:
        raise RepeatedPropertyError

    def __len__(self) -> Never:
        raise RepeatedPropertyError


class Message:
    """A message as decisions see it; `user` and `client` are its publisher's.

    A client that nobody has authenticated is told for whom it publishes, and no condition.
    `behalf` is the user for whom it was published, where that was found out before; `rest`
    are further fields of `t`, such as qos and contentType; `about` are attributes of a
    hypothetical object, which go before those that are found; `data_subject` is whom a
    hypothetical message is about.
    """

    __slots__ = (
        "_about",
        "_content",
        "_given",
        "_layout",
        "_raw",
        "_rest",
        "_t",
        "behalf",
        "client",
        "data_subject",
        "look",
        "reshaped",
        "topic",
        "user",
    )

    def __init__(
        self,
        topic: str,
        payload: bytes | Mapping[str, Any] = b"",
        *,
        user: str | None = None,
        client: str | None = None,
        behalf: str | None = None,
        rest: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
        data_subject: str | None = None,
    ) -> None:
        self.topic = topic
        self.data_subject = data_subject
        self.reshaped: dict[Any, Any] = {}
        """What transformations make of it that are the same for all who get it."""
        self.user = user
        self.client = client
        self.behalf = behalf
        self._rest = rest
        self._given = about
        self._raw = payload if isinstance(payload, bytes) else None
        self._content = None if isinstance(payload, bytes) else payload
        self._t: dict[str, Any] | None = None
        self._about: Mapping[str, Any] | None = None
        self._layout: ObjectLayout | None = None  # that `_about` was found by
        self.look: Any = None
        """What content filters have made of it."""

    @property
    def content(self) -> Mapping[str, Any] | None:
        """The JSON object that the payload is, None where it is none."""
        if self._raw is not None:
            self._content, self._raw = read_object(self._raw), None
        return self._content

    @property
    def is_empty(self) -> bool:
        """Whether it is known to hold nothing, and to take back what the broker has retained."""
        rest = self._rest or {}
        said = rest.get("contentType") or rest.get("properties")
        return rest.get("size") == 0 and rest.get("retain") is True and not said

    def user_property(self, name: str) -> str | None:
        """Return the value of a user property; None where it is missing, or repeats."""
        properties: Mapping[str, str | None] = (self._rest or {}).get("properties", {})
        return properties.get(name)

    @property
    def t(self) -> dict[str, Any]:
        """The message as expressions see it."""
        if self._t is None:
            self._t = {
                **(self._rest or {}),
                "topic": self.topic,
                "user": self.user,
                # Anybody can choose an identifier: without a user it is nobody's.
                "clientId": self.client if self.user is not None else None,
                "payload": self.content,
            }
            if "properties" in self._t:
                self._t["properties"] = guard(self._t["properties"])
        return self._t

    def about(self, layout: ObjectLayout) -> Mapping[str, Any]:
        """Return `o`, as the definitions that hold for its topic find it."""
        if self._about is None or self._layout is not layout:
            about = layout.find(self.content if layout.paths else None)
            self._about = {**about, **self._given} if self._given else about
            self._layout = layout
        return self._about


@dataclass(frozen=True, slots=True, eq=False)
class ObjectLayout:
    """Where definitions find the attributes of `o` in the messages of one topic."""

    levels: Mapping[str, str | None]
    paths: tuple[tuple[str, tuple[str, ...]], ...]

    def find(self, payload: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return the attributes of a message."""
        if not self.paths:
            return self.levels
        found: dict[str, Any] = dict(self.levels)
        for name, path in self.paths:
            value: Any = payload
            for step in path:
                value = value.get(step) if isinstance(value, Mapping) else None
            # Found before with another value: nobody knows which one is meant.
            found[name] = value if name not in found or _same(found[name], value) else None
        return found


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def make_layout(topic: str, shapes: Iterable[ObjectShape]) -> ObjectLayout:
    """Join what definitions say that match a topic."""
    parts = topic.split("/")
    levels: dict[str, str | None] = {}
    paths: list[tuple[str, tuple[str, ...]]] = []
    for shape in sorted(shapes, key=lambda it: it.name):
        for at, name in shape.levels.items():
            value = parts[at]
            levels[name] = value if levels.get(name, value) == value else None
        for name, path in shape.payload.items():
            way = (name, tuple(path.split(".")))
            if way not in paths:
                paths.append(way)
    return ObjectLayout(levels, tuple(paths))


class AccessRequest(NamedTuple):
    """Whether someone may read or write a message, for a purpose, now."""

    action: Action
    topic: str
    user: str | None = None
    client: str | None = None
    purpose: str | None = None
    """The access purpose; writing has none."""
    message_purposes: PurposeSet | None = None
    """The purposes that the message carries for itself."""
    subscription: Subscription | None = None
    """The subscription that the message would pass through, where one is held."""
    message: Message | None = None
    """What is read or written. None says that nobody knows who published it."""
    environment: Mapping[str, Any] = {}
    """What conditions know as `e`, the time included; the purpose is added here."""
    situations: Situations = NO_SITUATIONS
    attributes: Mapping[str, Any] | None = None
    """Attributes of a hypothetical principal: they go before those that are known."""
    advertised: bool = True
    """Whether what is written was advertised, or needs not be; nobody who only asks knows it."""

    @property
    def e(self) -> Mapping[str, Any]:
        """Return what conditions see as `e`."""
        if self.action == "read":
            return {**self.environment, "purpose": self.purpose}
        return self.environment


def make_request(
    topic: str,
    *,
    action: Action = "read",
    purpose: str | None = None,
    user: str | None = None,
    client: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    payload: Mapping[str, Any] | None = None,
    publisher: str | None = None,
    data_subject: str | None = None,
    message_purposes: PurposeSet | None = None,
    situations: Situations = NO_SITUATIONS,
) -> AccessRequest:
    """Make the request of a question by hand: of a message as it is described, checked.

    `about` are attributes of a hypothetical object, `publisher` is who published what is read,
    `data_subject` whom it is about where the topic does not tell.
    """
    check_topic(topic)
    user, publisher = (None if it == ANONYMOUS else it for it in (user, publisher))
    if purpose is not None:
        check_purpose(purpose)
    writes = action == "write"
    if writes and purpose is not None:
        raise UsageError(
            "a purpose belongs to reading; writing has none", fix="leave out the purpose"
        )
    return AccessRequest(
        action,
        topic,
        user,
        client,
        purpose,
        message_purposes=message_purposes,
        message=Message(
            topic,
            payload or {},
            user=user if writes else publisher,
            client=client if writes else None,
            about=about,
            data_subject=data_subject,
        ),
        environment=environment or {},
        situations=situations,
        attributes=attributes or {},
    )
