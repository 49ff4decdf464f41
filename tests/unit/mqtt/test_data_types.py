import pytest

from penstock.errors import UsageError
from penstock.mqtt import MalformedPacketError, ProtocolError
from penstock.mqtt.codes import PACKET_SIZE_LIMIT
from penstock.mqtt.data_types import (
    Cursor,
    encode_binary,
    encode_packet_id,
    encode_text,
    encode_varint,
    frame,
    read_varint,
)

BOUNDARIES = {
    0: "00",
    127: "7f",
    128: "8001",
    2_047: "ff0f",
    2_048: "8010",
    16_383: "ff7f",
    16_384: "808001",
    2_097_151: "ffff7f",
    2_097_152: "80808001",
    PACKET_SIZE_LIMIT: "ffffff7f",
}


@pytest.mark.parametrize(("value", "data"), BOUNDARIES.items())
def test_varint_has_the_bytes_of_the_specification(value: int, data: str) -> None:
    encoded = bytes.fromhex(data)
    assert encode_varint(value) == encoded
    assert read_varint(encoded, 0, len(encoded)) == (value, len(encoded))
    for cut in range(len(encoded)):
        assert read_varint(encoded, 0, cut) is None


def test_varint_above_four_bytes_is_never_written() -> None:
    with pytest.raises(UsageError, match="does not fit"):
        encode_varint(PACKET_SIZE_LIMIT + 1)


@pytest.mark.parametrize("data", ["8000", "ff8000", "80808000", "818000"])
def test_varint_with_a_redundant_byte_is_refused(data: str) -> None:
    encoded = bytes.fromhex(data)
    with pytest.raises(MalformedPacketError, match="redundant"):
        read_varint(encoded, 0, len(encoded))


def test_varint_of_five_bytes_is_refused_as_soon_as_the_fourth_is_there() -> None:
    with pytest.raises(MalformedPacketError, match="longer than four"):
        read_varint(b"\xff\xff\xff\xff", 0, 4)


def test_a_cursor_reads_fields_in_order() -> None:
    cursor = Cursor(
        "TEST", b"\x01\x00\x02\x00\x00\x00\x03\x81\x01\x00\x01a\x00\x02\x00\xff!", 0, 17
    )
    assert cursor.byte("one") == 1
    assert cursor.two_bytes("two") == 2
    assert cursor.take(4, "four") == b"\0\0\0\x03"
    assert cursor.varint("varint") == 129
    assert cursor.text("text") == "a"
    assert cursor.binary("binary") == b"\x00\xff"
    assert cursor.left == 1
    with pytest.raises(MalformedPacketError, match="TEST: 1 bytes too many"):
        cursor.finish()
    assert cursor.rest() == b"!"
    cursor.finish()


def test_a_cursor_never_reads_past_its_packet() -> None:
    cursor = Cursor("TEST", b"\x00\x05ab" + b"next packet", 0, 4)
    with pytest.raises(MalformedPacketError, match=r"name needs 5 bytes, 2 are left \(at byte 2\)"):
        cursor.text("name")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"a\xc0\x80",  # overlong NUL
        b"\xed\xa0\x80",  # a surrogate
        b"\xf4\x90\x80\x80",  # above U+10FFFF
        b"\xe2\x82",  # cut off
    ],
)
def test_ill_formed_utf8_is_refused(data: bytes) -> None:
    encoded = len(data).to_bytes(2) + data
    with pytest.raises(MalformedPacketError, match="ill-formed UTF-8"):
        Cursor("TEST", encoded, 0, len(encoded)).text("name")


def test_nul_is_refused_and_its_place_is_named() -> None:
    with pytest.raises(MalformedPacketError, match=r"U\+0000 \(at byte 3\)"):
        Cursor("TEST", b"\x00\x03a\x00b", 0, 5).text("name")


def test_a_byte_order_mark_is_kept() -> None:
    assert Cursor("TEST", b"\x00\x04\xef\xbb\xbfa", 0, 6).text("name") == "\ufeffa"


def test_errors_never_quote_what_came() -> None:
    secret = b"s3cret\xff"
    with pytest.raises(MalformedPacketError) as caught:
        Cursor("TEST", len(secret).to_bytes(2) + secret, 0, 9).text("password")
    assert "s3cret" not in str(caught.value)


def test_packet_identifier_0_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="identifier is 0"):
        Cursor("TEST", b"\x00\x00", 0, 2).packet_id()


@pytest.mark.parametrize("packet_id", [0, -1, 65_536])
def test_packet_identifiers_out_of_range_are_not_written(packet_id: int) -> None:
    with pytest.raises(UsageError, match="not a packet identifier"):
        encode_packet_id(packet_id)


def test_fields_that_cannot_be_read_are_not_written() -> None:
    with pytest.raises(UsageError, match="65536 bytes"):
        encode_binary(bytes(65_536), "will payload")
    with pytest.raises(UsageError, match="NUL"):
        encode_text("a\0b", "topic")
    with pytest.raises(UsageError, match="surrogate"):
        encode_text("\ud800", "topic")
    assert len(encode_text("a" * 65_535, "topic")) == 65_537


def test_a_frame_says_its_length() -> None:
    assert frame(0x10, b"ab") == b"\x10\x02ab"
    assert frame(0x10, bytes(200))[:3] == b"\x10\xc8\x01"
