"""What an installation keeps and how its processes run.

Sections: `store`, `audit` and `consent`, in the database; `supervisor`, `log`, `monitor`, and
`pipeline` with its Spark; `trust`, the other domains at the same broker.

Rules that hold here:
- A URL that may hold a password is never quoted in an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

from pydantic import AfterValidator, Field, ValidationInfo

from penstock.config.secrets import KeyFile, Secret
from penstock.config.settings import (
    Conflict,
    DataPath,
    Duration,
    Host,
    Port,
    Settings,
    StorePath,
    TypeLabel,
    folders_of,
    setting,
    wrong,
)

SCHEMES = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_FORMS = "write sqlite:///FILE or postgresql://USER@HOST/DATABASE"


def _check_url(url: str, info: ValidationInfo) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise wrong("this is not a URL", _FORMS) from None
    # From here on nothing of the URL is quoted: a password may stand in it.
    if parts.password is not None or {"password", "sslpassword"} & parse_qs(parts.query).keys():
        raise wrong(
            "a password must not stand in the URL",
            "leave it out, and set store.password to {file: PATH} or {env: NAME}",
        )
    if parts.scheme not in SCHEMES:
        raise wrong("the URL names a database that Penstock does not know", _FORMS)
    if parts.scheme != "sqlite":
        if not parts.path.strip("/"):
            raise wrong("the URL names no database", _FORMS)
        return f"{SCHEMES[parts.scheme]}://{url.partition('://')[2]}"
    if (
        parts.netloc
        or parts.query
        or parts.fragment
        or parts.path in {"", "/"}
        or ":memory:" in parts.path
    ):
        raise wrong("the URL does not name a file", _FORMS)
    # `sqlite:///a.db` is relative, `sqlite:////a.db` is absolute.
    path = folders_of(info)["data"] / parts.path[1:]
    if {"?", "#"} & set(str(path)):
        raise wrong("the path of the file has a character that ends a URL", "rename its folder")
    return f"sqlite:///{path}"


StoreUrl = Annotated[str, AfterValidator(_check_url), TypeLabel("a URL")]


class StoreSettings(Settings):
    """Where definitions, their history and the audit log are kept."""

    url: StoreUrl = setting(
        "sqlite:///penstock.db",
        "The database: sqlite:///FILE, or postgresql://USER@HOST/DATABASE "
        "when there is more than one host.",
    )
    password: Secret | None = setting(
        None,
        "The password of the database user.",
        examples=(
            "{file: keys/store-password}",
            "{env: STORE_PASSWORD}",
        ),
    )
    lease: Annotated[Duration, Field(ge=0.1, le=3600)] = setting(
        "5s",
        "How long an enforcement point may go without hearing from the store "
        "before it denies everything.",
    )

    def connection_url(self) -> str:
        """Return the URL with the password put in; it must never be logged."""
        if self.password is None:
            return self.url
        parts = urlsplit(self.url)
        user, _, host = parts.netloc.rpartition("@")
        secret = quote(self.password.read_text(), safe="")
        return urlunsplit(parts._replace(netloc=f"{user}:{secret}@{host}"))


class AuditSettings(Settings):
    """The keys, the batches and the retention of the audit log."""

    signing_key: KeyFile = setting(
        "keys/audit-signing.key",
        "The file of the key that signs the heads of the log; created if missing.",
    )
    pseudonym_key: KeyFile = setting(
        "keys/pseudonym.key",
        "The file of the key that turns people into pseudonyms; created if "
        "missing. Without it no entry can be matched to a person.",
    )
    batch: Annotated[int, Field(ge=1, le=100_000)] = setting(
        1000, "The most entries that are written together."
    )
    delay: Annotated[Duration, Field(ge=0, le=60)] = setting(
        "100ms", "The longest that an entry waits for others."
    )
    denials_per_principal: Annotated[int, Field(ge=1, le=1_000_000)] = setting(
        100,
        "The most entries an hour that the denials of one user, or of one address where nobody "
        "authenticated, become at a gateway. Further ones are counted in them. Emergency grants "
        "and overridden preferences may become ten times as many of their own.",
    )
    denials_per_hour: Annotated[int, Field(ge=1, le=100_000_000)] = setting(
        5000, "The most entries an hour that the denials of all together become at a gateway."
    )
    keep: Annotated[Duration, Field(ge=3600, le=36_500 * 86_400)] = setting(
        "1826d",
        "How long entries are kept: grants, overrides, commands, changes. Older ones are pruned.",
    )
    entries: Annotated[int, Field(ge=1000, le=10**12)] = setting(
        10_000_000, "The most of them that are kept; the oldest go first."
    )
    denials_keep: Annotated[Duration, Field(ge=3600, le=36_500 * 86_400)] = setting(
        "366d", "How long denials, and notes of messages that were changed, are kept."
    )
    denials_entries: Annotated[int, Field(ge=1000, le=10**12)] = setting(
        2_000_000,
        "The most of them that are kept; the oldest go first, and never an entry of another kind "
        "in their place.",
    )
    prune_every: Annotated[Duration, Field(ge=1, le=1800)] = setting(
        "10m", "How often a gateway and `rbac watch` look for entries to prune."
    )


class ConsentSettings(Settings):
    """The key under which people are known who opted out of a purpose."""

    key: KeyFile = setting(
        "keys/consent.key",
        "The file of the key that marks people in the store, so that no name is in it; created "
        "if missing. Without it no opt-out can be found, and no view runs.",
    )


class SupervisorSettings(Settings):
    """How `penstock up` starts, restarts and stops the parts."""

    ready_timeout: Annotated[Duration, Field(gt=0, le=3600)] = setting(
        "2m",
        "How long a part may take to become ready; Spark takes half a minute on a busy machine.",
    )
    grace: Annotated[Duration, Field(ge=0, le=3600)] = setting(
        "10s", "How long a part may take to stop before it is killed."
    )
    backoff: Annotated[Duration, Field(gt=0, le=3600)] = setting(
        "500ms", "The wait before the first restart; it doubles each time."
    )
    backoff_limit: Annotated[Duration, Field(gt=0, le=3600)] = setting(
        "30s", "The longest wait before a restart."
    )
    failures: Annotated[int, Field(ge=1, le=1000)] = setting(
        5, "So many failures within the window, and the part is given up."
    )
    window: Annotated[Duration, Field(gt=0, le=86400)] = setting(
        "1m", "The window in which failures are counted."
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a limit below its start."""
        if self.backoff_limit < self.backoff:
            yield Conflict(
                "backoff_limit", "the longest wait is shorter than the first", "raise it to backoff"
            )


