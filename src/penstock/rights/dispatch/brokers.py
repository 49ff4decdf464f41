"""Tells services through topics of Kafka and MQTT, queues of SQS and topics of SNS.

Rules that hold here:
- Only topics with the prefix of the settings are written: no definition can put messages into the
  topics of streams, views, or others.
- Kafka: a message counts as sent when all copies have it. It is tried once within its time; when
  it is tried again is the worker's business. A record's key is the request: it names nobody.
- MQTT 5, QoS 1: a message counts as sent when the broker has acknowledged it with success. No
  matching subscriber is a failure: a broker would keep nothing for a service that is away
  without a session.
- A connection that failed is given up with all it holds; what it held is sent again by another.
- SQS and SNS: a place is an ARN: it names a region, an account and a queue, and no host. The
  endpoint and the credentials are those of the settings, or Amazon's own and the role of the
  machine. In a FIFO queue the messages of one request keep their order, and the same attempt
  counts once.
"""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.config.brokers import KafkaSettings
from penstock.config.rights import AwsSettings, RightsKafkaSettings, RightsMqttSettings
from penstock.errors import UnavailableError
from penstock.rights.dispatch.message import (
    NOT_CONFIGURED,
    SENT,
    Dispatched,
    Letter,
    failed,
    find_trouble,
)

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from confluent_kafka import Producer
    from paho.mqtt.client import Client


KAFKA: Final = "kafka:"
_POLL_SECONDS: Final = 0.05
_KAFKA_TROUBLES: Final = (
    (UnavailableError, "credentials"),
    (TimeoutError, "timeout"),
    (BufferError, "backlog"),
)


