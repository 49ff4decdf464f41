import json

import pytest

from penstock.cli.streams.tail import _show
from penstock.mqtt import Publish


def shown(capsys: pytest.CaptureFixture[str], payload: bytes) -> dict[str, object]:
    _show(Publish.of("ward/7", payload, qos=1, packet_id=1), as_json=True)
    data: dict[str, object] = json.loads(capsys.readouterr().out)
    return data


@pytest.mark.parametrize("text", ["80", "true", "null", '"80"', "1.0", "[NaN]", "{", "[" * 9000])
def test_the_text_is_kept_as_it_was_sent(capsys: pytest.CaptureFixture[str], text: str) -> None:
    line = shown(capsys, text.encode())
    assert line["payload"] == text
    assert "payload_json" not in line


@pytest.mark.parametrize("text", ['{"pulse": 80}', " [1, 2]"])
def test_objects_and_lists_come_as_data_too(capsys: pytest.CaptureFixture[str], text: str) -> None:
    line = shown(capsys, text.encode())
    assert line["payload"] == text
    assert line["payload_json"] == json.loads(text)


def test_what_is_no_text_comes_as_base64(capsys: pytest.CaptureFixture[str]) -> None:
    line = shown(capsys, b"\xff\x00")
    assert line["base64"] == "/wA="
    assert "payload" not in line
