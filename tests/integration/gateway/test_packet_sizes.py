"""A client's maximum packet size: answers leave out their words, and never exceed it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.mqtt import V5, Connack, Disconnect, ReasonCode
from tests.support.gateway.clients import Make
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.raw import ClosedError, RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

SMALL = 40

Ask = Callable[[RawClient], Any]

ASKED: dict[str, Ask] = {
    "SUBACK": lambda client: client.subscribe("ok", "!AP/a{one,two,three,four,five}", "ok/2"),
    "PUBACK": lambda client: client.publish("!NO/SUCH/COMMAND/AT/ALL", qos=1),
    "PUBREC": lambda client: client.publish("!NO/SUCH/COMMAND/AT/ALL", qos=2),
}


@pytest.mark.parametrize("kind", ASKED)
def test_answers_leave_out_their_words_where_there_is_no_room(make: Make, kind: str) -> None:
    ask = ASKED[kind]
    wordy, terse, silent = (
        ask(make()),
        ask(make(maximum_packet_size=SMALL)),
        ask(make(request_problem_information=0)),
    )
    assert wordy.properties.reason_string
    assert len(wordy.encode(V5)) > SMALL
    for answer in (terse, silent):
        assert len(answer.encode(V5)) <= SMALL
        assert answer.properties.reason_string is None
    if kind == "SUBACK":
        assert wordy.reasons == terse.reasons == (2, ReasonCode.TOPIC_FILTER_INVALID, 2)
    else:
        assert wordy.reason == terse.reason == ReasonCode.TOPIC_NAME_INVALID


def test_the_reason_is_told_where_there_is_just_room_for_it(make: Make) -> None:
    wordy = ASKED["PUBACK"](make())
    needed = len(wordy.encode(V5))
    assert ASKED["PUBACK"](make(maximum_packet_size=needed)) == wordy
    assert ASKED["PUBACK"](make(maximum_packet_size=needed - 1)).properties.reason_string is None


def test_a_refusal_to_connect_leaves_out_its_words(tmp_path: Path, broker: MosquittoServer) -> None:
    answers: list[Connack] = []
    with run_gateway(tmp_path, broker.port, {"limits": {"client_id_bytes": 40}}) as gateway:
        for room in (1_000, SMALL):
            with RawClient(gateway.port) as client:
                answers.append(client.connect("x" * 41, maximum_packet_size=room))
    wordy, terse = answers
    assert wordy.properties.reason_string
    assert len(wordy.encode(V5)) > SMALL
    assert len(terse.encode(V5)) <= SMALL
    assert wordy.reason == terse.reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_a_request_whose_answer_cannot_be_sent_is_refused_as_a_whole(
    gateway: GatewayThread, make: Make, topic: str, kind: str
) -> None:
    name = f"s-{topic[2:]}"
    client = make(name, maximum_packet_size=SMALL)
    # Header, length, identifier and properties take five bytes.
    fitting = [f"{topic}/{number}" for number in range(SMALL - 5)]
    answer = getattr(client, kind)(*fitting)
    assert len(answer.encode(V5)) == SMALL
    held = gateway.do(lambda: len(gateway.gateway.clients[name].session.numbers))
    assert held == (len(fitting) if kind == "subscribe" else 0)
    with pytest.raises(ClosedError):
        getattr(client, kind)(*fitting, f"{topic}/more")
    assert client.expect(Disconnect).reason == ReasonCode.PACKET_TOO_LARGE
