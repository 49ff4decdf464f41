"""MQTT 3.1.1 and 5 without I/O: packets, the reader, session states.

A `Reader` turns the bytes of one side of a connection into packets; every packet has an
`encode(version)`. `Publish` has cheaper ways, see `penstock.mqtt.publish`. What may happen
when is a table, in `penstock.mqtt.connection`.
"""

from penstock.mqtt.acks import (
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    encode_puback,
    encode_pubcomp,
    encode_pubrec,
    encode_pubrel,
)
from penstock.mqtt.codes import (
    FAILURE,
    PACKET_SIZE_LIMIT,
    V3,
    V5,
    ClientIdError,
    MalformedPacketError,
    MqttError,
    PacketTooLargeError,
    PacketType,
    ProtocolError,
    ReasonCode,
    ReceiveMaximumError,
    Sender,
    TopicAliasError,
    TopicNameError,
    UnsupportedVersionError,
)
from penstock.mqtt.connect import (
    PINGREQ,
    PINGRESP,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Will,
)
from penstock.mqtt.connection import Connection, ConnectionState, PeerLimits, TopicAliases
from penstock.mqtt.data_types import are_acceptable
from penstock.mqtt.properties import (
    NO_PROPERTIES,
    Properties,
    encode_subscription_identifiers,
    encode_user_properties,
)
from penstock.mqtt.publish import (
    NO_PUBLISH_PROPERTIES,
    PropertyLists,
    Publish,
    PublishProperties,
    TopicNames,
)
from penstock.mqtt.reader import Packet, Reader
from penstock.mqtt.subscriptions import (
    RequestedSubscription,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)

__all__ = [
    "FAILURE",
    "NO_PROPERTIES",
    "NO_PUBLISH_PROPERTIES",
    "PACKET_SIZE_LIMIT",
    "PINGREQ",
    "PINGRESP",
    "V3",
    "V5",
    "Auth",
    "ClientIdError",
    "Connack",
    "Connect",
    "Connection",
    "ConnectionState",
    "Disconnect",
    "MalformedPacketError",
    "MqttError",
    "Packet",
    "PacketTooLargeError",
    "PacketType",
    "PeerLimits",
    "Pingreq",
    "Pingresp",
    "Properties",
    "PropertyLists",
    "ProtocolError",
    "Puback",
    "Pubcomp",
    "Publish",
    "PublishProperties",
    "Pubrec",
    "Pubrel",
    "Reader",
    "ReasonCode",
    "ReceiveMaximumError",
    "RequestedSubscription",
    "Sender",
    "Suback",
    "Subscribe",
    "TopicAliasError",
    "TopicAliases",
    "TopicNameError",
    "TopicNames",
    "Unsuback",
    "Unsubscribe",
    "UnsupportedVersionError",
    "Will",
    "are_acceptable",
    "encode_puback",
    "encode_pubcomp",
    "encode_pubrec",
    "encode_pubrel",
    "encode_subscription_identifiers",
    "encode_user_properties",
]
