"""The console: where it listens, how people sign in, and how long that lasts.

Rules that hold here:
- The secret of the identity provider stands in a file or a variable, never here.
- Who is named by the provider is a user like any other: rights decide what they see.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from penstock.config.listeners import ConsoleListenerSettings, Origin
from penstock.config.rights import HttpLimitSettings, Url
from penstock.config.secrets import Secret
from penstock.config.settings import (
    Conflict,
    Duration,
    Port,
    Settings,
    Size,
    TypeLabel,
    setting,
)

FrameOrigin = Annotated[
    str,
    # It becomes a part of a header: nothing that ends a source or a directive.
    Field(pattern=r"^https?://(\[[0-9a-f:]+\]|[a-z0-9.-]{1,255})(:[0-9]{1,5})?$"),
    TypeLabel("an origin", "https://HOST or https://HOST:PORT in small letters"),
]


class OpenIdSettings(Settings):
    """OpenID Connect: people sign in at a provider, which says who they are."""

    issuer: Url | None = setting(
        None,
        "The provider, by its issuer; https, or http at this machine.",
        examples=("https://login.example.org",),
    )
    client_id: Annotated[str, Field(min_length=1, max_length=1000)] | None = setting(
        None, "The name that the provider knows the console by.", examples=("penstock",)
    )
    client_secret: Secret | None = setting(
        None,
        "The secret that it proves itself with there.",
        examples=("{file: keys/openid-secret}", "{env: OPENID_SECRET}"),
    )
    claim: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,100}$")] | None = setting(
        None,
        "The claim that names the user: one that the provider gives to one person alone, and that "
        "nobody can change themselves. Rights hold for that name.",
        examples=("sub", "email"),
    )
    scopes: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[!#-\[\]-~]{1,100}$")], ...], Field(max_length=20)
    ] = setting(("openid", "profile"), "What is asked for; `openid` has to be among it.")

    @property
    def enabled(self) -> bool:
        """Whether people may sign in so."""
        return self.issuer is not None

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a provider without the name it knows the console by."""
        if self.issuer is not None and self.client_id is None:
            yield Conflict("client_id", "the provider asks for it", "name the client")
        if self.issuer is not None and self.claim is None:
            yield Conflict("claim", "it decides who somebody is", "name the claim of the user")
        if self.issuer is not None and "openid" not in self.scopes:
            yield Conflict("scopes", "without `openid` nobody is named", "add openid")


class ConsoleLimitSettings(HttpLimitSettings):
    """Limits on what browsers may use."""

    body: Annotated[Size, Field(ge=1024, le=1 << 24)] = setting(
        "1MiB", "The largest form; definitions are edited in one."
    )
    streams: Annotated[int, Field(ge=1, le=100_000)] = setting(
        500, "The most pages at a time that follow what happens."
    )
    streams_per_user: Annotated[int, Field(ge=1, le=10_000)] = setting(
        20, "The most of these of one user."
    )


class ConsoleSettings(Settings):
    """The pages for data officers, operators and developers."""

    listener: ConsoleListenerSettings = Field(default_factory=ConsoleListenerSettings)
    limits: ConsoleLimitSettings = Field(default_factory=ConsoleLimitSettings)
    openid: OpenIdSettings = Field(default_factory=OpenIdSettings)
    url: Origin | None = setting(
        None,
        "Where browsers reach it, where that is not the listener: behind a proxy.",
        examples=("https://penstock.example.org",),
    )
    framed_by: Annotated[tuple[FrameOrigin, ...], Field(max_length=50)] = setting(
        (),
        "Front ends whose pages may show the page with one person's choices in a frame: origins. "
        "No other page of the console can be framed.",
        examples=('["https://shop.example.org"]',),
    )
    idle: Annotated[Duration, Field(ge=60, le=86_400)] = setting(
        "30m", "How long somebody stays signed in without doing anything."
    )
    session: Annotated[Duration, Field(ge=60, le=30 * 86_400)] = setting(
        "12h", "How long somebody stays signed in at all."
    )
    monitor_port: Port = setting(
        9470,
        "Where the console answers /metrics, /healthz and /readyz, at the host of `monitor`; 0 "
        "takes a free one.",
    )

    @property
    def address(self) -> str:
        """Where browsers reach it."""
        if self.url is not None:
            return self.url
        scheme = "https" if self.listener.encrypted else "http"
        host = self.listener.host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.listener.port}"
