import pytest

from penstock.mqtt import (
    PINGREQ,
    PINGRESP,
    Auth,
    Connack,
    Connect,
    Connection,
    Disconnect,
    Limits,
    Packet,
    PacketType,
    Properties,
    ProtocolError,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Sender,
    State,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.kinds import SENDABLE, V5
from penstock.mqtt.session import TABLE

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
        Subscribe(1, (Subscription("a"),)),
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
    assert connection.state is State.OPENING
    assert connection.see(CLIENT, Connect("me")) is State.CONNECTING
    assert connection.see(SERVER, Connack()) is State.CONNECTED
    assert connection.see(CLIENT, Disconnect()) is State.CLOSED


@pytest.mark.parametrize("kind", PacketType)
@pytest.mark.parametrize("sender", Sender)
def test_only_a_client_opens_and_only_with_connect(kind: PacketType, sender: Sender) -> None:
    connection = Connection()
    if (kind, sender) == (PacketType.CONNECT, CLIENT):
        connection.see(sender, EXAMPLES[kind])
    else:
        with pytest.raises(ProtocolError):
            connection.see(sender, EXAMPLES[kind])
        assert connection.state is State.OPENING


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
        assert connection.see(CLIENT, EXAMPLES[kind]) is State.CONNECTING


def test_a_server_sends_nothing_before_the_connack() -> None:
    for kind in SENDABLE[SERVER, V5] - {PacketType.CONNACK}:
        connection = Connection()
        connection.see(CLIENT, Connect("me"))
        with pytest.raises(ProtocolError):
            connection.see(SERVER, EXAMPLES[kind])


def test_a_refusal_closes() -> None:
    connection = Connection()
    connection.see(CLIENT, Connect("me"))
    assert connection.see(SERVER, Connack(0x87)) is State.CLOSED


def test_with_a_method_only_auth_and_disconnect_come_before_the_connack() -> None:
    for kind in SENDABLE[CLIENT, V5]:
        connection = authenticating()
        if kind is PacketType.AUTH:
            assert connection.see(CLIENT, EXAMPLES[kind]) is State.AUTHENTICATING
        elif kind is PacketType.DISCONNECT:
            assert connection.see(CLIENT, EXAMPLES[kind]) is State.CLOSED
        else:
            with pytest.raises(ProtocolError):
                connection.see(CLIENT, EXAMPLES[kind])


def test_extended_authentication_and_authentication_anew() -> None:
    connection = authenticating()
    assert connection.see(SERVER, Auth(0x18, METHOD)) is State.AUTHENTICATING
    assert connection.see(CLIENT, Auth(0x18, METHOD)) is State.AUTHENTICATING
    assert connection.see(SERVER, Connack(properties=METHOD)) is State.CONNECTED
    assert connection.see(CLIENT, Auth(0x19, METHOD)) is State.CONNECTED
    assert connection.see(SERVER, Auth()) is State.CONNECTED


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
    assert authenticating().see(SERVER, Connack(0x8C)) is State.CLOSED


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
                assert state is (State.CLOSED if closed else State.CONNECTED)
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
    assert Limits.said_in(Properties()) == Limits(65_535, 268_435_455, 0)
    named = Properties(receive_maximum=5, maximum_packet_size=100, topic_alias_maximum=7)
    assert Limits.said_in(named) == Limits(5, 100, 7)
