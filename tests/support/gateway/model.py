"""The gateway and its broker in their plainest form: lists and loops, nothing remembered.

It says which messages each client has received after each step. A client's subscription is
`at_broker` while the broker matches messages with it: that ends when it is paused, and goes
on while the client is away.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.model.purposes import PurposeSet, lineage
from penstock.model.topics import covers, matches, overlaps

Text = tuple[str, bytes]


@dataclass
class Held:
    """A subscription."""

    filter: str
    ap: str | None
    qos: int
    at_broker: bool = True


@dataclass
class Message:
    """A message, with its own purposes."""

    topic: str
    payload: bytes
    purposes: PurposeSet | None
    qos: int = 1


@dataclass
class Client:
    """A client and its session."""

    old: bool
    """Whether it speaks 3.1.1, so that it gets one copy of a message."""
    resumable: bool
    connected: bool = False
    held: dict[str, Held] = field(default_factory=dict)
    ended: dict[str, Held] = field(default_factory=dict)
    """What commands ended while it was away, so that the broker still has it."""
    persisted: dict[str, Held] = field(default_factory=dict)
    """What it had when the state was persisted, but for what it has ended itself."""
    queue: list[tuple[Message, list[str]]] = field(default_factory=list)
    received: list[Text] = field(default_factory=list)

    def drop(self, filter_: str) -> None:
        """End a subscription because the client wants it."""
        self.held.pop(filter_, None)
        self.persisted.pop(filter_, None)

    def end(self, filter_: str) -> None:
        """End a subscription because a command says so."""
        held = self.held.pop(filter_)
        if not self.connected and held.at_broker:
            self.ended[filter_] = held


@dataclass
class World:
    """Everything."""

    mode: str = "publish"
    strict: bool = False
    reservations: dict[str, PurposeSet] = field(default_factory=dict)
    presubscriptions: dict[tuple[str, str], str] = field(default_factory=dict)
    persisted: tuple[dict[str, PurposeSet], dict[tuple[str, str], str]] = field(
        default_factory=lambda: ({}, {})
    )
    retained: dict[str, Message] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)

    # --- what may be ---

    def allows(self, topic: str, ap: str | None) -> bool:
        sets = [held for filter_, held in self.reservations.items() if matches(filter_, topic)]
        if not sets:
            return not self.strict
        line = lineage(ap) if ap is not None else ()
        allowed = any(purpose in held.aip for held in sets for purpose in line)
        prohibited = any(purpose in held.pip for held in sets for purpose in line)
        return allowed and not prohibited

    def admits(self, filter_: str, ap: str | None) -> bool:
        around = {f: held for f, held in self.reservations.items() if overlaps(f, filter_)}
        covering = [held for f, held in around.items() if covers(f, filter_)]
        partial = [held for f, held in around.items() if not covers(f, filter_)]
        union = PurposeSet(
            frozenset(p for held in covering for p in held.aip),
            frozenset(p for held in covering for p in held.pip),
        )
        if self.mode == "subscribe":
            as_a_whole = union.compatible(ap) if covering else not self.strict
            return as_a_whole and all(
                held.union(union).compatible(ap) if held.prohibits_only else held.compatible(ap)
                for held in partial
            )
        if self.mode == "hybrid":
            return union.compatible(ap) if covering else not self.strict
        return True

    def passes(self, held: Held, message: Message) -> bool:
        own = message.purposes
        return (
            self.admits(held.filter, held.ap)
            and self.allows(message.topic, held.ap)
            and (own is None or own.admits(held.ap))
        )

    # --- what happens ---

    def settle(self) -> None:
        """Pause and resume at the broker what the rules have turned, for those connected."""
        for client in self.clients.values():
            if client.connected:
                for held in client.held.values():
                    held.at_broker = self.admits(held.filter, held.ap)

    def reserve(self, filter_: str, purposes: PurposeSet | None) -> None:
        if purposes is None:
            self.reservations.pop(filter_, None)
        else:
            self.reservations[filter_] = purposes
        self.settle()

    def subscribe(self, name: str, filter_: str, ap: str | None, qos: int) -> bool:
        client = self.clients[name]
        ap = ap if ap is not None else self.presubscriptions.get((name, filter_))
        client.held.pop(filter_, None)
        if not self.admits(filter_, ap):
            client.drop(filter_)
            return False
        held = client.held[filter_] = Held(filter_, ap, qos)
        for message in self.retained.values():
            if matches(filter_, message.topic) and self.passes(held, message):
                client.received.append((message.topic, message.payload))
        return True

    def publish(self, message: Message, *, retain: bool) -> None:
        if retain:
            self.retained[message.topic] = message
        for client in self.clients.values():
            matching = [
                held
                for held in (*client.held.values(), *client.ended.values())
                if held.at_broker and matches(held.filter, message.topic)
            ]
            if client.connected:
                self.deliver(client, message, matching)
            elif client.resumable:
                kept = list({held.filter: 0 for held in matching if min(held.qos, message.qos)})
                if kept:
                    client.queue.append((message, kept))

    def deliver(self, client: Client, message: Message, matching: list[Held]) -> None:
        copies = [held for held in matching if self.passes(held, message)]
        if client.old:
            copies = copies[:1]
        client.received += [(message.topic, message.payload)] * len(copies)

    def connect(self, name: str) -> None:
        client = self.clients[name]
        client.connected = True
        queue, client.queue = client.queue, []
        for message, filters in queue:
            self.deliver(client, message, [client.held[it] for it in filters if it in client.held])
        client.ended.clear()
        self.settle()

    def disconnect(self, name: str) -> None:
        client = self.clients[name]
        client.connected = False
        if not client.resumable:
            client.held.clear()
            client.persisted.clear()

    # --- commands on the whole state ---

    def clear(self) -> None:
        self.reservations, self.presubscriptions = {}, {}
        for client in self.clients.values():
            for held in [it for it in client.held.values() if it.ap is not None]:
                client.end(held.filter)
        self.settle()

    def persist(self) -> None:
        self.persisted = (dict(self.reservations), dict(self.presubscriptions))
        for client in self.clients.values():
            client.persisted = {name: replace(held) for name, held in client.held.items()}

    def reload(self) -> None:
        reserved, presubscribed = self.persisted
        self.reservations, self.presubscriptions = dict(reserved), dict(presubscribed)
        for client in self.clients.values():
            for held in list(client.held.values()):
                then = client.persisted.get(held.filter)
                if then is not None:
                    held.ap = then.ap
                elif held.ap is not None:
                    client.end(held.filter)
            for name, then in client.persisted.items():
                if name not in client.held:
                    still = client.ended.pop(name, None)
                    client.held[name] = replace(then, at_broker=still is not None)
        self.settle()
