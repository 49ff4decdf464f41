"""The gateway: limits, log-ins, reservations and emergencies; `recording`, to the event log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from penstock.config.listeners import ListenerName, ListenerSettings, find_twins
from penstock.config.settings import (
    Conflict,
    DataPath,
    Duration,
    Host,
    InputFile,
    Port,
    Settings,
    Size,
    TypeLabel,
    is_loopback,
    setting,
)

ExceptedSubject = Annotated[
    str,
    Field(pattern=r"^(user|group|client):[^\x00-\x1f\x7f]+$", max_length=300),
    TypeLabel("a subject", "user:NAME, group:NAME or client:ID"),
]


class LimitSettings(Settings):
    """Limits on what clients may use."""

    connections: Annotated[int, Field(ge=1, le=1_000_000)] = setting(
        10_000, "The most clients at a time."
    )
    connect_timeout: Annotated[Duration, Field(gt=0, le=300)] = setting(
        "10s", "How long a new connection may take to send its CONNECT."
    )
    connect: Annotated[Size, Field(ge=1024, le=1 << 20)] = setting(
        "128KiB", "The largest CONNECT: what a peer may send before it has authenticated."
    )
    unauthenticated: Annotated[int, Field(ge=2, le=1_000_000)] = setting(
        2000,
        "The most connections at a time that have not sent their CONNECT yet, and the most "
        "log-ins that wait to be checked. Networks share them fairly: beyond it, the network that "
        "has most gives way.",
    )
    unauthenticated_per_address: Annotated[int, Field(ge=1, le=1_000_000)] = setting(
        1000, "The most of these from one network address."
    )
    handshakes: Annotated[int, Field(ge=2, le=1_000_000)] = setting(
        200,
        "The most TLS handshakes under way at a time, half of them from one network address.",
    )
    keep_alive: Annotated[Duration, Field(ge=1, le=65_535)] = setting(
        "65535s",
        "The longest keep alive of a client, whatever it asks for; clients of MQTT 5 are told.",
    )
    packet: Annotated[Size, Field(ge=1024, le=268_435_455)] = setting("1MiB", "The largest packet.")
    subscriptions: Annotated[int, Field(ge=1, le=1_000_000)] = setting(
        1000, "The most subscriptions of one client."
    )
    content_filters: Annotated[int, Field(ge=0, le=1_000_000)] = setting(
        100,
        "The most subscriptions of one client that have a content filter. The clients of a user, "
        "or of an address without users, have 1000 different filters at most.",
    )
    sessions_per_user: Annotated[int, Field(ge=0, le=1_000_000)] = setting(
        100,
        "The most sessions of one user that outlive their connections, at all gateways of the "
        "store together.",
    )
    sessions_per_address: Annotated[int, Field(ge=0, le=1_000_000)] = setting(
        100,
        "The same for all clients without a user at one network address.",
    )
    session_expiry: Annotated[Duration, Field(ge=0, le=4_294_967_295)] = setting(
        "7d",
        "The longest that a session outlives its connection, whatever the client asks for; "
        "clients of MQTT 5 are told.",
    )
    receive_maximum: Annotated[int, Field(ge=1, le=65535)] = setting(
        100, "The most unacknowledged messages of one client, each way."
    )
    queue: Annotated[Size, Field(ge=1024, le=1 << 30)] = setting(
        "1MiB", "The most that may wait for a slow client, or for a slow broker."
    )
    stall_timeout: Annotated[Duration, Field(ge=1, le=86_400)] = setting(
        "1m", "How long a client may leave its full queue unread before it is closed."
    )
    connections_per_address: Annotated[int, Field(ge=1, le=1_000_000)] = setting(
        10_000,
        "The most clients at a time from one network address: one of IPv4, or a /64 of IPv6.",
    )
    client_id_bytes: Annotated[int, Field(ge=23, le=65_535)] = setting(
        65_535, "The longest client identifier, in bytes."
    )
    topic_bytes: Annotated[int, Field(ge=16, le=65_535)] = setting(
        4096, "The longest topic or filter, in bytes."
    )
    topic_levels: Annotated[int, Field(ge=1, le=200)] = setting(
        200, "The most levels of a topic or filter."
    )
    topic_aliases: Annotated[int, Field(ge=0, le=65_535)] = setting(
        64, "The most topic aliases of one client."
    )
    commands: Annotated[int, Field(ge=1, le=1_000_000)] = setting(
        100, "The most purpose commands of one client per second."
    )
    state_commands: Annotated[int, Field(ge=1, le=1_000_000)] = setting(
        30,
        "The most commands `CLEAR`, `RESET`, `PERSIST` and `RELOAD` of all clients of a gateway "
        "per minute: each may concern all reservations and all clients.",
    )


class FilteringSettings(Settings):
    """How reservations of topics for purposes are enforced."""

    mode: Literal["subscribe", "publish", "hybrid"] = setting(
        "publish",
        "Check when a client subscribes, at each delivery, or both.",
    )
    hybrid_partial: bool = setting(
        default=False,
        description="Whether the hybrid mode also accepts a subscription that only a part of its "
        "filter may allow.",
    )
    strict: bool = setting(
        default=False, description="Whether a topic without a reservation is closed to all."
    )
    claims_need_right: bool = setting(
        default=False,
        description="Whether a client that subscribes for a purpose needs the right to claim it: "
        "`claim` of a `right`, or of a role of its user.",
        initial=True,
    )
    denied_publish: Literal["acknowledge", "close"] = setting(
        "acknowledge",
        "What an MQTT 3.1.1 client sees when its message is denied: an "
        "acknowledgement (the message is dropped), or the end of its connection.",
    )
    replay_retained: bool = setting(
        default=False,
        description="Whether a subscription that was paused gets retained messages again "
        "when it is resumed.",
    )
    clear_excepts: Annotated[tuple[ExceptedSubject, ...], Field(max_length=1_000)] = setting(
        (),
        "Whose subscriptions for purposes the commands `CLEAR` and `RESET` do not end: "
        "`user:NAME`, `group:NAME`, or `client:ID` of an authenticated client. Set it alike at "
        "all gateways of a store.",
        examples=('["group:operators"]',),
    )
    publish_answers: bool = setting(
        default=False,
        description="Whether answers to `CRES` and `ARES` are published on the topic of the "
        "command, too, for clients that subscribe to it and may ask the same.",
    )
    slow_clients: Literal["drop", "wait"] = setting(
        "drop",
        "What becomes of QoS 0 messages for which a slow client's queue has no room: dropped "
        "here, or left to the broker. Those of QoS 1 and 2 are never dropped; where they fill "
        "the queue four times over, the broker keeps whatever comes after them.",
    )


TokenAlgorithm = Literal[
    "ES256", "ES384", "ES512", "EdDSA", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"
]


class TokenSettings(Settings):
    """JSON Web Tokens that clients give as their password."""

    keys: InputFile | None = setting(
        None,
        "The file of the public keys that tokens are checked with, as a JWK Set; read again when "
        "it changes.",
        examples=("certificates/token-keys.json",),
    )
    url: Annotated[str, Field(pattern=r"^https?://[!-~]+$", max_length=2000)] | None = setting(
        None,
        "Where the JWK Set is fetched from instead, by https; http only from this machine.",
        examples=("https://login.example.org/keys",),
    )
    refresh: Annotated[Duration, Field(ge=10, le=86_400)] = setting(
        "10m", "How often it is fetched; a token of an unknown key fetches it earlier."
    )
    issuer: Annotated[str, Field(min_length=1, max_length=2000)] | None = setting(
        None, "Who issued the tokens, their claim `iss`.", examples=("https://login.example.org",)
    )
    audience: Annotated[str, Field(min_length=1, max_length=2000)] | None = setting(
        None, "Whom they are for, one of their claim `aud`.", examples=("penstock",)
    )
    claim: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,100}$")] = setting(
        "sub", "The claim that names the user."
    )
    algorithms: Annotated[tuple[TokenAlgorithm, ...], Field(min_length=1, max_length=10)] = setting(
        ("ES256", "EdDSA", "RS256"), "How they may be signed."
    )
    leeway: Annotated[Duration, Field(ge=0, le=300)] = setting(
        "30s", "How far the clocks of the issuer and of this machine may be apart."
    )

    @property
    def enabled(self) -> bool:
        """Whether tokens are accepted."""
        return self.keys is not None or self.url is not None

    def conflicts(self) -> Iterator[Conflict]:
        """Yield two places of keys, keys fetched in clear, and tokens that are for anybody."""
        if self.keys is not None and self.url is not None:
            yield Conflict("url", "the keys are in a file already", "keep one of the two settings")
        if self.url is not None and self.url.startswith("http://"):
            host = urlsplit(self.url).hostname or ""
            if not is_loopback(host):
                yield Conflict("url", "others on the network could exchange the keys", "use https")
        for name in ("issuer", "audience"):
            if self.enabled and getattr(self, name) is None:
                yield Conflict(
                    name,
                    "without it tokens for other services would open this one",
                    f"set {name} to what the tokens say",
                )


class AuthenticationSettings(Settings):
    """How the gateway authenticates clients: by certificate, by password, or not at all."""

    passwords: DataPath | None = setting(
        None,
        "The file of user names and password hashes, of mode 0600; see `penstock password`.",
        examples=("keys/passwords",),
    )
    relay: bool = setting(
        default=False,
        description="Pass user name and password to the broker, which decides.",
    )
    tokens: TokenSettings = Field(default_factory=TokenSettings)
    anonymous: bool = setting(
        default=False, description="Accept clients without a user name, as the user `anonymous`."
    )
    client_ids: Literal["own", "any"] = setting(
        "own",
        "Which client identifiers users may choose: their `own` (the user name, it and a colon "
        "first, or what the file of passwords lists), or `any` that nobody else has, as brokers "
        "allow and existing fleets need. Those that definitions name stay their owners'.",
    )
    defined_users: bool = setting(
        default=False,
        description="Accept only users that a `user` definition names, however they log in. Who "
        "is no longer defined is closed.",
    )
    checks: Annotated[int, Field(ge=1, le=64)] = setting(
        2, "How many passwords are checked at the same time."
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield two places that would both decide on a password."""
        if self.relay and self.tokens.enabled:
            yield Conflict(
                "relay", "tokens are checked here already", "keep one of the two settings"
            )
        if self.relay and self.passwords is not None:
            yield Conflict(
                "relay", "the file of passwords decides already", "keep one of the two settings"
            )


