"""A client's session as the gateway sees it: who it is, and its subscriptions by number.

Rules that hold here:
- The gateway gives every filter of a session one number, its own subscription identifier
  at the broker (MQTT5 3.8.2.1.2), and keeps it as long as the filter is subscribed: a message
  that was queued under a number is judged by what that filter stands for now.
- A number is never used for two filters of one session, so that a message that comes late
  cannot pass for one of another subscription.
- One principal per session; the principal is what the gateway found out, never what the
  client claims.
"""

from __future__ import annotations

import secrets
from typing import Final

from penstock.mqtt import Will
from penstock.policy.access.principals import ANONYMOUS
from penstock.policy.purposes.subscriptions import Subscription
from penstock.store.sessions import StoredSubscription

HIGHEST_NUMBER: Final = 268_435_455
NO_LOCAL: Final = 0x04
"""The option of a subscription (MQTT5 3.8.3.1)."""


class Session:
    """What belongs to one client identifier."""

    __slots__ = (
        "address",
        "by_number",
        "chosen_roles",
        "cleared",
        "client_id",
        "counted",
        "credential",
        "dormant",
        "era",
        "expiry",
        "holder",
        "last_number",
        "missing",
        "numbers",
        "persisted",
        "presented",
        "principal",
        "stored",
        "user",
        "valid_until",
        "will",
        "will_given",
    )

    def __init__(self, client_id: str, principal: str, expiry: int, *, address: str = "") -> None:
        self.client_id = client_id
        self.address = address
        """Where the client is connected from; empty where nobody knows any more."""
        self.principal = principal
        self.user = None if principal == ANONYMOUS else principal
        """Who has authenticated, None where nobody has."""
        self.credential: str | None = None
        """What the file of passwords said of the user at the log-in; None: another way in."""
        self.presented = ""
        """The capability that the client has shown, with its proof; empty: none."""
        self.chosen_roles: tuple[str, ...] | None = None
        """The roles that the client named when it connected; None: all that activate."""
        self.valid_until = float("inf")
        """When the log-in ends by itself, as that by a token, in seconds since 1970."""
        self.expiry = expiry
        self.will: Will | None = None
        """The will as it is to be published, stamp included; None where there is none."""
        self.will_given = False
        """Whether the broker has it."""
        self.holder = secrets.token_hex(8)
        """Tells this connection from others of the same session, in the store."""
        self.stored = False
        """Whether the store knows this session, so that its end must be told."""
        self.counted = False
        """Whether the store has counted this session: else the broker must not keep it."""
        self.by_number: dict[int, Subscription] = {}
        self.numbers: dict[str, int] = {}
        self.last_number = 0
        self.dormant: dict[str, StoredSubscription] = {}
        """Subscriptions that the rules of now would refuse as they were made."""
        self.era = 0
        """The epoch up to which commands on the purpose state have been carried out here."""
        self.persisted: dict[str, StoredSubscription] = {}
        """Subscriptions as the command PERSIST found them, but for those the client has ended."""
        self.cleared: list[StoredSubscription] = []
        """Subscriptions that commands have ended, of which the broker is to be told."""
        self.missing: list[Subscription] = []
        """Subscriptions that the broker does not have, and is to be asked for."""

    @property
    def resumable(self) -> bool:
        """Whether the session outlives its connection."""
        return self.expiry > 0

    @property
    def quota_address(self) -> str:
        """The address that the session counts for; empty where it counts for its user."""
        return self.address if self.user is None else ""

    @property
    def is_no_local(self) -> bool:
        """Whether some subscription is not to get what this client itself publishes."""
        awake = (it.options for it in self.by_number.values())
        return any(it & NO_LOCAL for it in (*awake, *(it.options for it in self.dormant.values())))

    def number(self, text: str) -> int:
        """Return the number of a filter, a new one if it has none."""
        known = self.numbers.get(text)
        if known is not None:
            return known
        number = self.last_number % HIGHEST_NUMBER + 1
        asleep = {it.number for it in self.dormant.values()}
        while number in self.by_number or number in asleep:
            number = number % HIGHEST_NUMBER + 1
        self.last_number = number
        self.numbers[text] = number
        return number

    def hold(self, subscription: Subscription) -> StoredSubscription:
        """Keep a subscription under its number; return what the store has to know."""
        number = self.number(subscription.text)
        self.by_number[number] = subscription
        return StoredSubscription(
            subscription.text,
            number,
            subscription.ap,
            subscription.options,
            subscription.identifier,
            subscription.content.text if subscription.content is not None else None,
        )

    def restore(self, stored: StoredSubscription, subscription: Subscription | None) -> None:
        """Take up a subscription under the number it had; None: it sleeps."""
        self.numbers[stored.filter] = stored.number
        if subscription is None:
            self.dormant[stored.filter] = stored
        else:
            self.hold(subscription)

    def find(self, text: str) -> Subscription | None:
        """Return the subscription to a filter, unless it sleeps."""
        number = self.numbers.get(text)
        return self.by_number.get(number) if number is not None else None

    def put_to_sleep(self, subscription: Subscription) -> StoredSubscription:
        """Let a subscription rest: it keeps its number, under which nothing is delivered."""
        asleep = self.dormant[subscription.text] = self.hold(subscription)
        del self.by_number[asleep.number]
        return asleep

    def purpose_under(self, number: int) -> tuple[str | None] | None:
        """Return the purpose of a number's subscription, awake or asleep; None if none is known."""
        held = self.by_number.get(number)
        if held is not None:
            return (held.ap,)
        return next(((it.purpose,) for it in self.dormant.values() if it.number == number), None)

    def subscriptions(self) -> list[StoredSubscription]:
        """Return all subscriptions, awake and asleep, as the store knows them."""
        return [*map(self.hold, list(self.by_number.values())), *self.dormant.values()]

    def drop(self, text: str) -> None:
        """Forget a filter that the client has ended: no command brings it back."""
        self.persisted.pop(text, None)
        self.end(text)

    def end(self, text: str) -> None:
        """End a filter: what still comes under its number is unknown from now on."""
        self.dormant.pop(text, None)
        number = self.numbers.pop(text, None)
        if number is not None:
            self.by_number.pop(number, None)
