"""Channels of an installation: a service is told by the one that its definition names.

One module for each way to tell it; `message` is what all of them carry.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Self

from penstock.config import Config
from penstock.model.kinds import ControlSubscriber
from penstock.rights.dispatch.brokers import AwsChannel, KafkaChannel, MqttChannel
from penstock.rights.dispatch.http import Caller, HttpChannel
from penstock.rights.dispatch.message import (
    NOT_CONFIGURED,
    Channel,
    Dispatched,
    Notification,
    Signing,
)


def open_caller(config: Config) -> Caller:
    """Return what calls by HTTP, under the settings."""
    networks = [ipaddress.ip_network(it) for it in config.rights.networks]
    return Caller(allowed=networks, timeout=config.rights.timeout)


class Channels:
    """Tells services, each by its own channel."""

    def __init__(self, signing: Signing, channels: Mapping[str, Channel]) -> None:
        self._signing = signing
        self._channels = channels

    @classmethod
    def open(cls, config: Config, secret: bytes) -> Self:
        """Make the channels that the settings allow; they connect when they are used."""
        caller, own = open_caller(config), config.rights
        return cls(
            Signing(secret),
            {
                "http": HttpChannel(caller, synchronous=False),
                "http-sync": HttpChannel(caller, synchronous=True),
                "sqs": AwsChannel("sqs", own.aws, own.timeout),
                "sns": AwsChannel("sns", own.aws, own.timeout),
                "kafka": KafkaChannel(config.kafka, own.kafka, own.timeout),
                "mqtt": MqttChannel(own.mqtt, own.timeout),
            },
        )

    def send(self, subscriber: ControlSubscriber, notification: Notification) -> Dispatched:
        """Tell a service."""
        channel = self._channels.get(subscriber.delivery)
        if channel is None:
            return NOT_CONFIGURED
        return channel.send(subscriber.uri, self._signing.seal(notification))

    def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            channel.close()
