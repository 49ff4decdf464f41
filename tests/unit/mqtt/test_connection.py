import pytest

from penstock.mqtt import (
    PINGREQ,
    PINGRESP,
    Auth,
    Connack,
    Connect,
    Connection,
    ConnectionState,
    Disconnect,
    Packet,
    PacketType,
    PeerLimits,
    Properties,
    ProtocolError,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    RequestedSubscription,
    Sender,
    Suback,
    Subscribe,
    TopicAliasError,
    TopicAliases,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.codes import SENDABLE, V5
from penstock.mqtt.connection import TABLE

METHOD = Properties(authentication_method="SCRAM")
CLIENT, SERVER = Sender.CLIENT, Sender.SERVER

EXAMPLES: dict[PacketType, Packet] = {
    example.packet_type: example
    for example in (
        Connect("me"),
        Connack(),
        Publish.of("a"),
        Puback(1),
        Pubrec(1),
        Pubrel(1),
        Pubcomp(1),
        Subscribe(1, (RequestedSubscription("a"),)),
        Suback(1, (0,)),
        Unsubscribe(1, ("a",)),
        Unsuback(1, (0,)),
        PINGREQ,
        PINGRESP,
        Disconnect(),
        Auth(0x18, METHOD),
    )
}


def connected() -> Connection:
    connection = Connection()
    connection.see(CLIENT, Connect("me"))
    connection.see(SERVER, Connack())
    return connection


def authenticating() -> Connection:
    connection = Connection()
    connection.see(CLIENT, Connect("me", properties=METHOD))
    return connection


def test_there_is_an_example_of_each_packet() -> None:
    assert set(EXAMPLES) == set(PacketType)


def test_the_table_names_only_what_a_side_can_send() -> None:
    for moves in TABLE.values():
        for sender, kind in moves:
            assert kind in SENDABLE[sender, V5]


def test_the_plain_life_of_a_connection() -> None:
    connection = Connection()
    assert connection.state is ConnectionState.OPENING
    assert connection.see(CLIENT, Connect("me")) is ConnectionState.CONNECTING
    assert connection.see(SERVER, Connack()) is ConnectionState.CONNECTED
    assert connection.see(CLIENT, Disconnect()) is ConnectionState.CLOSED


@pytest.mark.parametrize("kind", PacketType)
@pytest.mark.parametrize("sender", Sender)
def test_only_a_client_opens_and_only_with_connect(kind: PacketType, sender: Sender) -> None:
    connection = Connection()
    if (kind, sender) == (PacketType.CONNECT, CLIENT):
        connection.see(sender, EXAMPLES[kind])
    else:
        with pytest.raises(ProtocolError):
            connection.see(sender, EXAMPLES[kind])
        assert connection.state is ConnectionState.OPENING


def test_a_second_connect_is_a_protocol_error() -> None:
    for connection in (connected(), authenticating()):
        with pytest.raises(ProtocolError, match="CONNECT from the client"):
            connection.see(CLIENT, Connect("me"))


def test_a_second_connack_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="CONNACK from the server while connected"):
        connected().see(SERVER, Connack())


def test_a_client_need_not_wait_for_the_connack() -> None:
    connection = Connection()
    connection.see(CLIENT, Connect("me"))
    for kind in (PacketType.SUBSCRIBE, PacketType.PUBLISH, PacketType.PINGREQ):
        assert connection.see(CLIENT, EXAMPLES[kind]) is ConnectionState.CONNECTING


def test_a_server_sends_nothing_before_the_connack() -> None:
    for kind in SENDABLE[SERVER, V5] - {PacketType.CONNACK}:
        connection = Connection()
        connection.see(CLIENT, Connect("me"))
        with pytest.raises(ProtocolError):
            connection.see(SERVER, EXAMPLES[kind])


def test_a_refusal_closes() -> None:
    connection = Connection()
    connection.see(CLIENT, Connect("me"))
    assert connection.see(SERVER, Connack(0x87)) is ConnectionState.CLOSED