class LogSettings(Settings):
    """What the processes say on standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The least important lines that are written."
    )
    format: Literal["auto", "json", "console"] = setting(
        "auto",
        "One JSON object per line, lines for people, or whichever fits the place they go to.",
    )


class MonitorSettings(Settings):
    """Where `penstock up` answers /metrics, /healthz and /readyz."""

    enabled: bool = setting(default=True, description="Whether it listens at all.")
    host: Host = setting("127.0.0.1", "The address it listens on.")
    port: Port = setting(9464, "The port it listens on; 0 takes a free one.")


Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}[mg]$"), TypeLabel("a size", "such as 2g")]
Master = Annotated[
    str, Field(min_length=1, max_length=1000, pattern=r"^\S+$"), TypeLabel("a master")
]


class PipelineSettings(Settings):
    """Where Spark runs, and where streams and views are kept."""

    @property
    def files(self) -> Path:
        """Where files and checkpoints of views lie."""
        return self.store or self.folder

    @property
    def detections(self) -> Path:
        """The folder of what Spark has detected, stream by stream."""
        return self.folder / ".detection"

    master: Master = setting(
        "local[2]",
        "The Spark master: local[2] for two cores of this machine, spark://HOST:7077, yarn, "
        "or k8s://https://HOST:PORT.",
    )
    secret: Secret | None = setting(
        None,
        "The secret that master, workers and driver of a standalone cluster share "
        "(`spark.authenticate.secret`). Elsewhere Spark makes one for each application.",
        examples=("{file: keys/spark-secret}", "{env: SPARK_SECRET}"),
    )
    memory: Memory = setting("2g", "The memory of the driver, in m or g.")
    executor_memory: Memory = setting("1g", "The memory of each executor on a cluster.")
    event_log: StorePath = setting(
        "eventlog",
        "The folder of the embedded event log; on a cluster, one that all nodes see, or of a file "
        "system that Hadoop knows.",
        examples=("hdfs://namenode:8020/penstock/eventlog", "s3a://bucket/eventlog"),
    )
    folder: DataPath = setting(
        "views",
        "The folder of what is known of views: which batches count, dead letters, what is wanted; "
        "with their files and checkpoints, unless these have a `store`.",
    )
    store: StorePath | None = setting(
        None,
        "Where files and checkpoints of views lie that all nodes of a cluster reach, if not in "
        "`folder`.",
        examples=("hdfs://namenode:8020/penstock/views", "s3a://bucket/views"),
    )
    key: KeyFile = setting(
        "keys/masks.key",
        "The file of the key behind pseudonyms, substitutes and noise; created if missing.",
    )
    batch: Annotated[int, Field(ge=1, le=10_000_000)] = setting(
        100_000, "The most records that are read together."
    )
    interval: Annotated[Duration, Field(ge=0, le=3600)] = setting(
        "1s", "How often new records are looked for."
    )
    monitor_port: Port = setting(
        9466,
        "Where `penstock views run` answers /metrics, /healthz and /readyz, at the host of "
        "`monitor`; 0 takes a free one.",
    )


DomainKeyText = Annotated[
    str,
    Field(pattern=r"^[0-9a-f]{64}$"),
    TypeLabel("a public key", "64 hexadecimal digits, as `penstock cert key` prints them"),
]


class TrustSettings(Settings):
    """The network of domains that share a broker, and this domain's key in it."""

    key: KeyFile = setting(
        "keys/domain.key",
        "The file of this domain's private key (Ed25519, PEM); created if missing.",
    )
    key_refresh: Annotated[Duration, Field(ge=60, le=3_650 * 86_400)] = setting(
        "30d",
        "How old a key of a sealed stream may be: when `penstock keys refresh` changes it.",
    )
    key_lead: Annotated[Duration, Field(ge=0, le=86_400)] = setting(
        "5s",
        "How long a new key of a sealed stream is given out before it counts, so that all have it "
        "by then. Longer where keys are sent as files.",
    )
    key_delay: Annotated[Duration, Field(ge=600, le=3_650 * 86_400)] = setting(
        "7d",
        "How long a key of a sealed stream that was changed still opens what the broker keeps.",
    )
    key_retention: Annotated[Duration, Field(ge=600, le=36_500 * 86_400)] = setting(
        "365d",
        "How long a key of a sealed stream that was changed still opens records in the event log; "
        "then it is destroyed, and what it sealed stays sealed. As long as records are kept.",
    )
    network: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] | None = setting(
        None,
        "The network of domains that this one belongs to. Left out: no gateway of another domain "
        "is listened to.",
        examples=("CityNet",),
    )
    coordinator: DomainKeyText | None = setting(
        None, "The key of the domain that lets others connect to the network."
    )
    skew: Annotated[Duration, Field(ge=1, le=300)] = setting(
        "60s", "How far the clocks of two domains may be apart; what is older or newer is refused."
    )
    verify_rate: Annotated[float, Field(ge=0, le=1)] = setting(
        1.0,
        "How many signatures of messages on signed streams are verified: 1 all, 0.1 one of ten, 0 "
        "none. The first one of a gateway and capability always is; where one was wrong, all of "
        "its next ones are.",
    )
    refresh: Annotated[Duration, Field(ge=1, le=3600)] = setting(
        "30s",
        "How often a gateway announces itself to the others; who was silent for three times as "
        "long is no member any more.",
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a network without anybody who could let others in."""
        if self.network is not None and self.coordinator is None:
            yield Conflict(
                "coordinator",
                "nobody could show that it may connect to the network",
                "name the key of the domain that lets others in",
            )
