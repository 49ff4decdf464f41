"""How clients reach the cluster: settings for librdkafka, for each user and purpose.

Rules that hold here:
- Settings with a password in them are made when a client is made, and kept nowhere.
- A user's groups and transactions begin with the user's name and a colon. Names have no
  colon, so nobody gets into those of another.
- Producers are idempotent and wait for all copies.
- Topics that we make tell when the brokers appended a record. Of others a producer may say so.
- A failure of Kafka is an error in our words, and can be retried.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.config.sections.brokers import KafkaSettings
from penstock.errors import UnavailableError

SEPARATOR = ":"
REASON_LIMIT = 300
GREETING_SECONDS: Final = 6.0
"""How long a person waits to hear that no broker answers. What is asked later may take longer."""
TOPIC_CONFIG: Final = {"message.timestamp.type": "LogAppendTime"}
"""What topics of streams and views are made with."""


class BrokerError(UnavailableError):
    """Kafka is out of reach, or did not do what it was asked for; it may do so later."""


def owned_name(user: str, name: str) -> str:
    """Return the name of a consumer group or transaction that belongs to a user."""
    return f"{user}{SEPARATOR}{name}"


def require_bootstrap(settings: KafkaSettings) -> str:
    """Return the brokers to begin with, or say that none are named."""
    if settings.bootstrap is None:
        raise UnavailableError(
            "no Kafka cluster is named",
            fix="set kafka.bootstrap in penstock.yaml, or `penstock dev kafka start`",
        )
    return settings.bootstrap


def client_settings(settings: KafkaSettings, user: str, password: str) -> dict[str, Any]:
    """Return what every client of a user needs."""
    found: dict[str, Any] = {
        "bootstrap.servers": require_bootstrap(settings),
        "security.protocol": settings.security.upper(),
        "sasl.mechanism": settings.mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "client.id": "penstock",
        # Errors arrive as exceptions, in our words.
        "log_level": 0,
    }
    if settings.ca is not None:
        found["ssl.ca.location"] = str(settings.ca)
    return found


def admin_settings(settings: KafkaSettings) -> dict[str, Any]:
    """Return the settings of Penstock's own client."""
    return client_settings(settings, settings.user, read_password(settings))


def read_password(settings: KafkaSettings) -> str:
    """Read the password of Penstock's own user."""
    if settings.password is None:
        raise UnavailableError(
            "the password at Kafka is not known", fix="set kafka.password in penstock.yaml"
        )
    return settings.password.read_text()


def consumer_settings(
    settings: KafkaSettings, user: str, password: str, *, group: str = "reader"
) -> dict[str, Any]:
    """Return the settings of a consumer that sees committed records only, from the first."""
    return {
        **client_settings(settings, user, password),
        "group.id": owned_name(user, group),
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }


def producer_settings(
    settings: KafkaSettings, user: str, password: str, *, transaction: str | None = None
) -> dict[str, Any]:
    """Return the settings of a producer that neither loses nor repeats a record."""
    found = {
        **client_settings(settings, user, password),
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": "lz4",
    }
    if transaction is not None:
        found["transactional.id"] = owned_name(user, transaction)
    return found


def explain(what: str, error: BaseException) -> BrokerError:
    """Say in our words what a client of Kafka failed at, and what may help."""
    cause = error.args[0] if error.args else error
    reason = str(cause.str() if hasattr(cause, "str") else cause)[:REASON_LIMIT]
    name = str(cause.name()) if hasattr(cause, "name") else ""
    fixes = {
        "_AUTHENTICATION": "check kafka.user and kafka.password, or the user's password",
        "_ALL_BROKERS_DOWN": "check kafka.bootstrap, and that its brokers run",
        "_TRANSPORT": "check kafka.bootstrap, and that its brokers run",
        "UNKNOWN_TOPIC_OR_PART": "make the topic; views and `penstock connect` make theirs",
        "_UNKNOWN_TOPIC": "was the topic deleted? make it again",
        "TOPIC_AUTHORIZATION_FAILED": "ask the data officer for a role that may",
    }
    return BrokerError(
        f"Kafka: {what}: {reason}", fix=fixes.get(name, "check that its brokers run")
    )
