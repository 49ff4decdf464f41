"""Tells services through queues of SQS and topics of SNS.

Rules that hold here:
- A place is an ARN: it names a region, an account and a queue, and no host. The endpoint and the
  credentials are those of the settings, or Amazon's own and the role of the machine.
- A message is tried once; when it is tried again is the worker's business.
- In a FIFO queue the messages of one request keep their order, and the same attempt counts once.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.config.rights import AwsSettings
from penstock.errors import UnavailableError
from penstock.rights.dispatch.message import NOT_CONFIGURED, SENT, Dispatched, Letter, failed

if TYPE_CHECKING:
    from botocore.client import BaseClient

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