class KafkaChannel:
    """Appends messages to topics."""

    def __init__(
        self, cluster: KafkaSettings, settings: RightsKafkaSettings, timeout: float
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._timeout = timeout
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def send(self, place: str, letter: Letter) -> Dispatched:
        """Append a message; return when all copies have it, or it failed."""
        topic = place.removeprefix(KAFKA)
        if not topic.startswith(self._settings.prefix):
            return failed("topic-refused")
        if self._cluster.bootstrap is None:
            return NOT_CONFIGURED
        try:
            from confluent_kafka import KafkaException  # noqa: PLC0415 - for those who use Kafka
        except ImportError:
            return NOT_CONFIGURED
        try:
            error = self._append(topic, letter)
        except (UnavailableError, TimeoutError, BufferError) as trouble:
            return find_trouble(trouble, _KAFKA_TROUBLES)
        except KafkaException as trouble:
            error = trouble.args[0]
        return SENT if error is None else self._fail(error)

    def _append(self, topic: str, letter: Letter) -> Any:
        """Append a message, and return what the brokers say: None for success."""
        ends: list[Any] = []
        producer = self._open()
        producer.produce(
            topic,
            letter.body,
            key=letter.request.encode(),
            headers=list(letter.headers.items()),
            on_delivery=lambda error, _: ends.append(error),
        )
        # A little longer than the producer tries, so that its own word counts.
        latest = time.monotonic() + self._timeout + 2
        while not ends and time.monotonic() < latest:
            producer.poll(_POLL_SECONDS)
        if not ends:
            raise TimeoutError
        return ends[0]

    def close(self) -> None:
        """Let go of the producer."""
        with self._lock:
            self._producer = None

    def _open(self) -> Producer:
        from confluent_kafka import Producer  # noqa: PLC0415 - for those who use Kafka

        from penstock.eventlog.connection import producer_settings  # noqa: PLC0415

        own = self._settings
        with self._lock:
            if self._producer is None:
                user = own.user or self._cluster.user
                password = own.password.read_text() if own.password else None
                made = producer_settings(self._cluster, user, password)
                milliseconds = int(self._timeout * 1000)
                self._producer = Producer(
                    {**made, "message.timeout.ms": milliseconds, "linger.ms": 1}
                )
            return self._producer

    def _fail(self, error: Any) -> Dispatched:
        if error.fatal():
            self.close()  # it does nothing any more: the next one gets another
        name = str(error.name())
        return failed("timeout" if name == "_MSG_TIMED_OUT" else f"kafka-{name.strip('_')}")


MQTT: Final = "mqtt:"
NO_MATCHING_SUBSCRIBERS: Final = 0x10
_KEEP_ALIVE: Final = 30
_MQTT_TROUBLES: Final = (
    (UnavailableError, "credentials"),
    (TimeoutError, "timeout"),
    (ssl.SSLError, "tls"),
    (OSError, "unreachable"),
    (ValueError, "unreachable"),
)


class MqttChannel:
    """Publishes messages."""

    def __init__(self, settings: RightsMqttSettings, timeout: float) -> None:
        self._settings = settings
        self._timeout = timeout
        self._lock = threading.Lock()
        self._session: _MqttSession | None = None

    def send(self, place: str, letter: Letter) -> Dispatched:
        """Publish a message; return when the broker has it, or it failed."""
        topic = place.removeprefix(MQTT)
        if not topic.startswith(self._settings.prefix):
            return failed("topic-refused")
        if self._settings.host is None:
            return NOT_CONFIGURED
        session: _MqttSession | None = None
        try:
            session = self._open()
            reason = session.publish(topic, letter, self._timeout)
        except _ConnectRefusedError as error:
            reason = error.code
        except (UnavailableError, OSError, ValueError) as error:
            self._drop(session)
            return find_trouble(error, _MQTT_TROUBLES)
        if reason == NO_MATCHING_SUBSCRIBERS:
            return failed("no-subscriber")
        return SENT if reason == 0 else failed(f"mqtt-{reason:02x}")

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _open(self) -> _MqttSession:
        with self._lock:
            if self._session is None or not self._session.client.is_connected():
                if self._session is not None:
                    self._session.close()
                self._session = None
                self._session = _MqttSession(self._settings, self._timeout)
            return self._session

    def _drop(self, session: _MqttSession | None) -> None:
        with self._lock:
            if session is not None and self._session is session:
                self._session = None
        if session is not None:
            session.close()


class _ConnectRefusedError(Exception):
    """The broker took no connection, with a reason code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _MqttSession:
    """One connection, and the acknowledgements that came on it. Threads may share it."""

    def __init__(self, settings: RightsMqttSettings, timeout: float) -> None:
        from paho.mqtt.client import Client, MQTTv5  # noqa: PLC0415 - for those who use MQTT
        from paho.mqtt.enums import CallbackAPIVersion  # noqa: PLC0415

        self._changed = threading.Condition()
        self._reasons: dict[int, int] = {}
        self._connected: int | None = None
        self._lost = False
        self.client = Client(
            CallbackAPIVersion.VERSION2, client_id=f"penstock-{uuid.uuid4().hex}", protocol=MQTTv5
        )
        self.client.connect_timeout = timeout
        if settings.username is not None:
            password = settings.password.read_text() if settings.password else None
            self.client.username_pw_set(settings.username, password)
        if settings.tls:
            self.client.tls_set_context(ssl.create_default_context(cafile=settings.ca))
        self.client.on_connect = self._on_connect
        self.client.on_publish = self._on_publish
        self.client.on_disconnect = self._on_disconnect
        self.client.connect(settings.host or "", settings.port, _KEEP_ALIVE)
        self.client.loop_start()
        with self._changed:
            arrived = self._changed.wait_for(lambda: self._connected is not None, timeout)
        if not arrived or self._connected:
            self.close()
            if not arrived:
                raise TimeoutError
            raise _ConnectRefusedError(self._connected or 0)

    def publish(self, topic: str, letter: Letter, timeout: float) -> int:
        """Publish, and return the reason code of the acknowledgement."""
        from paho.mqtt.packettypes import PacketTypes  # noqa: PLC0415 - for those who use MQTT
        from paho.mqtt.properties import Properties  # noqa: PLC0415

        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = "application/json"
        properties.UserProperty = list(letter.headers.items())
        number = self.client.publish(topic, letter.body, qos=1, properties=properties).mid
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._reasons or self._lost, timeout):
                raise TimeoutError
            if number not in self._reasons:
                raise ConnectionError
            return self._reasons.pop(number)

    def close(self) -> None:
        """Take leave, and end the thread of the connection."""
        with contextlib.suppress(OSError, ValueError):
            self.client.disconnect()
        self.client.loop_stop()

    def _on_connect(self, _c: Client, _u: Any, _f: Any, reason: Any, _p: Any) -> None:
        with self._changed:
            self._connected = reason.value
            self._changed.notify_all()

    def _on_publish(self, _c: Client, _u: Any, number: int, reason: Any, _p: Any) -> None:
        with self._changed:
            self._reasons[number] = reason.value
            self._changed.notify_all()

    def _on_disconnect(self, *_: Any) -> None:
        with self._changed:
            self._lost = True
            self._changed.notify_all()


_FIFO: Final = ".fifo"
_CODES: Final = {
    "ConnectTimeoutError": "timeout",
    "ReadTimeoutError": "timeout",
    "EndpointConnectionError": "unreachable",
    "NoCredentialsError": "credentials",
}
Service = Literal["sqs", "sns"]


class AwsChannel:
    """Puts messages into queues, or publishes them on topics."""

    def __init__(self, service: Service, settings: AwsSettings, timeout: float) -> None:
        self._service = service
        self._settings = settings
        self._timeout = timeout
        self._lock = threading.Lock()
        self._clients: dict[str, BaseClient] = {}

    def send(self, place: str, letter: Letter) -> Dispatched:
        """Hand a message over; it is durable when the service has answered."""
        try:
            from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
        except ImportError:
            return NOT_CONFIGURED
        try:
            self._hand_over(place, letter)
        except UnavailableError:
            return failed("credentials")
        except ClientError as error:
            return failed("aws", str(error.response.get("Error", {}).get("Code", "error")))
        except BotoCoreError as error:
            name = type(error).__name__
            return failed(_CODES.get(name, f"aws-{name}"))
        return SENT

    def _hand_over(self, place: str, letter: Letter) -> None:
        _, _, _, region, account, name = place.split(":", 5)
        client: Any = self._client(region)
        beside: dict[str, Any] = {"MessageAttributes": _attributes(letter)}
        if name.endswith(_FIFO):
            beside |= _fifo(letter)
        if self._service == "sqs":
            url = f"{client.meta.endpoint_url.rstrip('/')}/{account}/{name}"
            client.send_message(QueueUrl=url, MessageBody=letter.body.decode(), **beside)
        else:
            client.publish(TopicArn=place, Message=letter.body.decode(), **beside)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def _client(self, region: str) -> BaseClient:
        import boto3  # noqa: PLC0415 - for those who use queues
        from botocore.config import Config  # noqa: PLC0415

        with self._lock:
            found = self._clients.get(region)
            if found is None:
                keys = {}
                if self._settings.access_key is not None and self._settings.secret_key is not None:
                    keys = {
                        "aws_access_key_id": self._settings.access_key.read_text(),
                        "aws_secret_access_key": self._settings.secret_key.read_text(),
                    }
                found = self._clients[region] = boto3.session.Session().client(
                    self._service,
                    region_name=region,
                    endpoint_url=self._settings.endpoint,
                    config=Config(
                        connect_timeout=self._timeout,
                        read_timeout=self._timeout,
                        retries={"total_max_attempts": 1},
                        proxies={},
                    ),
                    **keys,
                )
        return found


def _attributes(letter: Letter) -> dict[str, dict[str, str]]:
    return {
        name: {"DataType": "String", "StringValue": value} for name, value in letter.headers.items()
    }


def _fifo(letter: Letter) -> dict[str, str]:
    digest = hashlib.sha256(letter.body).hexdigest()  # the attempt is in it
    return {"MessageGroupId": letter.request, "MessageDeduplicationId": digest}