def test_with_a_method_only_auth_and_disconnect_come_before_the_connack() -> None:
    for kind in SENDABLE[CLIENT, V5]:
        connection = authenticating()
        if kind is PacketType.AUTH:
            assert connection.see(CLIENT, EXAMPLES[kind]) is ConnectionState.AUTHENTICATING
        elif kind is PacketType.DISCONNECT:
            assert connection.see(CLIENT, EXAMPLES[kind]) is ConnectionState.CLOSED
        else:
            with pytest.raises(ProtocolError):
                connection.see(CLIENT, EXAMPLES[kind])


def test_extended_authentication_and_authentication_anew() -> None:
    connection = authenticating()
    assert connection.see(SERVER, Auth(0x18, METHOD)) is ConnectionState.AUTHENTICATING
    assert connection.see(CLIENT, Auth(0x18, METHOD)) is ConnectionState.AUTHENTICATING
    assert connection.see(SERVER, Connack(properties=METHOD)) is ConnectionState.CONNECTED
    assert connection.see(CLIENT, Auth(0x19, METHOD)) is ConnectionState.CONNECTED
    assert connection.see(SERVER, Auth()) is ConnectionState.CONNECTED


def test_auth_needs_the_method_of_the_connect() -> None:
    with pytest.raises(ProtocolError, match="without authentication method"):
        connected().see(CLIENT, Auth(0x19, METHOD))
    other = Properties(authentication_method="OTHER")
    with pytest.raises(ProtocolError, match="another"):
        authenticating().see(CLIENT, Auth(0x18, other))
    for given in (other, Properties()):
        with pytest.raises(ProtocolError, match="another"):
            authenticating().see(SERVER, Connack(properties=given))


def test_a_refusal_need_not_name_the_method() -> None:
    assert authenticating().see(SERVER, Connack(0x8C)) is ConnectionState.CLOSED


def test_while_connected_each_side_sends_its_packets() -> None:
    for sender in Sender:
        for kind in PacketType:
            connection = connected()
            expected = kind in SENDABLE[sender, V5] - {
                PacketType.CONNECT,
                PacketType.CONNACK,
                PacketType.AUTH,
            }
            if expected:
                state = connection.see(sender, EXAMPLES[kind])
                closed = kind is PacketType.DISCONNECT
                assert state is (ConnectionState.CLOSED if closed else ConnectionState.CONNECTED)
            else:
                with pytest.raises(ProtocolError):
                    connection.see(sender, EXAMPLES[kind])


def test_nothing_follows_the_end() -> None:
    for sender in Sender:
        for example in EXAMPLES.values():
            connection = connected()
            connection.close()
            with pytest.raises(ProtocolError, match="while closed"):
                connection.see(sender, example)


def test_limits_that_were_not_named_are_the_specifications() -> None:
    assert PeerLimits.said_in(Properties()) == PeerLimits(65_535, 268_435_455, 0)
    named = Properties(receive_maximum=5, maximum_packet_size=100, topic_alias_maximum=7)
    assert PeerLimits.said_in(named) == PeerLimits(5, 100, 7)


def make_aliased(topic: str, alias: int) -> Publish:
    return Publish.of(topic, b"x", properties=Properties(topic_alias=alias, message_expiry=1))


def test_an_alias_stands_for_the_topic_it_was_introduced_with() -> None:
    aliases = TopicAliases(2)
    for topic in ("a/b", "c/ö"):
        aliases.expand(make_aliased(topic, 1))
        short = make_aliased("", 1)
        aliases.expand(short)
        assert short.topic == topic
        assert (
            short.to_v5(short.properties.kept)
            == Publish.of(topic, b"x", properties=Properties(message_expiry=1)).to_v5()
        )


def test_messages_without_alias_pass() -> None:
    plain = Publish.of("a")
    TopicAliases(0).expand(plain)
    assert plain == Publish.of("a")


@pytest.mark.parametrize("topic", ["a", ""])
def test_an_alias_above_the_maximum_is_refused(topic: str) -> None:
    with pytest.raises(TopicAliasError, match="3 is above 2"):
        TopicAliases(2).expand(make_aliased(topic, 3))
    with pytest.raises(TopicAliasError, match="1 is above 0"):
        TopicAliases(0).expand(make_aliased(topic, 1))


def test_an_alias_that_was_never_introduced_is_a_protocol_error() -> None:
    aliases = TopicAliases(2)
    aliases.expand(make_aliased("a", 1))
    with pytest.raises(ProtocolError, match="never introduced"):
        aliases.expand(make_aliased("", 2))
