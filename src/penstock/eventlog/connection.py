"""How clients reach the cluster: settings for librdkafka, for each user and purpose.

Rules that hold here:
- Settings with a password in them are made when a client is made, and kept nowhere.
- Penstock logs in as its settings say: by password, token or certificate. Users log in by
  password, wherever `kafka.user_logins` says.
- A user's groups and transactions begin with the user's name and a colon. Names have no
  colon, so nobody gets into those of another.
- Producers are idempotent and wait for all copies.
- Topics that we make tell when the brokers appended a record. Of others a producer may say so.
- A failure of Kafka is an error in our words, and can be retried.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

from typing_extensions import override

from penstock.config.brokers import KafkaSettings, KafkaTokenSettings
from penstock.errors import UnavailableError

SEPARATOR = ":"
REASON_LIMIT = 300
GREETING_SECONDS: Final = 6.0
"""How long a person waits to hear that no broker answers. What is asked later may take longer."""
_TOKEN_LIMIT: Final = 1 << 16
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


def client_settings(
    settings: KafkaSettings, user: str | None = None, password: str | None = None
) -> dict[str, Any]:
    """Return what every client of a user needs; of Penstock's own where no password is given."""
    how = settings if password is None else settings.for_users()
    found: dict[str, Any] = {
        "bootstrap.servers": require_bootstrap(how),
        "security.protocol": how.security.upper(),
        "client.id": "penstock",
        # Errors arrive as exceptions, in our words.
        "log_level": 0,
    }
    if how.ca is not None:
        found["ssl.ca.location"] = str(how.ca)
    if how.certificate is not None and how.certificate_key is not None:
        found["ssl.certificate.location"] = str(how.certificate)
        found["ssl.key.pem"] = how.certificate_key.read_text()
    if how.security == "ssl":
        return found
    found["sasl.mechanism"] = how.mechanism
    if how.mechanism == "OAUTHBEARER":
        return found | _token_settings(how.token)
    found["sasl.username"] = user or how.user
    found["sasl.password"] = read_password(how) if password is None else password
    return found


def _token_settings(token: KafkaTokenSettings) -> dict[str, Any]:
    url, secret = require_token_endpoint(token)
    found = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.id": token.client,
        "sasl.oauthbearer.client.secret": secret,
    }
    if token.scope is not None:
        found["sasl.oauthbearer.scope"] = token.scope
    if token.ca is not None:
        found["https.ca.location"] = str(token.ca)
    return found


def require_token_endpoint(token: KafkaTokenSettings) -> tuple[str, str]:
    """Return where tokens are asked for, and the secret of the client that asks."""
    if token.url is None or token.secret is None:
        raise UnavailableError(
            "it is not known where tokens for Kafka come from",
            fix="set kafka.token.url and kafka.token.secret in penstock.yaml",
        )
    return token.url, token.secret.read_text()


def fetch_token(token: KafkaTokenSettings) -> str:
    """Ask the log-in service for a token, by client credentials (RFC 6749, 4.4)."""
    url, secret = require_token_endpoint(token)
    form = {"grant_type": "client_credentials"} | ({"scope": token.scope} if token.scope else {})
    basic = base64.b64encode(f"{token.client}:{secret}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310 - http and https only, say the settings
        url, urllib.parse.urlencode(form).encode(), {"Authorization": f"Basic {basic}"}
    )
    context = ssl.create_default_context(cafile=token.ca) if url.startswith("https") else None
    opener = urllib.request.build_opener(
        _NoRedirect(), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(request, timeout=GREETING_SECONDS) as answer:
            found = json.loads(answer.read(_TOKEN_LIMIT))["access_token"]
    except urllib.error.HTTPError as error:
        raise _no_token(f"it says {error.code}") from None
    except OSError as error:
        raise _no_token(str(getattr(error, "reason", error))[:REASON_LIMIT]) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _no_token("its answer holds no token") from None
    if not isinstance(found, str) or not found.isascii() or not found.isprintable():
        raise _no_token("its answer holds no token")
    return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Sends the secret nowhere else."""

    @override
    def redirect_request(self, *_: Any) -> None:
        return None


def _no_token(reason: str) -> UnavailableError:
    return UnavailableError(
        f"the log-in service gave no token for Kafka: {reason}",
        fix="check kafka.token, and that the service runs",
    )


def admin_settings(settings: KafkaSettings) -> dict[str, Any]:
    """Return the settings of Penstock's own client."""
    return client_settings(settings)


def read_password(settings: KafkaSettings) -> str:
    """Read the password of Penstock's own user."""
    if settings.password is None:
        raise UnavailableError(
            "the password at Kafka is not known", fix="set kafka.password in penstock.yaml"
        )
    return settings.password.read_text()


def consumer_settings(
    settings: KafkaSettings, user: str, password: str | None, *, group: str = "reader"
) -> dict[str, Any]:
    """Return the settings of a consumer that sees committed records only, from the first.

    Without a password it is Penstock's own.
    """
    return {
        **client_settings(settings, user, password),
        "group.id": owned_name(user, group),
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }


def producer_settings(
    settings: KafkaSettings, user: str, password: str | None, *, transaction: str | None = None
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
        "_AUTHENTICATION": "check how kafka logs in (mechanism, user, password, token), or the "
        "user's password",
        "_ALL_BROKERS_DOWN": "check kafka.bootstrap, and that its brokers run",
        "_TRANSPORT": "check kafka.bootstrap, and that its brokers run",
        "UNKNOWN_TOPIC_OR_PART": "make the topic; views and `penstock connect` make theirs",
        "_UNKNOWN_TOPIC": "was the topic deleted? make it again",
        "TOPIC_AUTHORIZATION_FAILED": "ask the data officer for a role that may",
    }
    return BrokerError(
        f"Kafka: {what}: {reason}", fix=fixes.get(name, "check that its brokers run")
    )
