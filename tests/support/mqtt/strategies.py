"""Random packets of both versions and both senders, all of them allowed."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock.mqtt import (
    PINGREQ,
    PINGRESP,
    V3,
    V5,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    RequestedSubscription,
    Sender,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from penstock.mqtt.codes import ALLOWED, V3_SUBACK_CODES
from penstock.mqtt.properties import TABLE, WILL, Place

packet_ids = st.integers(1, 65_535)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0#+"), min_size=1, max_size=20)
filters = texts.filter(bool)
payloads = st.binary(max_size=300)
booleans = st.booleans()

_FOUR_BYTES = 0xFFFF_FFFF
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "payload_format": st.integers(0, 1),
    "message_expiry": st.integers(0, _FOUR_BYTES),
    "content_type": texts,
    "response_topic": names,
    "correlation_data": payloads,
    "subscription_identifiers": st.integers(1, 268_435_455),
    "session_expiry": st.integers(0, _FOUR_BYTES),
    "assigned_client_id": texts,
    "server_keep_alive": st.integers(0, 65_535),
    "authentication_method": texts,
    "authentication_data": payloads,
    "request_problem_information": st.integers(0, 1),
    "will_delay": st.integers(0, _FOUR_BYTES),
    "request_response_information": st.integers(0, 1),
    "response_information": texts,
    "server_reference": texts,
    "reason_string": texts,
    "receive_maximum": st.integers(1, 65_535),
    "topic_alias_maximum": st.integers(0, 65_535),
    "topic_alias": st.integers(1, 65_535),
    "maximum_qos": st.integers(0, 1),
    "retain_available": st.integers(0, 1),
    "user": st.tuples(texts, texts),
    "maximum_packet_size": st.integers(1, _FOUR_BYTES),
    "wildcard_subscription_available": st.integers(0, 1),
    "subscription_identifiers_available": st.integers(0, 1),
    "shared_subscription_available": st.integers(0, 1),
}


@st.composite
def properties(draw: st.DrawFn, place: Place, sender: Sender) -> Properties:
    allowed = [rule for rule in TABLE.values() if place in rule.places]
    found: dict[str, Any] = {}
    for rule in draw(st.lists(st.sampled_from(allowed), unique_by=lambda rule: rule.name)):
        value = _VALUES[rule.name]
        if rule.many:
            most = 3 if place in rule.repeated else 1
            value = st.lists(value, min_size=1, max_size=most).map(tuple)
        found[rule.name] = draw(value)
    if sender is Sender.CLIENT and place is PacketType.PUBLISH:
        found.pop("subscription_identifiers", None)
    if sender is Sender.SERVER and place is PacketType.DISCONNECT:
        found.pop("session_expiry", None)
    if "authentication_data" in found or place is PacketType.AUTH:
        found.setdefault("authentication_method", "SCRAM")
    return Properties(**found)


def _listed(place: Place, sender: Sender, version: int) -> st.SearchStrategy[Properties]:
    return properties(place, sender) if version == V5 else st.just(Properties())


@st.composite
def publishes(draw: st.DrawFn, sender: Sender, version: int) -> Publish:
    qos = draw(st.integers(0, 2))
    listed = draw(_listed(PacketType.PUBLISH, sender, version))
    named = names if listed.topic_alias is None else names | st.just("")
    return Publish.of(
        draw(named),
        draw(payloads),
        qos=qos,
        retain=draw(booleans),
        dup=draw(booleans) if qos else False,
        packet_id=draw(packet_ids) if qos else 0,
        properties=listed,
    )


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    will = None
    if draw(booleans):
        listed = draw(_listed(WILL, Sender.CLIENT, version))
        will = Will(draw(names), draw(payloads), draw(st.integers(0, 2)), draw(booleans), listed)
    client_id = draw(texts)
    username = draw(st.none() | texts)
    return Connect(
        client_id,
        version,
        draw(booleans) if client_id or version == V5 else True,
        draw(st.integers(0, 65_535)),
        username,
        draw(st.none() | payloads) if username is not None or version == V5 else None,
        will,
        draw(_listed(PacketType.CONNECT, Sender.CLIENT, version)),
    )


def _reasons(kind: PacketType, sender: Sender) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(ALLOWED[kind, sender]))


def _acks(sender: Sender, version: int) -> list[st.SearchStrategy[Packet]]:
    def of(kind: type[Puback | Pubrec | Pubrel | Pubcomp]) -> st.SearchStrategy[Packet]:
        if version == V3:
            return st.builds(kind, packet_ids)
        listed = properties(kind.packet_type, sender)
        return st.builds(kind, packet_ids, _reasons(kind.packet_type, sender), listed)

    return [of(Puback), of(Pubrec), of(Pubrel), of(Pubcomp)]


def _subscribes(version: int) -> st.SearchStrategy[Packet]:
    options: tuple[st.SearchStrategy[Any], ...] = (booleans, booleans, st.integers(0, 2))
    one = st.builds(
        RequestedSubscription, filters, st.integers(0, 2), *(options if version == V5 else ())
    )
    lawful = one.filter(lambda item: not (item.no_local and item.filter.startswith("$share/")))
    many = st.lists(lawful, min_size=1, max_size=5).map(tuple)
    return st.builds(
        Subscribe, packet_ids, many, _listed(PacketType.SUBSCRIBE, Sender.CLIENT, version)
    )


def from_client(version: int) -> st.SearchStrategy[Packet]:
    """Everything but CONNECT that a client may send."""
    sender = Sender.CLIENT
    some = st.lists(filters, min_size=1, max_size=5).map(tuple)
    unsubscribes = st.builds(
        Unsubscribe, packet_ids, some, _listed(PacketType.UNSUBSCRIBE, sender, version)
    )
    kinds: list[st.SearchStrategy[Packet]] = [
        publishes(sender, version),
        *_acks(sender, version),
        _subscribes(version),
        unsubscribes,
        st.just(PINGREQ),
    ]
    if version == V3:
        kinds.append(st.just(Disconnect()))
    else:
        kinds += _farewells(sender)
    return st.one_of(kinds)


def from_server(version: int) -> st.SearchStrategy[Packet]:
    """Everything that a server may send."""
    sender = Sender.SERVER
    kinds: list[st.SearchStrategy[Packet]] = [
        publishes(sender, version),
        *_acks(sender, version),
        st.just(PINGRESP),
        _connacks(version),
        _answers(Suback, version),
    ]
    if version == V3:
        kinds.append(st.builds(Unsuback, packet_ids))
    else:
        kinds += [_answers(Unsuback, version), *_farewells(sender)]
    return st.one_of(kinds)


def _connacks(version: int) -> st.SearchStrategy[Packet]:
    reasons = (
        st.sampled_from((0, 0x84, 0x85, 0x86, 0x87, 0x88))
        if version == V3
        else _reasons(PacketType.CONNACK, Sender.SERVER)
    )
    listed = _listed(PacketType.CONNACK, Sender.SERVER, version)
    return st.builds(Connack, reasons, booleans, listed).filter(
        lambda packet: not (packet.reason and packet.session_present)
    )


def _answers(kind: type[Suback | Unsuback], version: int) -> st.SearchStrategy[Packet]:
    codes = V3_SUBACK_CODES if version == V3 else ALLOWED[kind.packet_type, Sender.SERVER]
    some = st.lists(st.sampled_from(sorted(codes)), min_size=1, max_size=5).map(tuple)
    return st.builds(kind, packet_ids, some, _listed(kind.packet_type, Sender.SERVER, version))


def _farewells(sender: Sender) -> list[st.SearchStrategy[Packet]]:
    return [
        st.builds(kind, _reasons(kind.packet_type, sender), properties(kind.packet_type, sender))
        for kind in (Disconnect, Auth)
    ]


@st.composite
def streams(draw: st.DrawFn) -> tuple[int, Sender, list[Packet]]:
    """What one side sends on a connection; a client's begins with CONNECT."""
    version = draw(st.sampled_from((V3, V5)))
    if draw(booleans):
        rest = draw(st.lists(from_client(version), max_size=8))
        return version, Sender.CLIENT, [draw(connects(version)), *rest]
    return version, Sender.SERVER, draw(st.lists(from_server(version), min_size=1, max_size=8))