class EmergencySettings(Settings):
    """How events are detected, and what emergencies may cause."""

    two_persons: bool = setting(
        default=False,
        description="Whether a situation that somebody sets by hand needs a second person.",
    )
    lease: Annotated[Duration, Field(ge=2, le=300)] = setting(
        "10s",
        "How long the leader, which detects events for all gateways of a store, may fail to renew "
        "its lease before another gateway takes over.",
    )
    snapshot: Annotated[Size, Field(ge=65_536, le=1 << 32)] = setting(
        "32MiB", "How large the journal of detection grows before a snapshot of the state is saved."
    )
    history: Annotated[Duration, Field(ge=3600)] = setting(
        "365d", "How long the history of situations is kept."
    )
    action_depth: Annotated[int, Field(ge=1, le=64)] = setting(
        8, "How long a chain of actions may get."
    )
    action_rate: Annotated[int, Field(ge=1, le=100_000)] = setting(
        1000,
        "How many messages of actions are sent per second, in order. The rest "
        "waits in the outbox; its effect on situations is immediate.",
    )
    link_host: Host = setting(
        "127.0.0.1",
        "The address of this host at which other gateways of the same store reach this one: one "
        "is the leader and detects events, the others follow it. They share the pseudonym key.",
        examples=("10.0.0.12",),
    )
    link_port: Port = setting(
        0,
        "The port at `link_host`; further workers take the ports after it. 0 takes a free one.",
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield an address that nobody else can go to."""
        if self.link_host in {"0.0.0.0", "::"}:  # noqa: S104 - it is refused here
            yield Conflict(
                "link_host",
                "other gateways cannot go to every address",
                "name the address of this host that they reach",
            )


NotationWord = Annotated[
    str,
    Field(
        max_length=80,
        pattern=r"^(prefix|reserve|access|intended|advertise|define|administer|presubscribe|setting|clear|reset"
        r"|persist|reload|tree|combined|affected|rest|one|opening|closing|divider|separator)"
        r"=[^/+#\x00]+$",
    ),
    TypeLabel("a word", "NAME=WORD, such as reserve=R"),
]


class GatewaySettings(Settings):
    """The MQTT gateway that clients connect to, in front of the broker."""

    open_mode: bool = setting(
        default=False,
        description="For trials only: every client may reserve and administer. "
        "The gateway warns at each start.",
    )
    listeners: Annotated[
        Mapping[ListenerName, ListenerSettings], Field(min_length=1, max_length=64)
    ] = setting(
        {"mqtt": {}},
        "Where clients connect: a name of your choice, and its settings.",
    )
    workers: Annotated[int, Field(ge=1, le=256)] = setting(
        1, "How many processes share the listeners on this host."
    )
    lanes: Annotated[int, Field(ge=0, le=256)] = setting(
        4,
        "How many connections of its own the gateway sends clients' messages of QoS 0 to the "
        "broker on; with 0 each client's go on its own connection. With `authentication.relay` "
        "there are none: the broker has to know whose message it is.",
    )
    place: Annotated[str, Field(min_length=1, max_length=256)] | None = setting(
        None,
        "Where the gateway stands: `e.place` in the conditions of policies and events.",
        examples=("ward-7",),
    )
    monitor_port: Port = setting(
        9465,
        "Where the gateway answers /metrics, /healthz and /readyz, at the host of `monitor`; "
        "further workers take the ports after it. 0 takes a free one.",
    )
    authentication: AuthenticationSettings = Field(default_factory=AuthenticationSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    notation: Annotated[tuple[NotationWord, ...], Field(max_length=21)] = setting(
        (),
        "Words and characters of purpose commands in topics that differ from the usual ones.",
        examples=('["reserve=R", "opening=(", "closing=)"]',),
    )
    filtering: FilteringSettings = Field(default_factory=FilteringSettings)
    emergencies: EmergencySettings = Field(default_factory=EmergencySettings)

    def conflicts(self) -> Iterator[Conflict]:
        """Yield two listeners that want the same address."""
        yield from find_twins(self.listeners)
        for name, listener in self.listeners.items():
            if self.workers > 1 and not listener.port:
                yield Conflict(
                    f"listeners.{name}.port",
                    "several workers cannot share a port that each chooses for itself",
                    "set it, such as 1883",
                )


class RecordingSettings(Settings):
    """How messages that feed streams come into the event log."""

    acknowledge: Literal["accepted", "recorded"] = setting(
        "accepted",
        "When a message of QoS 1 or 2 that feeds a stream is acknowledged: when the broker has "
        "it, or when the event log has it too.",
    )
    overflow: Literal["wait", "shed", "shed-all"] = setting(
        "wait",
        "What happens while the buffer is full. wait: its publishers are not read until there "
        "is room. shed: messages of QoS 0 are delivered, but not recorded, and counted; those of "
        "QoS 1 and 2 wait. shed-all: so with every message.",
    )
    buffer: Annotated[Size, Field(ge=65_536, le=1 << 32)] = setting(
        "16MiB", "The most that may wait for the event log."
    )
    delay: Annotated[Duration, Field(ge=0, le=10)] = setting(
        "5ms", "How long messages are gathered before they are written together."
    )
    timeout: Annotated[Duration, Field(ge=1, le=3600)] = setting(
        "30s",
        "How long an acknowledgement waits for the event log; then the publisher's connection "
        "ends without it, so that it resends.",
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a promise that the other setting breaks."""
        if self.acknowledge == "recorded" and self.overflow == "shed-all":
            yield Conflict(
                "overflow",
                "messages are acknowledged when they are recorded, so none can be left out",
                "set it to wait or shed, or acknowledge to accepted",
            )
